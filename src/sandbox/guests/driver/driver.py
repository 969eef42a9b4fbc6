"""Runs one job inside the guest.

The host hands over a job and hears a report. Code that runs here can change any of this, so the
host believes none of it: limits are the engine's, files are the gate's.
"""

import array
import ast
import atexit
import builtins
import gc
import importlib
import io
import linecache
import marshal
import os
import random
import struct
import sys
import types
from collections.abc import Callable
from typing import Any

CODE_PATH = "/app/user_code.py"
SEED_BYTES = 32
MOST_STATUS = 255  # that the guest's own export tells
OUTPUT_LOST = 120  # CPython's exit code when its last output cannot be written
MOST_VALUE_CHARACTERS = 10_000
REMEMBERED_TURNS = 200  # whose source a traceback can show
REHEARSALS = 20
REHEARSED_CODE = (b"print(1 + 1)", b"import json\nprint(json.dumps({'a': [1, 2.5]}))", b"1 / 0", b"a b")
WORKSPACE = "/app"
OUT_OF_MEMORY = 1  # a flag of the report
HAS_VALUE = 2

Job = dict[str, Any]
Report = tuple[int, int, str]  # exit code, flags, a text

# Imported once, when an image is made: what most programs import costs them nothing then.
COMMON_MODULES = (
    "base64",
    "collections",
    "contextlib",
    "copy",
    "csv",
    "dataclasses",
    "datetime",
    "enum",
    "functools",
    "glob",
    "hashlib",
    "io",
    "itertools",
    "json",
    "logging",
    "math",
    "operator",
    "pathlib",
    "random",
    "re",
    "shutil",
    "statistics",
    "string",
    "tempfile",
    "textwrap",
    "time",
    "traceback",
    "typing",
    "urllib.parse",
    "uuid",
)


def host_call(request: bytes) -> bytes:
    """Replaced by the guest's own channel when the driver is loaded there."""
    raise NotImplementedError(request)


def serve(source: bytes) -> tuple[int, bool]:
    """Do a job; its exit code, and that the guest stays. What that cannot say is reported first."""
    job = marshal.loads(source)
    code, flags, value = JOBS[job["kind"]](job)
    if flags or not 0 <= code <= MOST_STATUS:
        host_call(b"R" + struct.pack("<iB", code, flags) + value.encode("utf-8", "backslashreplace"))
    return code, False


def prepare(job: Job) -> Report:
    """Import what an image holds; the value names the module that failed and why."""
    for name in (*COMMON_MODULES, *job["preload"]):
        try:
            importlib.import_module(name)
        except BaseException as error:
            return 1, HAS_VALUE, f"{name}\n{type(error).__name__}: {error}"
    os.chdir(WORKSPACE)
    sys.path.insert(0, WORKSPACE)
    set_environment(job["env"])
    rehearse()
    sys.path_importer_cache.clear()  # the folders that it remembers are not those of an execution
    linecache.clearcache()
    gc.collect()
    pin()
    gc.freeze()  # a collection then leaves the pages of the image alone
    return 0, 0, ""


def rehearse() -> None:
    """Run every path of an execution until the interpreter has made its own shortcuts for it.

    What is imported and specialized here need not be in any execution, nor dirty its pages.
    """
    streams, main = (sys.stdout, sys.stderr), sys.modules["__main__"]
    for _ in range(REHEARSALS):
        sys.stdout = sys.stderr = io.StringIO()
        for code in REHEARSED_CODE:
            job = {
                "code": code,
                "args": (),
                "env": None,
                "streaming": False,
                "renew": True,
                "fed": True,
            }
            run(job)
            take_turn(job)
    sys.stdout, sys.stderr = streams
    sys.modules["__main__"] = main
    session.clear()
    turns.clear()
    fed.clear()


def pin() -> None:
    """Tell the host where all objects are; it makes them immortal.

    Counting references would write to the pages of an image again and again, and each first write
    to a page costs a copy of it.
    """
    known: set[int] = set()
    alive: list[object] = []  # until the host has been told: what is freed has no count any more
    fresh = gc.get_objects()
    while fresh:
        found = [item for item in fresh if id(item) not in known]
        known.update(map(id, found))
        alive += found
        fresh = gc.get_referents(*found)
    host_call(b"P" + array.array("I", known).tobytes())


def check(job: Job) -> Report:
    """Whether code compiles."""
    try:
        compile_code(job["code"])
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
        return 1, 0, ""
    return 0, 0, ""


def run(job: Job) -> Report:
    """Run code as `__main__` in a fresh namespace."""
    renew(job)
    set_streams(job)
    main = fresh_main()
    code, flags = guarded(lambda: exec(compile_code(job["code"]), main.__dict__))
    return finish(code), flags, ""


session: list[types.ModuleType] = []  # its `__main__`, once it has one
turns: list[None] = []  # one for each so far


def take_turn(job: Job) -> Report:
    """Run code in the namespace that the turns of a session share; the value of a last expression."""
    if job["renew"]:
        renew(job)
    set_streams(job)
    set_input(job)
    main = session_main()
    shown: list[str] = []
    code, flags = guarded(lambda: run_cell(job["code"], main.__dict__, shown))
    flush_output()
    return code, flags | (HAS_VALUE if shown else 0), "".join(shown)


def session_main() -> types.ModuleType:
    """The `__main__` of a session, new or back in its place after code that replaced it."""
    if not session:
        session.append(fresh_main())
    sys.modules["__main__"] = session[0]
    return session[0]


def run_cell(source: bytes, namespace: dict[str, Any], shown: list[str]) -> None:
    """Execute a turn's code; what its last expression gives is shown, unless it is None."""
    name = remember_source(source)
    tree = ast.parse(as_text(source), name)
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        tree.body.pop()
    exec(compile(tree, name, "exec", dont_inherit=True), namespace)
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), name, "eval", dont_inherit=True), namespace)
        if value is not None:
            builtins.__dict__["_"] = value
            text = repr(value)
            cut = len(text) > MOST_VALUE_CHARACTERS
            shown.append(f"{text[:MOST_VALUE_CHARACTERS]}..." if cut else text)


def remember_source(source: bytes) -> str:
    """A file name of the turn's own, under which tracebacks find its lines, in later turns too."""
    turns.append(None)
    name = f"<turn {len(turns)}>"
    text = source.decode("utf-8", "replace")
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    linecache.cache.pop(f"<turn {len(turns) - REMEMBERED_TURNS}>", None)
    return name


def fresh_main() -> types.ModuleType:
    """A new `__main__`, as if the interpreter had just started on the file."""
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=CODE_PATH, __builtins__=builtins)
    sys.modules["__main__"] = main
    return main


def compile_code(source: bytes) -> types.CodeType:
    """Compile the code as the file that it is kept in."""
    return compile(as_text(source), CODE_PATH, "exec", dont_inherit=True)


def as_text(source: bytes) -> str | bytes:
    """The code as the text that the host had, whatever encoding a comment in it names."""
    try:
        return source.decode("utf-8-sig")  # some editors put a mark in front of a file
    except UnicodeDecodeError:
        return source  # a lone surrogate; the compiler says so best


def guarded(action: Callable[[], object]) -> tuple[int, int]:
    """Do it as the interpreter would at the top level: an exit code, and the flags of the report."""
    try:
        action()
    except SystemExit as stop:
        return exit_code(stop.code), 0
    except BaseException as error:
        show(error)
        return 1, OUT_OF_MEMORY if isinstance(error, MemoryError) else 0
    return 0, 0


def exit_code(code: object) -> int:
    """What `sys.exit(code)` means."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code if -(2**31) <= code < 2**31 else code & 0xFF
    try:
        print(code, file=sys.stderr)
    except BaseException:
        return 1
    return 1


def show(error: BaseException) -> None:
    """Print a traceback without the driver's own frames."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals is globals():
        trace = trace.tb_next
    error.__traceback__ = trace
    try:
        sys.excepthook(type(error), error, trace)
    except BaseException:
        sys.__excepthook__(type(error), error, trace)


def finish(code: int) -> int:
    """Do what an interpreter does at its end: exit functions, then the last output."""
    try:
        atexit._run_exitfuncs()
    except BaseException as error:
        show(error)
    return code if flush_output() else code or OUTPUT_LOST


def flush_output() -> bool:
    """Write out what is buffered; False where that fails."""
    flushed = True
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:
            flushed = False
    return flushed


def renew(job: Job) -> None:
    """Give the interpreter its own randomness, temporary names and environment."""
    random.seed(int.from_bytes(os.urandom(SEED_BYTES)))  # bytes would be hashed first
    legacy = sys.modules.get("numpy.random.mtrand")
    if legacy is not None:  # without a seed it would make one at twelve times the cost
        legacy.seed(array.array("I", os.urandom(SEED_BYTES)))
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None:
        tempfile.__dict__["_name_sequence"] = None
    if job["env"] is not None:  # else it is that of the image
        set_environment(job["env"])


def set_streams(job: Job) -> None:
    """Give the code its arguments, and a caller that listens its output line by line."""
    sys.argv = [CODE_PATH, *job["args"]]
    stdout = sys.stdout
    if isinstance(stdout, io.TextIOWrapper) and stdout.line_buffering != job["streaming"]:
        stdout.reconfigure(line_buffering=job["streaming"])


fed: list[None] = []  # one where the caller gave the last turn some input


def set_input(job: Job) -> None:
    """Have a turn read its own input, not what an earlier one left unread."""
    stdin = sys.stdin
    if fed and stdin is sys.__stdin__ and isinstance(stdin, io.TextIOWrapper):
        raw = io.FileIO(0, closefd=False)
        sys.stdin = io.TextIOWrapper(io.BufferedReader(raw), stdin.encoding, stdin.errors)
        sys.__stdin__ = sys.stdin  # type: ignore[misc]  # the interpreter's own name for it
    fed[:] = [None] if job["fed"] else []


environment: dict[str, str] = {}  # what os.environ was last set to


def set_environment(env: dict[str, str]) -> None:
    """Make `os.environ` exactly this."""
    if env != environment:
        for name in set(os.environ) - set(env):
            del os.environ[name]
        os.environ.update(env)
        environment.clear()
        environment.update(env)


JOBS = {"prepare": prepare, "check": check, "run": run, "turn": take_turn}
