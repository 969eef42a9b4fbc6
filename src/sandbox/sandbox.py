"""One execution, from code to result."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
import time
from abc import ABC, abstractmethod
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self, TypedDict, Unpack

from sandbox import tree
from sandbox.cache import Cache, open_cache
from sandbox.errors import PolicyValidationError, SandboxClosed, WorkspaceUnusable
from sandbox.events import SandboxLogger
from sandbox.guests.cpython import find_guest
from sandbox.images import Image, Recipe, images
from sandbox.interpreter import Interpreter, Outcome, OutputCallback, Request
from sandbox.policy import ExecutionPolicy
from sandbox.replacement import replacing
from sandbox.result import SandboxResult
from sandbox.wasm import threads
from sandbox.wasm.engine import check_fork
from sandbox.wasm.journal import CODE_FILE
from sandbox.wasm.names import HOST_ONLY_PREFIX, HostOnlyNames
from sandbox.wasm.streams import Input

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "BaseSandbox",
    "ExecuteOptions",
    "OutputCallback",
    "PythonSandbox",
    "RuntimeType",
    "check_runtime",
    "create_sandbox",
]

DEFAULT_WORKSPACE = Path("workspace")
UNSEEN_PREFIX = f"{HOST_ONLY_PREFIX}.code-"  # of the code on its way in
LIMIT_EVENTS = {
    "fuel": "security.fuel_exhausted",
    "timeout": "security.timeout",
    "memory": "security.memory_limit",
}


class RuntimeType(StrEnum):
    """The languages that a sandbox can run."""

    PYTHON = "python"


class _EitherEvent(threading.Event):
    """Set when it is set itself, or when a caller's own event is, which stays the caller's."""

    def __init__(self, other: threading.Event | None) -> None:
        super().__init__()
        self._other = other

    def is_set(self) -> bool:
        return super().is_set() or (self._other is not None and self._other.is_set())


class ExecuteOptions(TypedDict, total=False):
    """What an execution can be given besides its code."""

    stdin: str | bytes | BinaryIO | None
    args: Sequence[str]
    timeout_seconds: float | None  # in the place of the policy's
    on_output: OutputCallback | None  # hears of output as it comes: the stream's name, and bytes
    cancel: threading.Event | None  # stops the guest when it is set


class BaseSandbox(ABC):
    """Runs code in one workspace; one sandbox may be used from many threads at once."""

    policy: ExecutionPolicy
    workspace: Path
    logger: SandboxLogger
    session_id: str | None

    @abstractmethod
    def execute(self, code: str, **options: Unpack[ExecuteOptions]) -> SandboxResult:
        """Run `code` in a fresh interpreter and wait for its end."""

    async def execute_async(self, code: str, **options: Unpack[ExecuteOptions]) -> SandboxResult:
        """`execute` beside an event loop; cancelling the task stops the guest."""
        cancel = _EitherEvent(options.get("cancel"))
        options["cancel"] = cancel
        running = asyncio.to_thread(self.execute, code, **options)
        task = asyncio.ensure_future(running)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            cancel.set()
            await asyncio.wait([task])
            raise

    @abstractmethod
    def validate_code(self, code: str) -> bool:
        """Whether `code` compiles; it is not run."""

    @abstractmethod
    def close(self) -> None:
        """Release what the sandbox holds; may be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class PythonSandbox(BaseSandbox):
    """Python in WebAssembly; each execution is a fresh interpreter, and only files persist."""

    _job_kind = "run"

    def __init__(
        self,
        *,
        policy: ExecutionPolicy | None = None,
        workspace: str | Path | None = None,
        logger: SandboxLogger | None = None,
        session_id: str | None = None,
        host_only: Sequence[str] = (),
        preload: Sequence[str] | None = None,
        wasm_binary_path: str | Path | None = None,
    ) -> None:
        policy = policy or ExecutionPolicy()
        if preload is not None:
            policy = ExecutionPolicy(**{**policy.model_dump(), "preload": tuple(preload)})
        self.policy = policy
        self.logger = logger or SandboxLogger()
        self.session_id = session_id
        self.workspace = Path(workspace) if workspace is not None else DEFAULT_WORKSPACE
        # The folder of a session has its own maker, and a deleted one must not come back as a shell.
        self._root = str(self.workspace.absolute()) if session_id else _make_workspace(self.workspace)
        self._host_only = HostOnlyNames(host_only)
        self._binary = Path(wasm_binary_path) if wasm_binary_path is not None else None
        self._closed = False
        self._ready: tuple[Image, Cache | None] | None = None

    def warm_up(self) -> Image:
        """Fetch, compile and prepare what the first execution would; done once per machine."""
        return self._prepare()[0]

    def execute(self, code: str, **options: Unpack[ExecuteOptions]) -> SandboxResult:
        """Run `code` in a fresh interpreter and wait for its end."""
        request = _request(code, self._job_kind, **options)
        image, cache = self._prepare()
        self._check_workspace()
        self._keep_code(request.code)
        self.logger.info(
            "execution.start",
            runtime=RuntimeType.PYTHON.value,
            fuel_budget=self.policy.fuel_budget,
            memory_bytes=self.policy.memory_bytes,
            workspace=self._root,
        )
        started = time.perf_counter()
        outcome = self._run(request, image, cache)
        result = self._result(outcome, (time.perf_counter() - started) * 1000)
        self._log_end(result, outcome)
        return result

    def validate_code(self, code: str) -> bool:
        """Whether `code` compiles in the guest's Python; it is not run."""
        request = Request(_encode(code), _input(None), kind="check")
        outcome = self._run(request, *self._prepare())
        return outcome.exit_code == 0 and outcome.stopped_by is None

    def close(self) -> None:
        """Release what the sandbox holds; may be called twice."""
        self._closed = True
        self._ready = None

    def _prepare(self) -> tuple[Image, Cache | None]:
        if self._closed:
            raise SandboxClosed
        check_fork()
        if self._ready is None:
            cache = open_cache(self.logger)
            guest = find_guest(self._binary, cache, self.logger)
            recipe = Recipe(guest, self.policy.preload, self.policy.guest_data_path)
            self._ready = images.get(recipe, cache, self.logger), cache
        return self._ready

    def _run(self, request: Request, image: Image, cache: Cache | None) -> Outcome:
        """Run a request on a deep stack; the interpreter is cleared away when the caller has its outcome."""
        interpreters: list[Interpreter] = []
        interrupted = threading.Event()

        def run() -> Outcome:
            interpreter = Interpreter(
                image, self.policy, self._root, host_only=self._host_only, cache=cache, logger=self.logger
            )
            interpreters.append(interpreter)
            if interrupted.is_set():
                interpreter.interrupt()
            return interpreter.run(request)

        def interrupt() -> None:
            interrupted.set()
            for interpreter in interpreters:
                interpreter.interrupt()

        def clear() -> None:
            for interpreter in interpreters:
                interpreter.close()

        return threads.run(run, interrupt=interrupt, afterwards=clear)

    def _check_workspace(self) -> None:
        if not os.access(self._root, os.R_OK | os.W_OK | os.X_OK):
            raise WorkspaceUnusable(self.workspace, _why_unusable(self._root))
        data = self.policy.mount_data_dir
        if data is not None and not os.access(os.path.join(data, "."), os.R_OK | os.X_OK):
            raise PolicyValidationError("mount_data_dir", str(data), "is no folder that can be read")

    def _keep_code(self, code: bytes) -> None:
        """Leave the code where tracebacks say that it is; whatever a guest put there gives way."""
        try:
            if not _overwrite(os.path.join(self._root, CODE_FILE), code):
                _replace(self._root, code)
        except IsADirectoryError:
            self.logger.warning("execution.code_not_kept", error=f"{CODE_FILE} is a folder")
        except OSError as error:
            raise WorkspaceUnusable(self.workspace, error.strerror or str(error)) from None

    def _result(self, outcome: Outcome, duration_ms: float) -> SandboxResult:
        stderr = outcome.stderr.text()
        if outcome.note:
            stderr += f"{'' if not stderr or stderr.endswith(chr(10)) else chr(10)}{outcome.note}\n"
        metadata = {"runtime": RuntimeType.PYTHON.value}
        if self.session_id is not None:
            metadata["session_id"] = self.session_id
        return SandboxResult(
            success=outcome.exit_code == 0 and outcome.stopped_by is None,
            stdout=outcome.stdout.text(),
            stderr=stderr,
            exit_code=outcome.exit_code,
            fuel_consumed=outcome.fuel_consumed,
            memory_used_bytes=outcome.memory_used_bytes,
            duration_ms=duration_ms,
            files_created=outcome.journal.created(),
            files_modified=outcome.journal.modified(),
            files_deleted=outcome.journal.deleted(),
            workspace_path=self._root,
            metadata=metadata,
            stopped_by=outcome.stopped_by,
            stdout_truncated=outcome.stdout.truncated,
            stderr_truncated=outcome.stderr.truncated,
            value=outcome.value,
            state=outcome.state,
        )

    def _log_end(self, result: SandboxResult, outcome: Outcome) -> None:
        if result.stopped_by in LIMIT_EVENTS:
            self.logger.warning(LIMIT_EVENTS[result.stopped_by])
        if outcome.quota_exceeded:
            self.logger.warning("security.quota_exceeded")
        if outcome.denied:
            self.logger.warning("security.path_denied")
        self.logger.info(
            "execution.complete",
            success=result.success,
            exit_code=result.exit_code,
            duration_ms=result.duration_ms,
            fuel_consumed=result.fuel_consumed,
            memory_used_bytes=result.memory_used_bytes,
            stopped_by=result.stopped_by,
            files_created_count=len(result.files_created),
            files_modified_count=len(result.files_modified),
        )


def create_sandbox(
    runtime: RuntimeType | str = RuntimeType.PYTHON,
    policy: ExecutionPolicy | None = None,
    workspace: str | Path | None = None,
    logger: SandboxLogger | None = None,
    **runtime_options: Any,
) -> BaseSandbox:
    """A sandbox on a workspace, which is made if it is not there.

    `preload` names modules that are imported before the code starts; `wasm_binary_path` names
    another guest than the default one.
    """
    check_runtime(runtime)
    return PythonSandbox(policy=policy, workspace=workspace, logger=logger, **runtime_options)


def check_runtime(runtime: RuntimeType | str) -> None:
    """Raise ValueError for a language that no sandbox runs."""
    if runtime not in tuple(RuntimeType):
        raise ValueError(f"Unsupported runtime: {runtime}")


def _make_workspace(path: Path) -> str:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise WorkspaceUnusable(path, "it is a file; name a folder") from None
    except OSError as error:
        raise WorkspaceUnusable(path, error.strerror or str(error)) from None
    return str(path.absolute())


def _overwrite(path: str, data: bytes) -> bool:
    """Write into a plain file that is there under this name alone: a third of the cost of a new one."""
    try:
        # Never through a link, and never waiting for the other end of a pipe.
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode) or info.st_nlink != 1:
            return False
        written = os.write(descriptor, data) if data else 0
        if info.st_size != written:
            os.ftruncate(descriptor, written)
        return written == len(data)
    finally:
        os.close(descriptor)


def _replace(workspace: str, data: bytes) -> None:
    # The workspace itself may be a link.
    with (
        tree.closing_fd(tree.open_folder(os.path.join(workspace, "."))) as folder_fd,
        replacing(CODE_FILE, folder_fd, UNSEEN_PREFIX) as fd,
    ):
        tree.write_all(fd, data)


def _why_unusable(root: str) -> str:
    if not os.path.exists(root):
        return "it is gone; create the sandbox again"
    if not os.path.isdir(root):
        return "it is a file; name a folder"
    return "it must be readable and writable"


def _request(
    code: str,
    kind: str,
    *,
    stdin: str | bytes | BinaryIO | None = None,
    args: Sequence[str] = (),
    timeout_seconds: float | None = None,
    on_output: OutputCallback | None = None,
    cancel: threading.Event | None = None,
) -> Request:
    return Request(
        _encode(code), _input(stdin), _arguments(args), _timeout(timeout_seconds), on_output, cancel, kind
    )


def _encode(code: str) -> bytes:
    if not isinstance(code, str):
        raise TypeError(f"code must be str, not {type(code).__name__}")
    return code.encode("utf-8", "surrogatepass")


def _input(stdin: str | bytes | BinaryIO | None) -> Input:
    if isinstance(stdin, str):
        return Input(stdin.encode("utf-8", "surrogatepass"))
    if not isinstance(stdin, bytes) and stdin is not None and not hasattr(stdin, "read"):
        raise TypeError(f"stdin must be str, bytes or a binary stream, not {type(stdin).__name__}")
    return Input(b"" if stdin is None else stdin)


def _timeout(seconds: float | None) -> float | None:
    if seconds is not None and not seconds > 0:  # NaN is not more than 0 either
        raise ValueError(f"timeout_seconds must be more than 0, not {seconds!r}")
    return seconds


def _arguments(args: Sequence[str]) -> tuple[str, ...]:
    if isinstance(args, str) or not all(isinstance(arg, str) and "\0" not in arg for arg in args):
        raise TypeError("args must be a sequence of str without NUL")
    return tuple(args)
