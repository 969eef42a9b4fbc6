"""Input and output of an execution."""

from __future__ import annotations

import io
import os
import threading

import pytest

FOREVER = "while True: pass"


# ---- input


@pytest.mark.parametrize("stdin", ["zwei\nä\n", "zwei\nä\n".encode(), io.BytesIO("zwei\nä\n".encode())])
def test_input_may_be_text_bytes_or_a_stream(box, stdin, run):
    assert (
        run(box, "print(ascii(input())); import sys; print(ascii(sys.stdin.read()))", stdin=stdin)
        == "'zwei'\n'\\xe4\\n'\n"
    )


def test_without_input_there_is_an_end_of_file(box):
    result = box.execute("input()")
    assert result.stderr.endswith("EOFError: EOF when reading a line\n")


def test_input_may_be_a_file_and_starts_where_its_reader_is(box, tmp_path, run):
    (tmp_path / "in").write_bytes(b"header\nbody\n")
    with (tmp_path / "in").open("rb") as stream:
        assert stream.readline() == b"header\n"
        assert run(box, "print(input())", stdin=stream) == "body\n"


def test_input_may_be_a_pipe_that_fills_while_the_code_runs(box, run):
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as source, os.fdopen(writing, "wb", buffering=0) as sink:

        def answer(_name, data):
            if data.startswith(b"more?"):
                sink.write(b"yes\n")
            elif data.startswith(b"got"):
                sink.close()

        code = "print('more?'); print('got', input())\ntry: input()\nexcept EOFError: print('end')"
        assert run(box, code, stdin=source, on_output=answer) == "more?\ngot yes\nend\n"


def test_input_may_have_a_large_descriptor_number(box, run):
    import fcntl
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    reading, writing = os.pipe()
    try:
        far = fcntl.fcntl(reading, fcntl.F_DUPFD_CLOEXEC, 2000)
        with os.fdopen(far, "rb") as source:
            os.write(writing, b"here\n")
            assert run(box, "print(input())", stdin=source) == "here\n"
    finally:
        os.close(reading)
        os.close(writing)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_ten_megabytes_of_input_arrive(box, run):
    code = "import sys, hashlib; d = sys.stdin.buffer.read(); print(len(d), hashlib.md5(d).hexdigest())"
    import hashlib

    data = bytes(range(256)) * 40_000
    assert run(box, code, stdin=data) == f"{len(data)} {hashlib.md5(data).hexdigest()}\n"


# ---- output


def test_an_unclosed_output_is_flushed(box):
    result = box.execute("import sys; sys.stdout.write('a'); sys.stderr.write('b')")
    assert (result.stdout, result.stderr) == ("a", "b")


def test_output_that_is_no_utf_8_is_shown_with_replacements(box):
    result = box.execute("import os; os.write(1, b'a\\xffb'); os.write(2, b'\\x80')")
    assert (result.stdout, result.stderr) == ("a\ufffdb", "\ufffd")


def test_a_megabyte_of_output_comes_back_whole(box, run):
    assert run(box, "print('x' * 1_000_000)") == "x" * 1_000_000 + "\n"


def test_nothing_goes_to_the_streams_of_the_host(box, capfd):
    box.execute("import sys; print('out'); print('err', file=sys.stderr); 1 / 0")
    assert capfd.readouterr() == ("", "")


# ---- output while it runs


def test_output_comes_in_order_and_is_in_the_result_too(box):
    seen = []
    code = "import sys\nfor n in range(3):\n    print(n)\n    print(-n, file=sys.stderr)"
    result = box.execute(code, on_output=lambda name, data: seen.append((name, data)))
    assert b"".join(data for name, data in seen if name == "stdout") == result.stdout.encode() == b"0\n1\n2\n"
    assert [name for name, _ in seen] == ["stdout", "stderr"] * 3
    assert {type(data) for _, data in seen} == {bytes}


def test_output_comes_while_the_code_runs(box):
    cancel = threading.Event()
    result = box.execute(f"print('started')\n{FOREVER}", on_output=lambda *_: cancel.set(), cancel=cancel)
    assert (result.stdout, result.stopped_by) == ("started\n", "cancelled")


def test_an_exception_of_the_callback_reaches_the_caller(box, run):
    def fail(_name, _data):
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        box.execute("print(1)\nwhile True: print(2)", on_output=fail)
    assert run(box, "print('next')") == "next\n"


def test_a_callback_may_execute_code_itself(box, make_box):
    other, inner = make_box("other"), []
    result = box.execute(
        "print('outer')", on_output=lambda *_: inner.append(other.execute("print('inner')").stdout)
    )
    assert (result.stdout, inner) == ("outer\n", ["inner\n"])
