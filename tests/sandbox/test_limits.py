"""Each limit, what it stops, and that the next execution works."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from sandbox import tree

MEBIBYTE = 1 << 20


def goes_on(box):
    """Whether the next execution of a sandbox is as good as its first."""
    result = box.execute("import os; print('next', os.listdir('/tmp'))")
    return (result.stdout, result.stopped_by, result.exit_code) == ("next []\n", None, 0)


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def stop(box, code, **options):
    result = box.execute(code, **options)
    assert not result.success
    assert goes_on(box)
    return result


# ---- fuel


@pytest.mark.parametrize("budget", [1, 100, 100_000, 50_000_000])
def test_fuel_stops_a_busy_loop(make_box, budget):
    result = make_box(fuel_budget=budget).execute("while True: pass")
    assert (result.stopped_by, result.exit_code, result.fuel_consumed) == ("fuel", 137, budget)
    assert "OutOfFuel" in result.stderr


def test_what_came_before_the_fuel_ran_out_is_kept(make_box):
    box = make_box(fuel_budget=200_000_000)
    result = stop(box, "print('kept', flush=True); open('f', 'w').write('x')\nwhile True: pass")
    assert (result.stdout, result.files_created, result.stopped_by) == ("kept\n", ["f"], "fuel")


def test_fuel_is_counted_alike_each_time(box):
    used = {box.execute("x = sum(range(1000))").fuel_consumed for _ in range(3)}
    assert max(used) - min(used) < 200_000


# ---- the wall clock

LONG = {
    "a busy loop": "while True: pass",
    "a busy loop that catches everything": "while True:\n  try:\n    while True: pass\n  except: pass",
    "a sleep": "import time; time.sleep(1000)",
    "a sleep of centuries": "import time; time.sleep(9e9)",
    "sleeps in a row": "import time\nwhile True: time.sleep(0.001)",
    "a select": "import select; select.select([0], [], [], 1000)",
    "a select of nothing": "import select; select.select([], [], [], 1000)",
    "a read of an empty pipe": "input()",
    "a raw read of an empty pipe": "import os; os.read(0, 1)",
    "a catastrophic regex": "import re; re.match('(a*)*$', 'a' * 50 + 'b')",
    "a large power": "10 ** 10 ** 8",
    "a long C loop": "sum(range(10 ** 12))",
    "a search in C": "max(iter(int, 1))",
    "a sort": "sorted(range(10 ** 6), key=lambda x: sum(range(10 ** 5)))",
    "files": "while True: open('f', 'w').close()",
    "output": "while True: print(1)",
    "a folder walked for ever": "import os\nwhile True: os.listdir()",
    "exits that are caught": "import sys\nwhile True:\n    try: sys.exit()\n    except SystemExit: pass",
    "an exit function": "import atexit\n@atexit.register\ndef f():\n    while True: pass",
    "an exception hook": "import sys\ndef f(*a):\n    while True: pass\nsys.excepthook = f\n1 / 0",
    "a destructor": "class C:\n    def __del__(self):\n        while True: pass\nc = C()\ndel c",
}


@pytest.mark.parametrize("code", LONG.values(), ids=LONG.keys())
@pytest.mark.parametrize("budget", [10**15, None], ids=["metered", "unmetered"])
def test_the_clock_stops(make_box, code, budget):
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stdin, os.fdopen(writing, "wb"):
        box = make_box(fuel_budget=budget, timeout_seconds=0.5)
        result = box.execute(code, stdin=stdin)
    assert (result.stopped_by, result.exit_code) == ("timeout", 137)
    assert "Timeout" in result.stderr
    assert make_box().execute("print(1)").stdout == "1\n"


def test_a_timeout_is_about_as_long_as_it_says(box):
    result = stop(box, "import time; time.sleep(1000)", timeout_seconds=0.2)
    assert 200 <= result.duration_ms < 60_000


def test_without_a_timeout_only_the_caller_stops(make_box):
    cancel = threading.Event()
    threading.Timer(0.3, cancel.set).start()
    result = stop(make_box(timeout_seconds=None), "import time; time.sleep(1000)", cancel=cancel)
    assert result.stopped_by == "cancelled"


def test_many_timeouts_at_once_end_each_in_its_own_time(make_box):
    box, results = make_box(), {}

    def run(number):
        code = f"print({number}, flush=True)\n" + (
            "while True: pass" if number % 2 else "import time; time.sleep(99)"
        )
        results[number] = box.execute(code, timeout_seconds=0.2 + 0.05 * number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {n: (r.stopped_by, r.stdout) for n, r in results.items()} == {
        n: ("timeout", f"{n}\n") for n in range(8)
    }


# ---- memory


@pytest.mark.parametrize(
    "code",
    [
        "x = bytearray(1 << 30)",
        "x = []\nwhile True: x.append(bytearray(1 << 20))",
        "x = 'a'\nwhile True: x += x",
        "x = [0]\nwhile True: x *= 2",
        "raise MemoryError",
    ],
)
def test_an_uncaught_memory_error_is_a_stop(box, code):
    result = stop(box, code)
    assert result.stopped_by == "memory"
    assert "Memory" in result.stderr
    assert result.memory_used_bytes <= 512 * MEBIBYTE


def test_a_caught_memory_error_is_no_stop(box):
    code = "try:\n    x = bytearray(1 << 30)\nexcept MemoryError:\n    print('caught')"
    result = box.execute(code)
    assert (result.stdout, result.stopped_by, result.success) == ("caught\n", None, True)


def test_a_death_at_the_limit_is_a_stop_by_memory(box):
    code = """
x = []
try:
    while True: x.append(bytearray(1 << 16))
except MemoryError:
    pass
try:
    while True: x.append(bytearray(100))
except MemoryError:
    pass
import os
os.abort()
"""
    assert stop(box, code).stopped_by == "memory"


def test_the_limit_of_memory_is_the_policys(make_box):
    box = make_box(memory_bytes=128 * MEBIBYTE)
    assert box.execute("x = bytearray(40 << 20); print(len(x))").stdout == f"{40 << 20}\n"
    result = stop(box, "x = bytearray(200 << 20)")
    assert (result.stopped_by, result.memory_used_bytes <= 128 * MEBIBYTE) == ("memory", True)


def test_a_smaller_limit_holds_for_an_interpreter_that_had_a_larger_one(make_box):
    assert make_box(memory_bytes=400 * MEBIBYTE).execute("print(1)").success
    assert stop(make_box(memory_bytes=64 * MEBIBYTE), "x = bytearray(100 << 20)").stopped_by == "memory"


def test_memory_that_a_guest_took_goes_back_to_the_host(box):
    box.execute("pass")
    before = resident_bytes()
    for _ in range(3):
        assert box.execute("x = b'x' * (200 << 20); print(len(x))").success
    deadline = time.monotonic() + 30
    while resident_bytes() - before > 150 * MEBIBYTE and time.monotonic() < deadline:
        time.sleep(0.01)
    assert resident_bytes() - before <= 150 * MEBIBYTE


# ---- output


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_flood_is_cut_and_flagged(make_box, stream):
    box = make_box(stdout_max_bytes=1000, stderr_max_bytes=500)
    limit = 1000 if stream == "stdout" else 500
    code = f"import sys\nfor _ in range(50): sys.{stream}.write('x' * 100)"
    result = box.execute(code)
    assert (result.success, len(getattr(result, stream))) == (True, limit)
    assert (result.stdout_truncated, result.stderr_truncated) == (stream == "stdout", stream == "stderr")
    assert goes_on(make_box())


def test_output_of_just_the_limit_is_not_flagged(make_box):
    result = make_box(stdout_max_bytes=10).execute("print('x' * 9)")
    assert (result.stdout, result.stdout_truncated) == ("x" * 9 + "\n", False)


def test_a_flood_costs_the_host_neither_memory_nor_disk(make_box, tmp_path):
    box = make_box(stdout_max_bytes=1000, stderr_max_bytes=1000)
    box.execute("pass")
    before, files = resident_bytes(), set(os.listdir(tmp_path))
    peak, seen, done = [0], [0], threading.Event()

    def watch():
        while not done.wait(0.01):
            peak[0] = max(peak[0], resident_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    code = "import os\nx = b'x' * 1_000_000\nfor _ in range(1000): os.write(1, x); os.write(2, x)"
    result = box.execute(code, on_output=lambda _, data: seen.__setitem__(0, seen[0] + len(data)))
    done.set()
    watcher.join()
    assert (result.success, len(result.stdout), len(result.stderr), seen[0]) == (True, 1000, 1000, 2000)
    assert peak[0] - before < 100 * MEBIBYTE
    assert set(os.listdir(tmp_path)) == files


def test_a_flood_that_is_cut_inside_a_character_is_still_text(make_box):
    assert make_box(stdout_max_bytes=3).execute("print('éé')").stdout == "é\ufffd"


# ---- open files


def test_no_more_files_are_open_at_once_than_allowed(make_box):
    box = make_box(max_open_files=10)
    code = """
held = []
try:
    for n in range(100): held.append(open(str(n), 'w'))
except OSError as error:
    print(len(held), error.strerror)
held.clear()
open('again', 'w').close()
"""
    result = box.execute(code)
    assert (result.success, result.stdout) == (True, "10 No file descriptors available\n"), result.stderr
    assert goes_on(box)


def test_files_that_a_guest_left_open_are_closed_on_the_host(box):
    box.execute("pass")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        box.execute("import os; held = [os.open('f', os.O_CREAT | os.O_RDWR) for _ in range(200)]")
    assert goes_on(box)
    deadline = time.monotonic() + 30
    while len(os.listdir("/proc/self/fd")) > before + 60 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(os.listdir("/proc/self/fd")) <= before + 60


# ---- disk


def full(box, code):
    """What the code printed after a disk that was full for it."""
    result = box.execute(code)
    assert result.success, result.stderr
    assert goes_on(box) or box.policy.workspace_max_bytes or box.policy.workspace_max_files
    return result.stdout


def test_the_workspace_holds_no_more_bytes_than_its_quota(make_box):
    box = make_box(workspace_max_bytes=100_000)
    (box.workspace / "old").write_bytes(bytes(60_000))
    code = """
try:
    with open('new', 'wb', buffering=0) as f:
        for _ in range(10): f.write(bytes(10_000))
except OSError as error:
    print(error.strerror)
import os
os.remove('old')
print(open('after', 'wb').write(bytes(50_000)))
"""
    assert full(box, code) == "No space left on device\n50000\n"
    assert sum(path.stat().st_size for path in box.workspace.iterdir()) <= 100_000


def test_overwriting_needs_no_room_beyond_the_quota(make_box):
    box = make_box(workspace_max_bytes=100_000)
    code = "for _ in range(20): open('f', 'wb').write(bytes(50_000))\nprint('done')"
    assert full(box, code) == "done\n"


@pytest.mark.parametrize(
    "make",
    [
        "open(str(n), 'w').close()",
        "os.mkdir(str(n))",
        "os.symlink('x', str(n))",
        "os.link('user_code.py', str(n))",
    ],
)
def test_the_workspace_holds_no_more_files_than_its_quota(make_box, make):
    box = make_box(workspace_max_files=20)
    code = f"import os\ntry:\n    for n in range(100): {make}\nexcept OSError as error: print(error.strerror)"
    assert full(box, code) == "No space left on device\n"
    assert len(os.listdir(box.workspace)) == 20


def test_a_quota_counts_what_is_nested_deeper_than_any_path(make_box):
    nest = """
import os
at = os.open('.', os.O_RDONLY)
for _ in range(1500):
    os.mkdir('ddd', dir_fd=at)
    below = os.open('ddd', os.O_RDONLY, dir_fd=at)
    os.close(at)
    at = below
print('deep')
"""
    assert make_box().execute(nest).stdout == "deep\n"
    box = make_box(workspace_max_files=1501)
    try:
        assert "No space left" in box.execute("import os; os.mkdir('one'); os.mkdir('more')").stderr
    finally:
        with tree.closing_fd(tree.open_folder(box.workspace)) as folder:
            tree.remove_contents(folder)  # what removes the test's own folder recurses


@pytest.mark.parametrize("place", ["/app", "/tmp"])
@pytest.mark.parametrize(
    "write",
    {
        "plain": "f = open('{0}/f', 'wb', buffering=0)\nwhile True: f.write(bytes(50_000))",
        "over and over": "while True: open('{0}/f', 'wb', buffering=0).write(bytes(50_000))",
        "unlinked": "while True:\n    f = open('{0}/f', 'wb', 0); os.remove('{0}/f'); f.write(bytes(50_000))",
        "appended": "while True: open('{0}/f', 'ab', buffering=0).write(bytes(50_000))",
        "truncated up": "open('{0}/f', 'wb').truncate(1 << 40)",
        "a hole": "f = open('{0}/f', 'wb', buffering=0); f.seek(1 << 40); f.write(b'x')",
        "positioned": "os.pwrite(os.open('{0}/f', os.O_CREAT | os.O_WRONLY), b'x', 1 << 40)",
        "empty files": "for n in range(10_000): open('{0}/' + str(n), 'w').close()",
        "folders": "for n in range(10_000): os.mkdir('{0}/' + str(n))",
        "links": "for n in range(10_000): os.symlink('x' * 200, '{0}/' + str(n))",
        "made and removed": "for n in range(10_000): os.mkdir('{0}/d'); os.rmdir('{0}/d')",
    }.items(),
    ids=lambda item: item[0],
)
def test_one_execution_writes_no_more_than_it_may(make_box, place, write):
    box = make_box(disk_write_bytes=1_000_000)
    body = write[1].format(place).replace("\n", "\n    ")
    result = box.execute(f"import os\ntry:\n    {body}\nexcept OSError as error:\n    print(error.strerror)")
    assert result.stdout == "No space left on device\n", result.stderr
    used = sum(path.lstat().st_blocks * 512 for path in box.workspace.rglob("*") if path.is_file())
    assert used <= 1_100_000
    assert make_box().execute("open('more', 'wb').write(bytes(100))").success
    assert goes_on(box)


def test_each_execution_may_write_anew(make_box):
    box = make_box(disk_write_bytes=100_000)
    for _ in range(3):
        assert box.execute("open('f', 'wb').write(bytes(90_000))").success


# ---- recursion

UNLIMITED = "import sys; sys.setrecursionlimit(10 ** 9)\n"
DEEP = {
    "python": "def f(): f()\nf()",
    "python without a limit": "import sys; sys.setrecursionlimit(10 ** 9)\ndef f(): f()\nf()",
    "repr": "x = []\nfor _ in range(10 ** 6): x = [x]\nrepr(x)",
    "a comparison": "a = b = None\nfor _ in range(10 ** 5): a, b = [a], [b]\na == b",
    "json": "import json; json.loads('[' * 10 ** 6)",
    "json out": "import json\nx = []\nfor _ in range(10 ** 5): x = [x]\njson.dumps(x)",
    "ast": "compile('(' * 10 ** 5 + ')' * 10 ** 5, 'x', 'eval')",
    "ast operators": "compile('-' * 10 ** 6 + '1', 'x', 'eval')",
    "ast attributes": "compile('a' + '.a' * 10 ** 6, 'x', 'eval')",
    "ast sums": "eval('+'.join(['1'] * 10 ** 6))",
    "literal_eval": "import ast; ast.literal_eval('[' * 10 ** 4 + ']' * 10 ** 4)",
    "pickle": "import pickle\nx = []\nfor _ in range(10 ** 5): x = [x]\npickle.dumps(x)",
    "deepcopy": "import copy\nx = []\nfor _ in range(10 ** 5): x = [x]\ncopy.deepcopy(x)",
    "marshal": "import marshal\nx = []\nfor _ in range(10 ** 5): x = [x]\nmarshal.dumps(x)",
    "a regex": "import re; re.compile('(' * 10 ** 5 + ')' * 10 ** 5)",
    "a destructor": "class C:\n    def __del__(self): C()\nC()",
    "getattr": UNLIMITED + "class C:\n    def __getattr__(self, n): return getattr(self, n)\nC().x",
    "isinstance": UNLIMITED
    + "class M(type):\n    def __instancecheck__(c, o): return isinstance(o, c)\n"
    + "class C(metaclass=M): pass\nisinstance(1, C)",
    "xml": "import xml.etree.ElementTree as e; e.fromstring('<a>' * 10 ** 5 + '</a>' * 10 ** 5)",
    "sorting": UNLIMITED
    + "import functools\nk = functools.cmp_to_key(lambda a, b: sorted([1, 2], key=k))\nsorted([1, 2], key=k)",
    "freeing": "x = None\nfor _ in range(10 ** 6): x = (x,)\ndel x\nprint('freed')",
    "generators": "def g(n):\n    yield from g(n + 1)\nlist(g(0))",
    "callbacks": UNLIMITED + "import functools\nf = lambda *a: functools.reduce(f, [1, 2])\nf()",
}


@pytest.mark.parametrize("code", DEEP.values(), ids=DEEP.keys())
def test_deep_recursion_never_kills_the_host(box, code):
    result = box.execute(code, timeout_seconds=5)
    assert result.stopped_by in (None, "trap", "memory", "fuel", "timeout")
    assert goes_on(box)


def test_deep_recursion_of_python_is_a_recursion_error(box):
    result = stop(box, DEEP["python"])
    assert (result.exit_code, result.stopped_by) == (1, None)
    assert "RecursionError" in result.stderr


def test_a_recursion_that_python_allows_works(box):
    assert box.execute("def f(n): return n and f(n - 1)\nprint(f(900))").stdout == "0\n"
