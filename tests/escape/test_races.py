"""Guests that change a workspace while another one opens its files."""
# ruff: noqa: E501 - a hostile program stays on one line where it can

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

SECRET = "the host's own words"
SECONDS = 20.0 if os.environ.get("SANDBOX_SOAK") else 2.0

SWAP = """
import os
os.makedirs('d', exist_ok=True)
while True:
    for target in ('..', '../other', 'd/../..', '.'):
        for act in ((os.symlink, target, 'x'), (os.remove, 'x'), (os.mkdir, 'x'), (os.rmdir, 'x'), (os.rename, 'd', 'x'),
                    (os.symlink, target, 'd'), (os.remove, 'd'), (os.rename, 'x', 'd'), (os.mkdir, 'd')):
            try: act[0](*act[1:])
            except OSError: pass
"""
READ = """
import os
opened = 0
while True:
    for path in ('x/secret', 'd/secret', 'x/other/secret', 'd/x/secret', 'x/.metadata.json', 'd/../x/../secret'):
        try:
            print('GOT', path, open(path).read(), flush=True)
        except OSError:
            opened += 1
    for path in ('x/stolen', 'd/stolen', 'x/../stolen'):
        try: open(path, 'w').close(); os.rename(path, 'x/../moved'); os.link('x/../moved', 'd/linked')
        except OSError: pass
"""


def test_folders_that_turn_into_links_lead_nowhere(make_box, tmp_path):
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "secret").write_text(SECRET)
    boxes = [make_box(timeout_seconds=SECONDS, fuel_budget=None) for _ in range(3)]
    (boxes[0].workspace / ".metadata.json").write_text(SECRET)
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(lambda box, code: box.execute(code), boxes, (SWAP, READ, READ)))
    assert [(result.stopped_by, result.stdout) for result in results] == [("timeout", "")] * 3
    assert sorted(os.listdir(tmp_path)) == ["other", "secret", "workspace"]
    assert os.listdir(tmp_path / "other") == ["secret"]
    assert (boxes[0].workspace / ".metadata.json").read_text() == SECRET


def test_a_workspace_changed_by_the_host_meanwhile_ends_in_a_result(box):
    code = """
import os, shutil
for n in range(300):
    print(n)
    try:
        os.makedirs('a/b', exist_ok=True)
        open('a/b/f', 'w').write('x')
        os.rename('a', f'c{n}')
        shutil.rmtree(f'c{n}')
    except OSError:
        pass
"""

    def disturb(_name, _data):
        for path in list(box.workspace.iterdir()):
            if path.is_dir():
                os.rename(path, box.workspace / f"moved-{path.name}")

    result = box.execute(code, on_output=disturb, timeout_seconds=60)
    assert (result.exit_code, result.stopped_by) == (0, None), result.stderr
