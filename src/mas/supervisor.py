"""The process of each pane: runs one agent, keeps what it prints, ends everything that it started.

Started by path with `python -I -S`, thirteen at a time, so it imports nothing but the standard library.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import signal
import stat
import sys
import termios
import time
import tty

TYPE_CHECKING = False  # as in typing, whose import would cost each pane some milliseconds
if TYPE_CHECKING:
    from typing import Any

PR_SET_CHILD_SUBREAPER = 36
CHUNK_BYTES = 65_536
BUFFER_MAX_BYTES = 1_048_576  # past this, the other side is not read until some of it has been written
LOG_MAX_BYTES = 5_000_000  # one older generation is kept, as agent-NN.log.1
HANGUP_AFTER_SECONDS = 0.5  # interactive shells ignore TERM; the loss of their terminal ends them
KILL_AFTER_SECONDS = 3.0
IDLE_SECONDS = 0.5  # an agent that prints nothing and computes nothing for so long waits for input
POLL_SECONDS = 0.02
DRAIN_CHUNKS = 64
EXEC_FAILED = 127
PASTE_ON, PASTE_OFF = b"\x1b[?2004h", b"\x1b[?2004l"
PASTE_START, PASTE_END = b"\x1b[200~", b"\x1b[201~"


def main(state_dir: str, agent_id: str) -> int:
    """Run the agent that launch-NN.json of `state_dir` describes until somebody stops it."""
    with open(os.path.join(state_dir, f"launch-{agent_id}.json"), encoding="utf-8") as file:
        launch = json.load(file)
    become_subreaper()
    return Supervisor(launch, Record(state_dir, agent_id), Log(launch["log"])).run()


def become_subreaper() -> None:
    """Become the parent of every descendant that loses its own, so that none can leave the tree."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


class Supervisor:
    """One agent on a terminal of its own, between it and the pane."""

    def __init__(self, launch: dict[str, Any], record: Record, log: Log) -> None:
        self.launch, self.record, self.log = launch, record, log
        self.to_agent, self.to_pane = bytearray(), bytearray()
        self.agent_pid, self.terminal = 0, -1
        self.pane_open, self.stopping = True, False
        self.prompt = Prompt(launch["prompt"], launch["readySeconds"])

    def run(self) -> int:
        signals = catch_signals()
        make_raw(0)
        self.start()
        try:
            while not self.stopping:
                self.turn(signals, self.prompt.wait_seconds())
                self.deliver_prompt()
        finally:
            self.end_tree(signals)
        self.to_pane = write_some(1, self.to_pane)
        return 0

    def start(self) -> None:
        """Start the agent; its output is read from the first byte, because the log is open already."""
        self.agent_pid, self.terminal = os.forkpty()
        if self.agent_pid == 0:
            execute(self.launch)
        copy_window_size(0, self.terminal)
        os.set_blocking(self.terminal, False)
        os.set_blocking(1, False)
        self.record.write(state="running", pid=self.agent_pid, start=start_time(self.agent_pid))

    def deliver_prompt(self) -> None:
        if self.prompt.text is None:
            return
        self.prompt.saw_work(work_done(self.agent_pid))
        if keys := self.prompt.due():
            self.to_agent += keys
            self.record.write(ready=True)

    def turn(self, signals: int, timeout: float | None) -> None:
        """Wait for one thing to happen, and do what it asks for."""
        poll = select.poll()
        poll.register(signals, select.POLLIN)
        if self.pane_open:
            poll.register(0, wanted(b"", self.to_agent))
        if self.pane_open and self.to_pane:
            poll.register(1, select.POLLOUT)
        if self.terminal >= 0:
            poll.register(self.terminal, wanted(self.to_agent, self.to_pane))
        for descriptor, event in poll.poll(None if timeout is None else timeout * 1000):
            if descriptor == signals:
                self.take_signals(os.read(signals, CHUNK_BYTES))
            elif descriptor == self.terminal:
                self.serve_terminal(event)
            elif descriptor == 0:
                self.read_pane()
            elif descriptor == 1:
                self.to_pane = write_some(1, self.to_pane)

    def serve_terminal(self, event: int) -> None:
        if event & select.POLLOUT:
            self.to_agent = write_some(self.terminal, self.to_agent)
        if event & ~select.POLLOUT and not self.read_agent():
            self.close_terminal()

    def read_agent(self) -> bool:
        """Pass on what the agent printed; False when nobody holds its terminal any more."""
        try:
            data = os.read(self.terminal, CHUNK_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.prompt.saw(data)
        self.show(data)
        return bool(data)

    def read_pane(self) -> None:
        try:
            data = os.read(0, CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.pane_open, self.stopping = False, True
        elif self.terminal >= 0 and self.agent_pid:
            self.to_agent += data

    def show(self, data: bytes) -> None:
        self.log.write(data)
        if self.pane_open:
            self.to_pane += data

    def take_signals(self, numbers: bytes) -> None:
        if signal.SIGTERM in numbers or signal.SIGHUP in numbers:
            self.stopping = True
        if signal.SIGWINCH in numbers and self.terminal >= 0:
            copy_window_size(0, self.terminal)
        if signal.SIGCHLD in numbers:
            self.reap()

    def reap(self) -> bool:
        """Take the exit status of every child that ended; False when no child is left.

        Orphans become children of a subreaper, so no child means no descendant either.
        """
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.agent_pid:
                self.agent_exited(status)

    def agent_exited(self, status: int) -> None:
        code = exit_code(status)
        self.drain()
        self.agent_pid = 0
        self.prompt.cancel()
        if not self.stopping:
            self.show(f"\r\n[agent {self.record.agent_id} exited with code {code}]\r\n".encode())
        self.record.write(state="exited", exitCode=code, stopped=self.stopping)

    def drain(self) -> None:
        """Read what the agent printed last; bounded, because what it left behind may print for ever."""
        for _ in range(DRAIN_CHUNKS):
            if self.terminal < 0 or not select.select([self.terminal], [], [], 0)[0]:
                return
            if not self.read_agent():
                self.close_terminal()

    def close_terminal(self) -> None:
        if self.terminal >= 0:
            os.close(self.terminal)
        self.terminal = -1

    def end_tree(self, signals: int) -> None:
        """TERM to every descendant, then the loss of the terminal, then KILL, until none is left."""
        began = time.monotonic()
        asked: set[tuple[int, int]] = set()
        while self.reap():
            passed = time.monotonic() - began
            if passed > HANGUP_AFTER_SECONDS:
                self.drain()
                self.close_terminal()
            ask_or_kill(descendants(os.getpid()), asked, kill=passed > KILL_AFTER_SECONDS)
            self.turn(signals, POLL_SECONDS)


class Prompt:
    """What the agent is told once it is ready, and how that is known.

    Ready is: it switched bracketed paste on; or it was idle for a moment; or `ready_seconds` passed.
    """

    def __init__(self, text: str | None, ready_seconds: float) -> None:
        self.text = text
        self.bracketed = False
        self.latest = time.monotonic() + ready_seconds
        self.deadline = time.monotonic() + IDLE_SECONDS
        self.work: object = None
        self.tail = b""

    def saw(self, data: bytes) -> None:
        """Learn from what the agent printed."""
        seen = self.tail + data
        on, off = seen.rfind(PASTE_ON), seen.rfind(PASTE_OFF)
        if on != off:
            self.bracketed = on > off
        self.tail = seen[-(len(PASTE_ON) - 1) :]
        self.postpone()

    def saw_work(self, work: object) -> None:
        """Learn from how much the agent has computed."""
        if work != self.work:
            self.work = work
            self.postpone()

    def postpone(self) -> None:
        pause = 0 if self.bracketed else IDLE_SECONDS
        self.deadline = min(time.monotonic() + pause, self.latest)

    def wait_seconds(self) -> float | None:
        """How long to wait at most before looking again; None when nothing is to be delivered."""
        left = self.deadline - time.monotonic()
        return None if self.text is None else min(max(0.0, left), IDLE_SECONDS / 4)

    def due(self) -> bytes:
        """The keys that deliver the prompt, when it is time; empty otherwise and ever after."""
        if self.text is None or time.monotonic() < self.deadline:
            return b""
        data, self.text = self.text.encode(), None
        return (PASTE_START + data + PASTE_END if self.bracketed else data) + b"\r"

    def cancel(self) -> None:
        self.text = None


class Record:
    """The agent's state in a small file, replaced whole each time."""

    def __init__(self, state_dir: str, agent_id: str) -> None:
        self.path, self.agent_id = os.path.join(state_dir, f"agent-{agent_id}.json"), agent_id
        pid = os.getpid()
        self.facts: dict[str, object] = {
            "agentId": agent_id,
            "supervisor": {"pid": pid, "start": start_time(pid)},
        }

    def write(self, **facts: object) -> None:
        self.facts.update(facts)
        temporary = f"{self.path}.tmp"
        try:
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                json.dump(self.facts, file)
            os.replace(temporary, self.path)
        except OSError:
            pass  # the run is being deleted, or the disk is full: the agent goes on


class Log:
    """What the pane printed, in a file of bounded size; a disk that fails costs the log, not the agent."""

    def __init__(self, path: str) -> None:
        self.name = os.path.basename(path)
        self.file, self.size, self.folder = -1, 0, -1
        try:
            # The folder is inside the sandbox's reach: a link there must not lead the log elsewhere.
            self.folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            self.open()
        except OSError:
            pass

    def open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
        self.file = os.open(self.name, flags, 0o600, dir_fd=self.folder)
        facts = os.fstat(self.file)
        self.size = facts.st_size
        if not stat.S_ISREG(facts.st_mode):
            os.close(self.file)
            self.file = -1

    def write(self, data: bytes) -> None:
        try:
            if self.size > LOG_MAX_BYTES or self.is_gone():
                self.rotate()
            if self.file >= 0:
                self.size += os.write(self.file, data)
        except OSError:
            pass

    def is_gone(self) -> bool:
        """Whether somebody removed the file; sandboxed code can."""
        return self.file >= 0 and os.fstat(self.file).st_nlink == 0

    def rotate(self) -> None:
        try:
            os.replace(self.name, f"{self.name}.1", src_dir_fd=self.folder, dst_dir_fd=self.folder)
        except FileNotFoundError:
            pass
        os.close(self.file)
        self.file = -1
        self.open()


def catch_signals() -> int:
    """Turn signals into bytes of a pipe, so that one loop waits for everything."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGWINCH):
        signal.signal(number, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP):
        signal.signal(number, signal.SIG_IGN)
    return reader


def make_raw(descriptor: int) -> None:
    """Pass every key through as it is: the agent's own terminal interprets them."""
    try:
        tty.setraw(descriptor)
    except termios.error:
        pass


def copy_window_size(source: int, destination: int) -> None:
    try:
        size = fcntl.ioctl(source, termios.TIOCGWINSZ, b"\0" * 8)
        fcntl.ioctl(destination, termios.TIOCSWINSZ, size)
    except OSError:
        pass


def execute(launch: dict[str, Any]) -> None:
    """Become the agent, in the child process; its words are never seen by a shell."""
    try:
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        enter(launch["cwd"], launch["within"])
        environment = {**os.environ, **launch["env"]}
        own_programs = os.path.dirname(sys.executable)
        environment["PATH"] = f"{environment.get('PATH') or os.defpath}:{own_programs}"
        os.execvpe(launch["argv"][0], launch["argv"], environment)
    except OSError as error:
        os.write(2, f"cannot start {launch['argv'][0]}: {error.strerror}\n".encode())
    finally:
        os._exit(EXEC_FAILED)


def enter(folder: str, within: str) -> None:
    """Go to a folder, without following a link on the way from `within`, whose contents are not trusted."""
    if not within:
        os.chdir(folder)
        return
    descriptor = os.open(within, os.O_RDONLY | os.O_DIRECTORY)
    for name in os.path.relpath(folder, within).split("/"):
        descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptor)
    os.chdir(descriptor)


def wanted(pending: bytes | bytearray, destination: bytearray) -> int:
    """What to wait for: room to write what is pending, and input while its destination has room."""
    events = select.POLLOUT if pending else 0
    return events | (select.POLLIN if len(destination) < BUFFER_MAX_BYTES else 0)


def write_some(descriptor: int, data: bytearray) -> bytearray:
    """Write what fits, and give back the rest; nothing is kept for a side that is gone."""
    try:
        return data[os.write(descriptor, data) :]
    except BlockingIOError:
        return data
    except OSError:
        return bytearray()


def exit_code(status: int) -> int:
    """The exit code as a shell tells it: 128 + n after a signal n."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def start_time(pid: int) -> int:
    """When a living process started, in ticks since boot; 0 for none. Pid and start name it for good."""
    fields = process_fields(pid)
    return int(fields[19]) if fields and fields[0] not in (b"Z", b"X") else 0


def process_fields(pid: int) -> list[bytes]:
    """What the kernel says about a process, from its state on; empty when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name in parentheses may hold anything, parentheses included.
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def work_done(pid: int) -> object:
    """Something that differs from one look to the next while a process or one below it computes."""
    seen = [process_fields(each) for each, _ in [(pid, 0), *descendants(pid)]]
    busy = any(fields and fields[0] in (b"R", b"D") for fields in seen)
    return time.monotonic() if busy else [(fields[11], fields[12]) for fields in seen if fields]


def descendants(root: int) -> list[tuple[int, int]]:
    """Every process below `root` as (pid, start time); one that starts meanwhile may be missing."""
    found, waiting = [], [root]
    while waiting:
        below = children(waiting.pop())
        found += [(pid, start_time(pid)) for pid in below]
        waiting += below
    return found


def children(pid: int) -> list[int]:
    """The children of all threads of a process."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += [int(child) for child in file.read().split()]
    except OSError:
        pass  # it ended meanwhile, and its children have another parent now
    return found


def ask_or_kill(tree: list[tuple[int, int]], asked: set[tuple[int, int]], *, kill: bool) -> None:
    """KILL every process of the tree, or TERM once to each that was not asked before."""
    for process in tree:
        if kill:
            send(process, signal.SIGKILL)
        elif process not in asked:
            asked.add(process)
            send(process, signal.SIGTERM)
            send(process, signal.SIGCONT)  # a stopped process takes no TERM until it goes on


def send(process: tuple[int, int], number: int) -> bool:
    """Signal exactly this process: another one that got its pid is left alone; False when it is gone."""
    pid, start = process
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if start_time(pid) != start:
            return False
        signal.pidfd_send_signal(descriptor, number)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
