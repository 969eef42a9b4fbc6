"""Guests that use files in ways that could reach, cost or confuse the host."""
# ruff: noqa: E501 - a hostile program stays on one line where it can

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from sandbox import create_session_sandbox

SECONDS = 20.0 if os.environ.get("SANDBOX_SOAK") else 2.0


def test_folders_that_are_read_within_one_another_and_removed_are_all_seen(box):
    code = """
import os
for n in range(400):
    os.makedirs(f'many/{n}')
    open(f'many/{n}/x', 'w').close()
seen = 0
for entry in os.scandir('many'):
    seen += 1
    for inner in os.scandir(entry.path): os.unlink(inner.path)
    os.rmdir(entry.path)
print(seen, os.listdir('many'))
"""
    assert box.execute(code).stdout == "400 []\n"


MOVE = """
import os
os.makedirs('x', exist_ok=True)
while True:
    for source, target in (('x', 'a/b'), ('a/b', 'x')):
        try: os.rename(source, target)
        except OSError: pass
"""
TURN_INTO_LINK = """
import os
os.makedirs('a', exist_ok=True)
while True:
    for act in ((os.rename, 'a', 'aside'), (os.symlink, '..', 'a'), (os.remove, 'a'), (os.rename, 'aside', 'a')):
        try: act[0](*act[1:])
        except OSError: pass
"""


def test_the_report_of_a_moved_folder_names_nothing_outside_of_the_workspace(make_box, tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "of-the-host").touch()
    boxes = [make_box(timeout_seconds=SECONDS, fuel_budget=None) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda box, code: box.execute(code), boxes, (MOVE, TURN_INTO_LINK)))
    assert [result.stopped_by for result in results] == ["timeout"] * 2
    told = [path for result in results for path in (*result.files_created, *result.files_deleted)]
    assert not [path for path in told if "of-the-host" in path]


def test_the_times_of_tmp_carry_no_message_from_one_workspace_to_another(make_box, tmp_path):
    sender, receiver = (make_box(workspace=tmp_path / name) for name in ("sender", "receiver"))
    for _ in range(3):
        assert sender.execute("import os; os.utime('/tmp', (1, 12345))").success
        result = receiver.execute("import os; print(os.stat('/tmp').st_mtime)")
        assert result.stdout != "12345.0\n"


def test_a_file_with_the_number_of_a_stream_is_never_that_stream(tmp_path):
    _, session = create_session_sandbox(workspace_root=tmp_path, stateful=True)
    with session:
        assert (
            session.execute("import os\nos.close(0)\nfile = open('x', 'w+')\nprint(file.fileno())").stdout
            == "0\n"
        )
        assert session.execute("print(file.write('kept'), file.seek(0), file.read())").stdout == "4 0 kept\n"
        session.hibernate()
        code = "try: print(os.read(0, 9))\nexcept OSError as error: print(error)"
        assert session.execute(code, stdin="for whoever reads it").stdout == "[Errno 8] Bad file descriptor\n"
        assert session.execute("os.close(0)\nprint(open('y', 'w').fileno())").stdout == "0\n"


PROGRAM = """
import os, random, stat
chance = random.Random(SEED)
files, folders = [], []

def path():
    name = '/'.join(chance.choice('abcd') for _ in range(chance.choice([1, 1, 2, 3])))
    return chance.choice(['', '', './', 'a/../']) + name

def at():
    return chance.choice([None, *folders])

def open_one():
    flags = chance.choice([os.O_WRONLY | os.O_TRUNC, os.O_RDWR, os.O_RDWR | os.O_APPEND, os.O_RDONLY])
    flags |= chance.choice([0, os.O_CREAT, os.O_CREAT | os.O_EXCL, os.O_NOFOLLOW])
    fd = os.open(path(), flags, dir_fd=at())
    (folders if stat.S_ISDIR(os.fstat(fd).st_mode) else files).append(fd)

def kind():
    info = os.stat(path(), dir_fd=at(), follow_symlinks=chance.random() < .5)
    return stat.S_IFMT(info.st_mode), info.st_size if stat.S_ISREG(info.st_mode) else None

ACTS = [
    open_one, open_one, open_one, kind,
    lambda: os.write(chance.choice(files), b'some'),
    lambda: os.pwrite(chance.choice(files), b'more', chance.choice([0, 50])),
    lambda: os.read(chance.choice(files), 9),
    lambda: os.lseek(chance.choice(files), chance.choice([-5, 0, 30]), chance.choice([0, 1, 2])),
    lambda: os.ftruncate(chance.choice(files), chance.choice([0, 2, 40])),
    lambda: os.truncate(path(), 7),
    lambda: os.close(files.pop(0)),
    lambda: os.close(folders.pop(0)),
    lambda: os.mkdir(path(), dir_fd=at()), lambda: os.mkdir(path(), dir_fd=at()),
    lambda: os.unlink(path(), dir_fd=at()),
    lambda: os.rmdir(path(), dir_fd=at()),
    lambda: os.rename(path(), path(), src_dir_fd=at(), dst_dir_fd=at()),
    lambda: os.rename(path(), path()),
    lambda: os.link(path(), path()),
    lambda: os.symlink(chance.choice(['a', 'b/c', 'nothing']), path(), dir_fd=at()),
    lambda: os.readlink(path(), dir_fd=at()),
    lambda: sorted(os.listdir(path())),
    lambda: os.utime(path(), (5, 7)),
]
for _ in range(150):
    act = chance.randrange(len(ACTS))
    try: print(act, ACTS[act]())
    except OSError: print(act, 'refused')
    except IndexError: print(act, 'nothing is open')
"""


def contents(folder):
    """What each file and link below a folder holds; whether it has other names, too."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_symlink() or path.is_file():
            held = os.readlink(path) if path.is_symlink() else path.read_bytes()
            found[str(path.relative_to(folder))] = held, path.lstat().st_nlink > 1
    found.pop("user_code.py", None)
    return found


@pytest.mark.parametrize("seed", range(400 if os.environ.get("SANDBOX_SOAK") else 20))
def test_any_program_does_to_files_what_it_does_on_the_host_and_all_is_told(box, tmp_path, seed):
    native = tmp_path / "native"
    native.mkdir()
    before = {}
    for number in (2 * seed, 2 * seed + 1):
        code = PROGRAM.replace("SEED", str(number))
        (native / "user_code.py").write_text(code)
        done = subprocess.run([sys.executable, "user_code.py"], cwd=native, capture_output=True, text=True)
        result = box.execute(code)
        assert result.stdout.splitlines() == done.stdout.splitlines()
        after = contents(box.workspace)
        assert after == contents(native)
        assert result.files_created == sorted(after.keys() - before.keys())
        assert result.files_deleted == sorted(before.keys() - after.keys())
        linked = {name for found in (before, after) for name, (_, others) in found.items() if others}
        changed = {name for name in after.keys() - linked if after[name] != before.get(name)}
        assert changed <= set(result.files_modified) <= after.keys()
        before = after
