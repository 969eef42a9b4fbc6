"""Monty, an interpreter of its own for a subset of Python, in a pool of worker processes."""

import tempfile
from pathlib import Path
from typing import ClassVar

from pydantic_monty import CollectString, Monty, MountDir
from serving import Cannot, Contestant, serve, timed

MOST_SESSIONS = 64
LIMITS = {"max_suspensions": 10_000_000}
NO_PACKAGES = "a subset of Python, without numpy and pandas"


class MontyPool(Contestant):
    reasons: ClassVar = {"prune": "its sessions leave nothing behind"}

    def __init__(self):
        super().__init__()
        self._pool = Monty(max_processes=MOST_SESSIONS).__enter__()

    def runner(self, wish):
        if wish.preload:
            raise Cannot(NO_PACKAGES)
        if not wish.metered:
            raise Cannot("it is unmetered already")
        folder = tempfile.mkdtemp(dir=self.root)
        mount = (
            MountDir(host_path=folder, virtual_path="/app", mode="read-write")
            if wish.files is not None
            else None
        )

        def run(code):
            with self._pool.checkout(limits=LIMITS) as session:
                return feed(session, code, mount)

        return run, folder

    def session(self, preload):
        if preload:
            raise Cannot(NO_PACKAGES)
        opened = self._pool.checkout().__enter__()
        return lambda code: feed(opened, code)

    def keep(self, code):
        target = tempfile.mkstemp(dir=self.root)[1]
        with self._pool.checkout() as session:

            def run():
                feed(session, code)
                Path(target).write_bytes(session.dump())

            return {**timed(run), "token": target}

    def revive(self, token, code):
        def run():
            with self._pool.checkout() as session:
                session.load_session(Path(token).read_bytes())
                return feed(session, code)

        return timed(run)

    def fork(self, code, then):
        with self._pool.checkout() as session:
            feed(session, code)

            def run():
                with self._pool.checkout() as copy:
                    copy.load_session(session.dump())
                    return feed(copy, then)

            return timed(run)

    def create_session(self):
        with self._pool.checkout():
            pass


def feed(session, code, mount=None):
    output = CollectString()
    session.feed_run(code, print_callback=output, mount=mount)
    return output.output


if __name__ == "__main__":
    serve(MontyPool)
