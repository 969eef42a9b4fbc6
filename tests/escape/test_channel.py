"""The channel between host and driver takes anything and gives nothing away."""
# ruff: noqa: E501 - a hostile program stays on one line where it can

from __future__ import annotations

import pytest


def works(box):
    return box.execute("print('fine')").stdout == "fine\n"


NOISE = {
    "garbage": "for d in (b'', b'?', b'D' * 99, b'X' * 5000, bytes(range(256))):\n    attempt(call, d)",
    "wrong types": "for d in (None, 5, 'D', [], object(), bytearray(b'D'), memoryview(b'D')):\n    attempt(call, d)",
    "a huge frame": "attempt(call, b'R' + bytes(200 << 20))",
    "the driver": "for _ in range(2000): attempt(call, b'D')",
    "reports in a row": "for n in range(5000): call(b'R' + n.to_bytes(4, 'little') + b'\\0' + b'x' * 100)",
    "a report without a body": "call(b'R'); call(b'R' + b'x')",
    "pins": "for d in (b'P', b'P' * 100, b'P' + bytes(64), b'S', b'K', b'V'): attempt(call, d)",
    "large reports": "for _ in range(50): call(b'R' + bytes((1 << 20) - 10))",
}


@pytest.mark.parametrize("code", NOISE.values(), ids=NOISE.keys())
def test_noise_on_the_channel_harms_nobody(box, code):
    prelude = "import _host\ncall = _host.call\ndef attempt(f, *a):\n    try: return f(*a)\n    except BaseException as e: return e\n"
    result = box.execute(f"{prelude}{code}\nprint('after')")
    assert result.stopped_by in (None, "memory")
    assert result.stdout in ("after\n", "")
    assert works(box)


@pytest.mark.parametrize(
    ("report", "told"),
    [
        ("b''", (3, None, None)),
        ("b'xyz'", (3, None, None)),
        ("struct.pack('<iB', 7, 0)", (7, None, None)),
        ("struct.pack('<iB', -5, 255)", (-5, "memory", "")),
        ("struct.pack('<iB', 0, 2) + b'xyz'", (0, None, "xyz")),
    ],
)
def test_a_false_report_tells_no_more_than_an_ending_of_its_own(box, report, told):
    result = box.execute(f"import _host, struct\n_host.call(b'R' + {report})\nraise SystemExit(3)")
    assert (result.exit_code, result.stopped_by, result.value) == told
    assert result.files_created == []
    assert works(box)


def test_a_false_report_cannot_undo_a_stop(make_box):
    box = make_box(fuel_budget=300_000_000)
    result = box.execute("import _host\n_host.call(b'R' + bytes(5))\nwhile True: pass")
    assert (result.stopped_by, result.success) == ("fuel", False)


def test_a_false_report_cannot_undo_an_exit(box):
    result = box.execute("import _host, os\n_host.call(b'R' + bytes(5))\nos._exit(9)")
    assert (result.exit_code, result.success) == (9, False)


def test_the_job_says_nothing_of_the_host(box):
    result = box.execute("import sys\nprint(sys._getframe(3).f_locals)")
    assert str(box.workspace) not in result.stdout
    assert "'code': b'import" in result.stdout, result


@pytest.mark.parametrize(
    "code",
    [
        "d.finish = lambda c: 1 / 0",
        "d.show = lambda e: 1 / 0\n1 / 0",
        "d.guarded = None",
        "d.exit_code = lambda c: 'x'\nraise SystemExit(1)",
        "d.struct.pack = lambda *a: b''",
        "d.struct.pack = lambda *a: b'x' * (50 << 20)",
        "d.finish = lambda c: 10 ** 100",
        "d.host_call = lambda r: None",
        "d.__dict__.clear()",
        "import sys; sys.modules.clear()",
        "import sys; sys.modules['__main__'] = None; raise SystemExit(2)",
        "class E(SystemExit):\n    code = property(lambda s: 1 / 0)\nraise E",
        "class E(Exception):\n    def __str__(self): raise MemoryError\nraise E",
        "class S(str):\n    def __str__(self): raise KeyboardInterrupt\nraise SystemExit(S('x'))",
        "raise SystemExit(10 ** 50)",
        "raise SystemExit(2 ** 31)",
        "class I(int):\n    def __and__(self, o): return 'x'\n    __le__ = __lt__ = __ge__ = lambda s, o: False\nraise SystemExit(I(7))",
        "import atexit; atexit.register(lambda: atexit._clear() or 1 / 0)",
        "import sys; sys.excepthook = lambda *a: 1 / 0\n1 / 0",
        "import builtins; builtins.isinstance = builtins.print = None\n1 / 0",
    ],
)
def test_a_driver_that_was_tampered_with_ends_in_a_result(box, code):
    result = box.execute(f"import _sandbox_driver as d\n{code}", timeout_seconds=10)
    assert isinstance(result.exit_code, int)
    assert works(box)
