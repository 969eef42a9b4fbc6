"""The built-in agent: shows what it is told, runs the Python in it in the session's sandbox."""

from __future__ import annotations

import codecs
import os
import select
import signal
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING

from mas.keys import Control, Keys, Submitted, single_keys
from mas.snippets import find_code, show_last_value

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandbox.result import SandboxResult
    from sandbox.sandbox import BaseSandbox

__all__ = ["main"]

READ_BYTES = 65_536
SHOWN_LINES, SHOWN_CHARACTERS = 40, 4_000
"""How much of a received message the pane shows; the rest is counted."""

TITLE_CHARACTERS = 40
NO_ROLE = "there is no ROLE.md in this agent's folder"

HELP = """\
Python runs in the session's sandbox: a line or a pasted text that is Python, a ```python block in a
message, or anything after >>>. Everything else is a message: it is shown and acknowledged.
Each run is a fresh interpreter; files in /app stay. To others: mas send TARGET TEXT, from a shell.
Ctrl-C stops what runs or drops the line, Ctrl-D or exit ends the agent, role shows the role."""

# Guest output and messages must not steer the terminal: controls but tab and newline are shown, not obeyed.
VISIBLE = {code: f"^{chr(code ^ 64)}" for code in (*range(32), 127) if chr(code) not in "\t\n"}
VISIBLE.update({code: f"\\x{code:02x}" for code in range(128, 160)})


class BuiltInAgent:
    """One agent at one terminal: reads all the time, runs one program at a time, in the order of arrival."""

    def __init__(self, agent_id: str, open_sandbox: Callable[[], BaseSandbox], *, output: int) -> None:
        self.prompt = f"{agent_id}> "
        self._name = agent_id
        self._open_sandbox = open_sandbox
        self._sandbox: BaseSandbox | None = None
        self._output = output
        self._keys = Keys(echo=self._echo)
        self._waiting: deque[Submitted | Control] = deque()
        self._cancel: threading.Event | None = None
        self._program: threading.Thread | None = None
        self._wake, self._waker = os.pipe()
        self._ended = False

    def serve(self, terminal: int) -> None:
        """Answer what arrives at `terminal` until its end, or until somebody ends the agent."""
        self._say(
            f"agent {self._name}{_title(self._name)} is ready; type help for what it does\n{self.prompt}"
        )
        sources = [self._wake, terminal]
        while not self._ended:
            ready, _, _ = select.select(sources, [], [])
            if self._wake in ready:
                self._finish_program()
            if terminal in ready and not self._read(terminal):
                sources.remove(terminal)
        self._close()

    def interrupt(self) -> None:
        """Stop the running program, or drop the line that was begun."""
        if self._cancel is not None:
            self._cancel.set()
        else:
            self._keys.take()
            self._say(f"^C\n{self.prompt}")

    def _read(self, terminal: int) -> bool:
        data = os.read(terminal, READ_BYTES)
        for event in self._keys.feed(data):
            if event == Control("interrupt"):
                self.interrupt()
            else:
                self._waiting.append(self._unseen(event) if self._program else event)
                self._answer_waiting()  # at once, so that the echo of what follows comes after the answer
        if not data:
            left = self._keys.take()
            self._waiting.extend([left, Control("end")] if left else [Control("end")])
            self._answer_waiting()
        return bool(data)

    def _unseen(self, event: Submitted | Control) -> Submitted | Control:
        return Submitted(event.text, echoed=False) if isinstance(event, Submitted) else event

    def _answer_waiting(self) -> None:
        while self._waiting and self._program is None and not self._ended:
            event = self._waiting.popleft()
            if isinstance(event, Control) or event.text.strip() in ("exit", "quit"):
                self._ended = True
                self._say("\n")
            else:
                self._answer(event)

    def _answer(self, event: Submitted) -> None:
        self._say("\n" if event.echoed else f"\n{_quote(event.text)}\n")
        word, code = event.text.strip(), find_code(event.text)
        if word == "help":
            self._say(f"{HELP}\n")
        elif word == "role":
            self._say(f"{_visible(_role())}\n")
        elif code is not None:
            self._start_program(show_last_value(code))
        elif word:
            self._say(f"[{self._name}: message received, {len(event.text):,} characters]\n")
        if self._program is None:
            self._say(self.prompt)

    def _start_program(self, code: str) -> None:
        self._cancel = threading.Event()
        self._program = threading.Thread(target=self._run, args=(code, self._cancel), daemon=True)
        self._program.start()

    def _run(self, code: str, cancel: threading.Event) -> None:
        try:
            if self._sandbox is None:
                self._say("[starting the sandbox]\n")  # which itself says when it must be prepared first
                self._sandbox = self._open_sandbox()
            shown = {name: _Stream(self._say) for name in ("stdout", "stderr")}
            result = self._sandbox.execute(
                code, on_output=lambda name, data: shown[name].add(data), cancel=cancel
            )
            self._say(_outcome(result))
        except Exception as error:  # noqa: BLE001 - the agent outlives whatever the sandbox could not do
            self._say(f"[not run: {_visible(str(error))}]\n")
        finally:
            os.write(self._waker, b".")

    def _finish_program(self) -> None:
        os.read(self._wake, 1)
        if self._program is not None:
            self._program.join()
        self._program = self._cancel = None
        self._say(self.prompt)
        self._answer_waiting()

    def _close(self) -> None:
        if self._sandbox is not None:
            self._sandbox.close()
        os.close(self._wake)
        os.close(self._waker)

    def _echo(self, text: str) -> None:
        if self._program is None:
            self._say(text)

    def _say(self, text: str) -> None:
        data = text.encode(errors="replace")
        while data:
            data = data[os.write(self._output, data) :]


class _Stream:
    """One output stream of a program, shown as it comes."""

    def __init__(self, show: Callable[[str], object]) -> None:
        self._show = show
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, data: bytes) -> None:
        self._show(_visible(self._decoder.decode(data)))


def _visible(text: str) -> str:
    return text.replace("\r\n", "\n").translate(VISIBLE)


def _quote(text: str) -> str:
    shown = text[:SHOWN_CHARACTERS].splitlines()[:SHOWN_LINES]
    quoted = "\n".join(f"| {_visible(line)}" for line in shown)
    hidden = len(text) - len("\n".join(shown))
    return f"{quoted}\n| [and {hidden:,} characters more]" if hidden > len("\r\n") else quoted


def _outcome(result: SandboxResult) -> str:
    limit = "cancelled" if result.stopped_by == "cancelled" else f"stopped by {result.stopped_by}"
    how = limit if result.stopped_by else f"exit code {result.exit_code}"
    facts = ["ok" if result.success else how, f"{result.duration_ms:,.0f} ms"]
    facts += [f"wrote {_visible(', '.join(result.files_modified))}"] if result.files_modified else []
    facts += [f"deleted {_visible(', '.join(result.files_deleted))}"] if result.files_deleted else []
    facts += ["output cut"] if result.stdout_truncated or result.stderr_truncated else []
    return f"[{', '.join(facts)}]\n"


def _role() -> str:
    # Sandboxed code can put a link here: following it would show the guest what it must not read.
    try:
        descriptor = os.open("ROLE.md", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return NO_ROLE
    with os.fdopen(descriptor, "rb") as file:
        return file.read(READ_BYTES).decode(errors="replace").rstrip()


def _title(name: str) -> str:
    first, heading = _role().partition("\n")[0], f"# {name} "
    fits = first.startswith(heading) and len(first) < len(heading) + TITLE_CHARACTERS
    return f", {_visible(first.removeprefix(heading))}," if fits else ""


def _open_session_sandbox() -> BaseSandbox:
    from mas.runs import Runs
    from mas.settings import read_settings

    return Runs(read_settings()).sandbox(os.environ.get("MAS_SESSION_ID", ""))


def main() -> int:
    """Serve the terminal this was started in; what it is called comes from MAS_AGENT_ID."""
    agent = BuiltInAgent(os.environ.get("MAS_AGENT_ID", "agent"), _open_session_sandbox, output=1)
    signal.signal(signal.SIGINT, lambda *_: agent.interrupt())
    with single_keys(0):
        agent.serve(0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
