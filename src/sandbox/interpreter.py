"""One running interpreter in its workspace."""

from __future__ import annotations

import marshal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sandbox.images import BASE_ENV, HAS_VALUE, IMAGE_ENV, MARSHAL_VERSION, OUT_OF_MEMORY, REPORT
from sandbox.scratch import scratch
from sandbox.wasm.call import Call
from sandbox.wasm.engine import watchdog
from sandbox.wasm.quota import DiskLimits
from sandbox.wasm.streams import Input, Output

if TYPE_CHECKING:
    import threading

    from sandbox.cache import Cache
    from sandbox.events import SandboxLogger
    from sandbox.images import Image
    from sandbox.policy import ExecutionPolicy
    from sandbox.result import State, StoppedBy
    from sandbox.wasm.instance import Ending
    from sandbox.wasm.journal import Journal
    from sandbox.wasm.names import HostOnlyNames

OutputCallback = Callable[[str, bytes], object]

TRAP_EXIT_CODE = 134  # as a shell reports a process that aborted
MOST_EXIT_CODE = 255
LIMIT_EXIT_CODE = 137  # as a shell reports a process that was killed
MOST_VALUE_CHARACTERS = 10_003  # what the driver leaves of a value, unless the code changed the driver
# A guest that dies this close to its memory limit died of it.
NEAR_LIMIT_BYTES = 16 << 20


@dataclass(frozen=True)
class Request:
    """One execution as its caller asked for it, checked."""

    code: bytes
    stdin: Input
    args: tuple[str, ...] = ()
    timeout_seconds: float | None = None
    on_output: OutputCallback | None = None
    cancel: threading.Event | None = None
    kind: str = "run"  # which of the driver's jobs it is
    renew: bool = True  # whether the interpreter begins, or begins again, with this job


@dataclass(frozen=True)
class Outcome:
    """What the guest did."""

    exit_code: int
    stopped_by: StoppedBy | None
    stdout: Output
    stderr: Output
    note: str  # the host's own last line of stderr
    value: str | None  # what a turn's last expression gave
    fuel_consumed: int | None
    memory_used_bytes: int
    journal: Journal
    denied: bool
    quota_exceeded: bool
    state: State | None = None  # of a stateful session's interpreter


@dataclass(frozen=True)
class Verdict:
    """How a job ended, in the words of a result."""

    exit_code: int
    stopped_by: StoppedBy | None = None
    note: str = ""
    value: str | None = None


class Interpreter:
    """An instance that started from an image, with its workspace and a private /tmp.

    Made and run on a thread with a deep stack, one call at a time. What a limit stopped is only
    good for closing.
    """

    def __init__(
        self,
        image: Image,
        policy: ExecutionPolicy,
        workspace: str,
        *,
        host_only: HostOnlyNames,
        cache: Cache | None,
        logger: SandboxLogger,
        lasting: bool = False,
    ) -> None:
        self._image = image
        self._policy = policy
        self._workspace = workspace
        self._host_only = host_only
        self._lasting = lasting  # what it begins with may be other than the image's own
        self._call: Call | None = None
        self._interrupted = False
        self._instance = image.start(
            metered=policy.fuel_budget is not None,
            memory_bytes=policy.memory_bytes,
            cache=cache,
            logger=logger,
            lasting=lasting,
        )
        self._tmp = scratch.take()
        try:
            self._open_world()
        except BaseException:
            self._instance.close()
            scratch.give_back(self._tmp, used=False)
            raise

    def _open_world(self) -> None:
        policy, image = self._policy, self._image
        data = str(policy.mount_data_dir) if policy.mount_data_dir else scratch.empty()
        self._instance.open_world(
            image.recipe.mounts(workspace=self._workspace, tmp=self._tmp, data=data),
            host_only=self._host_only,
            max_open_files=policy.max_open_files,
        )

    def run(self, request: Request) -> Outcome:
        """Do one job; raises only what the host's own functions raised."""
        policy, instance = self._policy, self._instance
        stdout = Output("stdout", policy.stdout_max_bytes, request.on_output)
        stderr = Output("stderr", policy.stderr_max_bytes, request.on_output)
        timeout = request.timeout_seconds or policy.timeout_seconds
        deadline = None if timeout is None else time.monotonic() + timeout
        call = self._call = Call(deadline=deadline, cancel=request.cancel)
        if self._interrupted:
            call.interrupt("cancelled")
        instance.set_fuel(policy.fuel_budget or 0)
        limits = DiskLimits(policy.disk_write_bytes, policy.workspace_max_bytes, policy.workspace_max_files)
        streams = request.stdin, stdout, stderr
        ending = instance.run_job(self._job(request), call=call, streams=streams, limits=limits)
        verdict = self._verdict(ending, call.channel.report)
        return Outcome(
            verdict.exit_code,
            verdict.stopped_by,
            stdout,
            stderr,
            verdict.note,
            verdict.value,
            None if policy.fuel_budget is None else policy.fuel_budget - instance.fuel(),
            instance.memory.size(),
            instance.gate.journal,
            instance.gate.denied,
            instance.gate.quota_exceeded,
        )

    @property
    def is_sound(self) -> bool:
        """Whether it can run another job."""
        return self._instance.is_sound

    def _job(self, request: Request) -> bytes:
        env = {**BASE_ENV, **self._policy.env}
        job: dict[str, Any] = {
            "kind": request.kind,
            "code": request.code,
            "args": request.args,
            "env": None if not self._lasting and env == IMAGE_ENV else env,
            "streaming": request.on_output is not None,
            "renew": request.renew,
            "fed": not request.stdin.is_empty,
        }
        return marshal.dumps(job, MARSHAL_VERSION)

    def _verdict(self, ending: Ending, report: bytes) -> Verdict:
        """What the ending means; the report is the guest's word and no more."""
        if ending.stopped_by is not None:
            return self._stopped(ending)
        if ending.exit_code is not None:
            return _exited(ending.exit_code)
        if len(report) < REPORT.size:
            return Verdict(ending.status or 0)
        exit_code, flags = REPORT.unpack_from(report)
        text = report[REPORT.size :].decode("utf-8", "replace")[:MOST_VALUE_CHARACTERS]
        stopped_by: StoppedBy | None = "memory" if flags & OUT_OF_MEMORY else None
        return Verdict(exit_code, stopped_by, value=text if flags & HAS_VALUE else None)

    def _stopped(self, ending: Ending) -> Verdict:
        policy = self._policy
        room = policy.memory_bytes - self._instance.memory.size()
        if ending.stopped_by == "memory" or (ending.stopped_by == "trap" and room < NEAR_LIMIT_BYTES):
            note = f"MemoryLimit: the memory limit is {policy.memory_bytes} bytes"
            return Verdict(LIMIT_EXIT_CODE, "memory", note)
        if ending.stopped_by == "fuel":
            note = f"OutOfFuel: the fuel budget is {policy.fuel_budget} instructions"
            return Verdict(LIMIT_EXIT_CODE, "fuel", note)
        if ending.stopped_by == "timeout":
            return Verdict(LIMIT_EXIT_CODE, "timeout", "Timeout: the time limit has passed")
        if ending.stopped_by == "cancelled":
            return Verdict(LIMIT_EXIT_CODE, "cancelled", "Cancelled: the caller stopped the execution")
        return Verdict(TRAP_EXIT_CODE, "trap", f"Trap: {ending.trap}")

    def interrupt(self) -> None:
        """Stop the guest, or have it not start; called from another thread."""
        self._interrupted = True
        if self._call is not None:
            watchdog.interrupt(self._call, "cancelled")

    def close(self) -> None:
        """Give back the memory and the private /tmp; may be called twice."""
        if self._tmp:
            tmp, self._tmp = self._tmp, ""
            scratch.give_back(tmp, used=self._used_tmp())
            self._image.give_back(self._instance)

    def _used_tmp(self) -> bool:
        return self._instance.gate.touched_tmp


def _exited(code: int) -> Verdict:
    """What proc_exit means: `os._exit` has 0 to 255, and anything above is an abort."""
    return Verdict(code) if code <= MOST_EXIT_CODE else Verdict(TRAP_EXIT_CODE, "trap", "Trap: it aborted")
