"""A worker process that does pieces of work on request."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from typing import IO, TYPE_CHECKING, Any, Self

from sandbox.cache import cache_folder

if TYPE_CHECKING:
    from field.contestants import Place

LOG = "bench-peers.log"  # in the cache folder: what workers say beside their answers
END_SECONDS = 60.0  # removing the files of a large workspace takes a while


class Silent(Exception):
    """A worker did not answer in time, or ended."""


class Worker:
    """One contestant's process; a second one of the same kind is another process of its user."""

    def __init__(self, place: Place) -> None:
        cache_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        with (cache_folder() / LOG).open("ab") as log:
            self._process = subprocess.Popen(
                place.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **place.environment},
            )

    def ask(self, verb: str, *, within: float, **arguments: Any) -> dict[str, Any]:
        """One piece of work; Silent when it takes too long, and then it answers no more."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(json.dumps({"do": verb, **arguments}).encode() + b"\n")
            stdin.flush()
        except OSError:
            raise Silent("its process has ended") from None
        readable, _, _ = select.select([stdout], [], [], within)
        line = stdout.readline() if readable else b""
        if not line:
            self.kill()
            raise Silent(f"no answer in {within:.0f} s" if not readable else "its process has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def stop_asking(self) -> None:
        """Let it clear away what it made, and end by itself."""
        self._let_go(self._process.stdin)

    def close(self) -> None:
        """Wait for its end; may be called twice."""
        self.stop_asking()
        try:
            self._process.wait(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        self._let_go(self._process.stdout)

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()

    @staticmethod
    def _let_go(stream: IO[bytes] | None) -> None:
        try:
            if stream is not None:
                stream.close()
        except OSError:  # what was not sent yet finds nobody
            pass


def run_once(place: Place, code: str, *, environment: dict[str, str]) -> tuple[float, dict[str, Any]]:
    """Start a process for a single execution: seconds until its end, and its answer with its most memory."""
    started = time.perf_counter()
    done = subprocess.run(
        [*place.command, "--first", code],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **place.environment, **environment},
        check=False,
    )
    return time.perf_counter() - started, json.loads(done.stdout or b'{"error": "it ended"}')
