"""Native Python in a subprocess: no isolation, and the speed to compare with."""

import subprocess
import sys
import tempfile
from typing import ClassVar

from serving import Contestant, serve


class Native(Contestant):
    reasons: ClassVar = {
        "session": "a subprocess ends with its code",
        "keep": "a subprocess ends with its code",
        "fork": "a subprocess ends with its code",
        "create": "it has no sessions",
        "prune": "it has no sessions",
    }

    def runner(self, _wish):
        folder = tempfile.mkdtemp(dir=self.root)
        return lambda code: run(code, folder), folder


def run(code, folder):
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True, cwd=folder
    )
    return done.stdout


if __name__ == "__main__":
    serve(Native)
