"""A guest stays in its world: its folders, its memory, its process."""
# ruff: noqa: E501 - a hostile program stays on one line where it can

from __future__ import annotations

import fcntl
import os
import socket
import stat

import pytest

from sandbox import tree

SECRET = "the host's own words"
ATTEMPT = """
import os, sys
def attempt(act, *args, **options):
    try:
        return act(*args, **options)
    except Exception as error:
        return error
def reached(act, *args, **options):
    result = attempt(act, *args, **options)
    if not isinstance(result, Exception):
        print('REACHED', act, args, options, result)
"""


def try_all(box, code, **options):
    result = box.execute(f"{ATTEMPT}\n{code}\nprint('tried')", **options)
    assert result.exit_code == 0, result.stderr
    assert SECRET not in result.stdout + result.stderr
    assert result.stdout == "tried\n", result.stdout


def works(box):
    return box.execute("import os; print('fine', os.listdir('/tmp'))").stdout == "fine []\n"


# ---- other folders

OUTSIDE = {
    "absolute paths": """
for path in ('/etc/passwd', '/proc/self/environ', '/proc/self/mem', '/dev/null', '/dev/zero', '/root', '/home', '/sys', '/var'):
    reached(open, path); reached(os.listdir, path); reached(os.stat, path)
""",
    "dots": """
for n in range(1, 12):
    for start in ('', '/app/', '/tmp/', '/data/', '/usr/local/lib/', './', 'sub/'):
        for end in ('etc/passwd', 'secret', 'other/secret', 'secret.txt'):
            reached(open, start + '../' * n + end)
    reached(os.listdir, '/app/' + '../' * n + 'other')
""",
    "the parent": "reached(os.listdir, '..'); reached(os.listdir, '/app/..'); reached(os.stat, '/app/../secret')",
    "absolute links": """
for n, target in enumerate(('/etc/passwd', '/', '/etc', '/proc/self', HOST)):
    attempt(os.symlink, target, f'l{n}')
    reached(open, f'l{n}'); reached(os.listdir, f'l{n}'); reached(open, f'l{n}/passwd'); reached(open, f'l{n}/secret')
""",
    "relative links": """
for n, target in enumerate(('..', '../..', '../secret', '../other', '../../../../../../etc/passwd')):
    attempt(os.symlink, target, f'l{n}')
    for below in ('', '/secret', '/other/secret', '/passwd', '/etc/passwd'):
        reached(open, f'l{n}{below}')
    reached(os.listdir, f'l{n}')
""",
    "links through folders": """
os.makedirs('a/b/c', exist_ok=True)
attempt(os.symlink, 'a/b/c', 'deep'); attempt(os.symlink, 'deep/../../../..', 'out'); attempt(os.symlink, 'out/..', 'outer')
for way in ('out', 'outer', 'deep/../../../..', 'deep/../../../../..', 'outer/..'):
    reached(open, way + '/secret'); reached(open, way + '/other/secret')
    for name in attempt(os.listdir, way) if isinstance(attempt(os.listdir, way), list) else []:
        if name in ('secret', 'other'): print(way, name)
""",
    "a folder moved while it is open": """
os.makedirs('x/y', exist_ok=True)
fd = os.open('x/y', os.O_RDONLY)
os.rename('x/y', 'z')
reached(os.open, '../secret', os.O_RDONLY, dir_fd=fd); reached(os.open, '../../secret', os.O_RDONLY, dir_fd=fd)
""",
    "a working directory": """
for path in ('..', '/', '/etc', '../..'):
    attempt(os.chdir, path)
    reached(open, 'secret'); reached(open, 'etc/passwd'); reached(open, 'passwd')
os.chdir('/app')
""",
    "moves": """
open('mine', 'w').write('x')
for target in ('../stolen', '/stolen', '/etc/stolen', '../../stolen', HOST + '/stolen'):
    reached(os.rename, 'mine', target); reached(os.link, 'mine', target); reached(os.symlink, 'x', target)
    reached(os.mkdir, target); reached(open, target, 'w')
for source in ('../secret', HOST + '/secret', '/etc/passwd'):
    reached(os.rename, source, 'got'); reached(os.link, source, 'got')
""",
    "descriptors that were never opened": """
for n in range(3, 300):
    reached(os.listdir, n) if n > 20 else None
    reached(os.write, n, b'x'); reached(os.ftruncate, n, 0)
    reached(os.open, '../secret', os.O_RDONLY, dir_fd=n)
for n in (-1, -2, 1 << 30, -(1 << 31)):
    reached(os.read, n, 1); reached(os.close, n); reached(os.dup, n)
""",
}


@pytest.mark.parametrize("code", OUTSIDE.values(), ids=OUTSIDE.keys())
def test_nothing_outside_is_reached_by(box, tmp_path, code):
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "secret").write_text(SECRET)
    try_all(box, f"HOST = {str(tmp_path)!r}\n{code}")
    assert sorted(os.listdir(tmp_path)) == ["other", "secret", "workspace"]
    assert (tmp_path / "secret").read_text() == SECRET


def test_links_of_the_host_that_lead_outside_are_not_followed(box, tmp_path):
    (tmp_path / "secret").write_text(SECRET)
    for name, target in (("a", "/etc/passwd"), ("b", tmp_path / "secret"), ("c", "../secret"), ("d", "..")):
        (box.workspace / name).symlink_to(target)
    try_all(
        box,
        "for n in 'abcd':\n    reached(open, n); reached(open, n, 'w'); reached(os.listdir, n); reached(os.stat, n)",
    )
    assert (tmp_path / "secret").read_text() == SECRET


def test_one_workspace_is_not_seen_from_another(make_box):
    one, other = make_box("one"), make_box("other")
    one.execute("open('mine', 'w').write('x'); open('/tmp/mine', 'w').write('x')")
    try_all(other, "for p in ('mine', '/tmp/mine', '../one/mine', '/app/../one/mine'): reached(open, p)")


def test_nothing_of_the_host_is_told(box, monkeypatch):
    monkeypatch.setenv("HOST_SECRET", SECRET)
    code = "import platform; text = repr((dict(os.environ), sys.argv, sys.path, sys.flags, os.getcwd()))\nprint(text)"
    told = box.execute(ATTEMPT + code).stdout
    assert SECRET not in told
    assert str(box.workspace) not in told
    assert os.uname().nodename not in told or len(os.uname().nodename) < 4


def test_the_library_is_read_only(box):
    try_all(
        box,
        """
lib = '/usr/local/lib'
for name in os.listdir(lib):
    reached(open, f'{lib}/{name}', 'r+'); reached(os.remove, f'{lib}/{name}'); reached(os.utime, f'{lib}/{name}', (1, 1))
    reached(os.rename, f'{lib}/{name}', f'{lib}/x'); reached(os.link, f'{lib}/{name}', '/app/x')
reached(open, lib + '/sitecustomize.py', 'w'); reached(os.mkdir, lib + '/x'); reached(os.symlink, 'x', lib + '/y')
""",
    )


# ---- other processes, other machines


@pytest.mark.parametrize(
    "code",
    {
        "fork": "reached(getattr(os, 'fork', None))",
        "exec": "[reached(getattr(os, n, None), '/bin/sh', ['sh'], {}) for n in ('execve', 'posix_spawn', 'posix_spawnp')]",
        "system": "[reached(getattr(os, n, None), 'id') for n in ('system', 'popen')]",
        "subprocess": "import subprocess; reached(subprocess.run, ['/bin/sh', '-c', 'id']); reached(subprocess.Popen, 'id', shell=True)",
        "multiprocessing": "import multiprocessing; reached(multiprocessing.Process(target=print).start)",
        "threads": "import threading; reached(threading.Thread(target=print).start)",
        "signals": "import signal; [reached(getattr(m, n, None), 1, 9) for m in (os, signal) for n in ('kill', 'killpg', 'raise_signal')]",
        "sockets": "import socket; reached(socket.create_connection, ('127.0.0.1', PORT), 1)",
        "servers": "import socket\ns = attempt(socket.socket)\nif not isinstance(s, Exception): reached(s.bind, ('127.0.0.1', 0))",
        "unix sockets": "import socket\nreached(lambda: socket.socket(socket.AF_UNIX).connect('/app/s'))",
        "names": "import socket; [reached(getattr(socket, n, None), 'localhost', 80) for n in ('getaddrinfo', 'gethostbyname')]",
        "http": "import urllib.request; reached(urllib.request.urlopen, f'http://127.0.0.1:{PORT}/', None, 1)",
        "libraries": "import ctypes; reached(ctypes.CDLL, None); reached(ctypes.CDLL, 'libc.so.6')",
        "privileges": "[reached(getattr(os, n), 0) for n in ('setuid', 'setgid', 'nice', 'chroot') if hasattr(os, n)]",
        "devices": "reached(os.mkfifo, '/app/fifo') if hasattr(os, 'mkfifo') else 0; reached(os.mknod, '/app/n') if hasattr(os, 'mknod') else 0",
        "modes": "open('f', 'w').close(); attempt(os.chmod, 'f', 0o4777)",
    }.items(),
    ids=lambda item: item[0],
)
def test_there_is_no_way_to(box, code):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        try_all(box, f"PORT = {server.getsockname()[1]}\n{code[1]}")
        with pytest.raises(BlockingIOError):
            server.accept()
    assert not any(stat.S_IMODE(path.stat().st_mode) & 0o6000 for path in box.workspace.iterdir())
    assert works(box)


# ---- things of the host that are no files


def test_a_fifo_or_a_device_of_the_host_does_not_block(box):
    os.mkfifo(box.workspace / "fifo")
    (box.workspace / "link").symlink_to("fifo")
    server = socket.socket(socket.AF_UNIX)
    at = os.getcwd()
    os.chdir(box.workspace)  # the path of a socket is short
    try:
        server.bind("socket")
    finally:
        os.chdir(at)
    code = "for n in ('fifo', 'link', 'socket', './fifo', 'fifo/'):\n    for m in ('r', 'w', 'r+', 'a'): reached(open, n, m)"
    try_all(box, code, timeout_seconds=20)
    server.close()


# ---- the streams of the host


def test_a_guest_prints_nothing_on_the_host(box, capfd):
    box.execute(
        "import os, sys\nfor n in range(3):\n    try: os.write(n, b'x' * 100)\n    except OSError: pass\nsys.stdout.flush()"
    )
    box.execute("import os; os.abort()")
    box.execute("import os; os.close(1); os.close(2); 1 / 0")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "code",
    [
        "import os; [os.close(n) for n in (0, 1, 2)]",
        "import os; [os.close(n) for n in range(20) if n > 2]",
        "import os; os.close(1); f = open('one', 'w'); print('lost')",
        "import sys; sys.stdout = sys.stderr = None; print('x'); 1 / 0",
        "import sys; sys.stdout.close(); sys.stderr.close()",
        "import sys; sys.stdout.detach()",
        "import sys\nclass S:\n    def write(self, x): raise MemoryError\n    flush = write\nsys.stdout = sys.stderr = S(); 1 / 0",
    ],
)
def test_streams_that_are_closed_or_replaced_harm_nobody(box, code):
    result = box.execute(code)
    assert result.stopped_by in (None, "memory")
    assert works(box)


# ---- memory

# numpy makes an array of any address, so a guest reads and writes its whole memory as it likes.
WILD_PRELUDE = """
import numpy
class At:
    def __init__(self, address, size):
        self.__array_interface__ = {'data': (address, False), 'shape': (size,), 'typestr': '|u1', 'version': 3}
def memory(address, size):
    return numpy.asarray(At(address, size))
"""
WILD = {
    "a read of address 0": "bytes(memory(8, 1 << 20))",
    "a read past the end": "memory(0x7fff0000, 100).sum()",
    "a read far past the end": "memory(0xfffffff0, 15).sum()",
    "a write past the end": "memory(0x7fff0000, 100)[:] = 1",
    "a write over the end": "memory(0xffffff00, 0x1000)[:] = 1",
    "a write over all": "memory(8, 40 << 20)[:] = 0xff",
    "a copy of nonsense": "memory(8, 20 << 20)[:] = memory(10 << 20, 20 << 20)",
    "types rewritten": "memory(id(int), 400)[:] = 0x41; 1 + 1",
    "functions rewritten": "memory(id(len), 200)[:] = 77; len([])",
    "every word a call": "memory(8, 40 << 20).view(numpy.uint32)[:] = 1234",
    "the stack": "memory(1 << 16, 8 << 20)[:] = 0x41; [len(str(n)) for n in range(1000)]",
    "the heap": "memory(id(object()) - (1 << 20), 2 << 20)[:] = 0x41; [[] for _ in range(1000)]",
    "strides": "numpy.lib.stride_tricks.as_strided(numpy.zeros(1, 'u1'), (1 << 31,), (1,))[::4096] = 1",
    "every object": "import gc\nfor o in gc.get_objects(): memory(id(o), 4)[:] = 0\ngc.collect()",
}


@pytest.mark.parametrize("code", WILD.values(), ids=WILD.keys())
def test_wild_memory_ends_the_guest_and_nothing_else(make_box, code):
    box = make_box(preload=("numpy",), timeout_seconds=10.0)
    result = box.execute(f"{WILD_PRELUDE}\n{code}")
    assert result.stopped_by in (None, "trap", "timeout", "memory", "fuel")
    assert works(box)


BOMBS = {
    "lists": "x = []\nwhile True: x = [x, x * 2]",
    "strings": "x = 'x' * (1 << 28); y = [x + str(n) for n in range(100)]",
    "a zip bomb": "import io, zlib; d = zlib.compress(bytes(1 << 26)); x = [zlib.decompress(d) for _ in range(100)]",
    "a bz2 bomb": "import bz2; d = bz2.compress(bytes(1 << 24)); x = [bz2.decompress(d) for _ in range(1000)]",
    "integers": "x = 1\nwhile True: x <<= 1 << 24",
    "an array": "import array; x = array.array('b', bytes(1 << 20)) * 10_000",
    "a range made a list": "list(range(10 ** 12))",
    "a format": "'%' + '9' * 3 + 'd'; format(1, '1000000000d'); '{:2000000000}'.format(1)",
    "xml entities": "import xml.etree.ElementTree as e\ne.fromstring('<!DOCTYPE a [<!ENTITY a \"' + 'x' * 100 + '\">' + "
    "''.join(f'<!ENTITY {c} \"' + f'&{p};' * 20 + '\">' for p, c in zip('abcdef', 'bcdefg')) + ']><a>&g;</a>')",
    "tuples": "x = ()\nfor _ in range(10 ** 7): x = (x, x)\nhash(x)",
}


@pytest.mark.parametrize("code", BOMBS.values(), ids=BOMBS.keys())
def test_a_bomb_stays_inside(make_box, code):
    box = make_box(timeout_seconds=4.0, memory_bytes=256 << 20)
    result = box.execute(code)
    assert not result.success
    assert result.memory_used_bytes <= 256 << 20
    assert works(box)


# ---- nothing of one execution in the next


def test_the_next_execution_finds_nothing_of_the_last_in_its_memory(make_box):
    box = make_box(preload=("numpy",))
    mark = "bytes(reversed(b'kcatsyah-eht-ni-eldeen'))"
    leave = f"x = [{mark} * 10 + b'.' for _ in range(1000)]"
    size = box.execute("pass").memory_used_bytes
    search = f"""{WILD_PRELUDE}
found, mark = 0, {mark}
for page in range(1 << 16, {size}, 1 << 16):
    found += bytes(memory(page, 1 << 16)).count(mark)
print(found)
"""
    assert int(box.execute(f"{leave}\n{search}").stdout) > 5000
    for _ in range(5):
        box.execute(leave)
        assert int(box.execute(search).stdout) < 10


def test_what_one_execution_wrote_anywhere_is_gone_for_the_next(make_box):
    box = make_box(preload=("numpy",))
    digest = f"""{WILD_PRELUDE}
import zlib
print([zlib.crc32(bytes(memory(page, 1 << 16))) for page in range(1 << 16, 40 << 20, 1 << 16)])
"""
    before = box.execute(digest).stdout
    for spoil in ("memory(1 << 22, 1 << 20)[:] = 7", "memory(30 << 20, 9)[:] = 7", "x = bytes(5 << 20)"):
        box.execute(f"{WILD_PRELUDE}\n{spoil}")
        after = box.execute(digest).stdout
        different = [n for n, (a, b) in enumerate(zip(eval(before), eval(after), strict=True)) if a != b]
        assert len(different) < 40, different


def test_what_one_execution_changes_in_the_interpreter_is_gone_for_the_next(box):
    changes = [
        "import builtins; builtins.print = builtins.open = builtins.len = None",
        "import sys; sys.modules.clear(); sys.path.clear(); sys.meta_path.clear()",
        "import sys; sys.stdout = sys.stderr = sys.stdin = None",
        "import json; json.dumps = lambda *a: 'poisoned'",
        "import os; os.environ['X'] = '1'; os.listdir = lambda *a: ['poisoned']; os.chdir('/tmp')",
        "import gc; gc.disable(); import sys; sys.setrecursionlimit(20)",
        "import signal, sys; sys.settrace(lambda *a: None); sys.setprofile(lambda *a: None)",
        "import _sandbox_driver as d; d.serve = d.run = d.guarded = None; d.JOBS.clear()",
        "import sys; d = sys.modules['_sandbox_driver']; d.__dict__.clear()",
        "import _host; _host.call = None",
        "import _reactor; _reactor._run_turn = lambda *a: 1 / 0",
        "import random, uuid; random.seed(1); random.random = lambda: 4",
        "import time; time.time = lambda: 0; import locale, warnings; warnings.simplefilter('error')",
        "import decimal; decimal.getcontext().prec = 1; int.__doc__",
        "import sys; sys.setswitchinterval(9); sys.set_int_max_str_digits(0); sys.excepthook = None",
        "import atexit; atexit.register(lambda: print('late')); import os; os._exit(0)",
        "import codecs; codecs.register(lambda n: 1 / 0); codecs.register_error('strict', lambda e: ('', 9))",
        "class M(type): pass\nimport abc, typing; abc.ABCMeta.register = None; import copyreg; copyreg.dispatch_table.clear()",
    ]
    probe = (
        "import os, sys, json, gc, random, time, decimal, _sandbox_driver\n"
        "print(os.getcwd(), os.listdir(), json.dumps([1]), gc.isenabled(), sys.getrecursionlimit(), "
        "'X' in os.environ, random.random() != 4, time.time() > 1, decimal.getcontext().prec, int('7') + len('ab'), "
        "sys.gettrace(), len(sys.path), sys.get_int_max_str_digits())"
    )
    expected = box.execute(probe).stdout
    assert expected.startswith("/app ['user_code.py'] [1] True 1000 False True True 28 9 None ")
    for change in changes:
        box.execute(change)
        result = box.execute(probe)
        assert (result.stdout, result.stderr, result.exit_code) == (expected, "", 0), change


def test_code_left_in_the_workspace_runs_only_when_it_is_imported(box):
    names = [
        "sitecustomize.py",
        "usercustomize.py",
        "_sandbox_driver.py",
        "_host.py",
        "encodings.py",
        "site.py",
    ]
    for name in names:
        (box.workspace / name).write_text("print('POISON'); open('/app/poisoned', 'w')")
    (box.workspace / "x.pth").write_text("import os; print('POISON')")
    (box.workspace / "__main__.py").write_text("print('POISON')")
    result = box.execute("print('clean')")
    assert (result.stdout, result.files_created) == ("clean\n", [])


def test_a_module_of_the_workspace_shadows_only_for_those_who_import_it_anew(box):
    for name in ("json", "random", "os", "struct", "marshal", "numpy", "colorsys"):
        (box.workspace / f"{name}.py").write_text("POISON = True")
    probe = "import json, random, os, struct, marshal, sys; print(json.dumps([os.sep, hasattr(json, 'POISON')]), random.random() < 1)"
    assert box.execute(probe).stdout == '["/", false] True\n'
    assert box.execute("import colorsys; print(colorsys.POISON)").stdout == "True\n"


# ---- the code file


@pytest.mark.parametrize(
    "leave",
    [
        "os.remove('user_code.py')",
        "os.remove('user_code.py'); os.mkdir('user_code.py')",
        "os.remove('user_code.py'); os.mkdir('user_code.py'); open('user_code.py/x', 'w').close()",
        "os.remove('user_code.py'); os.symlink('target', 'user_code.py')",
        "os.remove('user_code.py'); os.symlink('../secret', 'user_code.py')",
        "os.remove('user_code.py'); os.symlink('user_code.py', 'user_code.py')",
        "os.link('user_code.py', 'second')",
        "os.truncate('user_code.py', 10 ** 6)",
        "open('user_code.py', 'w').write('print(666)')",
    ],
)
def test_whatever_is_left_at_the_name_of_the_code_the_next_execution_runs_its_own(box, tmp_path, leave):
    (tmp_path / "secret").write_text(SECRET)
    (box.workspace / "target").write_text("kept")
    first = f"import os; {leave}"
    assert box.execute(first).success
    result = box.execute("print('own')\n1 / 0")
    assert (result.stdout, result.exit_code) == ("own\n", 1)
    assert (tmp_path / "secret").read_text() == SECRET
    assert (box.workspace / "target").read_text() == "kept"
    if (box.workspace / "second").exists():
        assert (box.workspace / "second").read_text() == first


def test_a_fifo_at_the_name_of_the_code_gives_way(box):
    os.mkfifo(box.workspace / "user_code.py")
    assert box.execute("print('own')").stdout == "own\n"
    assert (box.workspace / "user_code.py").read_text() == "print('own')"


def test_what_a_killed_execution_left_of_its_code_is_unseen_and_goes_with_the_next(box, killed_at):
    execute = "from sandbox import create_sandbox; create_sandbox(workspace=sys.argv[1]).execute('1')"
    box.warm_up()
    killed_at("replace", execute, box.workspace)
    (left,) = os.listdir(box.workspace)
    with tree.closing_fd(os.open(box.workspace / left, os.O_RDONLY)) as fd:
        fcntl.flock(fd, fcntl.LOCK_EX)  # as though it were still being written
        probe = f"import os; print(os.listdir('.'), os.path.lexists({left!r}))"
        assert box.execute(probe).stdout == "['user_code.py'] False\n"
        assert left in os.listdir(box.workspace)
    (box.workspace / "user_code.py").unlink()
    assert box.execute("print('own')").stdout == "own\n"
    assert os.listdir(box.workspace) == ["user_code.py"]


def test_the_code_is_kept_where_the_workspace_is_a_link(make_box, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert make_box("link").execute("print('own')").stdout == "own\n"
    assert os.listdir(tmp_path / "real") == ["user_code.py"]
