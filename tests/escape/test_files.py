"""Guests that use files in ways that could reach, cost or confuse the host."""
# ruff: noqa: E501 - a hostile program stays on one line where it can

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

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
