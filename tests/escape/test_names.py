"""Host-only names do not exist for a guest, whatever it tries."""
# ruff: noqa: E501 - a hostile program stays on one line where it can

from __future__ import annotations

import os

import pytest

SECRET = "the host's own words"
PRELUDE = """
import errno, glob, io, os, pathlib, shutil, sys
NAME = '.metadata.json'
WAYS = [
    NAME, './' + NAME, '/app/' + NAME, '/app//' + NAME, '/app/./' + NAME, '/app/d/../' + NAME, NAME + '/',
    NAME + '/.', NAME + '//', './/' + NAME, '../app/' + NAME, '/app/../app/' + NAME, '/../app/' + NAME,
    NAME.upper(), NAME.title(), '.metadata.JSON', '.METADATA.json', '.metadata.\\uff4ason', '.\\uff4detadata.json',
    '.metadata\\uff0ejson', '.meta\\u1d48ata.json', NAME + '.tmp', NAME + '.0123456789abcdef', NAME + ' ', NAME + '~',
    'd/' + NAME, '/app/d/' + NAME, 'd/./' + NAME, 'd/../d/' + NAME,
]
def attempt(act, *args, **options):
    try:
        return act(*args, **options)
    except (OSError, ValueError, NotImplementedError, TypeError) as error:
        return error
def succeeded(act, *args, **options):
    result = attempt(act, *args, **options)
    if not isinstance(result, Exception):
        print('SUCCEEDED', act, args, options, result)
"""


@pytest.fixture
def held(box):
    """A sandbox whose workspace has secrets of the host at two depths."""
    (box.workspace / "d").mkdir()
    for folder in (box.workspace, box.workspace / "d"):
        (folder / ".metadata.json").write_text(SECRET)
        (folder / "plain").write_text("plain")
    yield box
    for folder in (box.workspace, box.workspace / "d"):
        if folder.exists():
            assert (folder / ".metadata.json").read_text() == SECRET
    strays = [name for name in os.listdir(box.workspace) if name.lower().startswith(".metadata")]
    assert strays == [".metadata.json"]


def try_all(box, code):
    """Run hostile code, which prints what it got hold of: nothing."""
    result = box.execute(PRELUDE + code)
    assert result.exit_code == 0, result.stderr
    assert SECRET not in result.stdout + result.stderr
    assert result.stdout == "tried\n", result.stdout


ATTEMPTS = {
    "listdir": """
for folder in ('.', '/app', 'd', '/app/d', '/app/.', b'.'):
    for name in os.listdir(folder):
        if b'meta' in os.fsencode(name).lower(): print(name)
""",
    "scandir": "for e in (*os.scandir(), *os.scandir('d')):\n    if 'meta' in e.name.lower(): print(e)",
    "walk": """
for base, folders, names in (*os.walk('/app'), *os.walk('.', topdown=False), *os.walk('d', followlinks=True)):
    for name in (*folders, *names):
        if 'meta' in name.lower(): print(base, name)
""",
    "glob": """
for pattern in ('*', '.*', '.m*', '**/*', '/app/.*', '/app/.metadata*', '.metadata.json', '[.]metadata.json', '**/.*'):
    for found in glob.glob(pattern, recursive=True, include_hidden=True):
        if 'meta' in found: print(found)
""",
    "pathlib": """
for found in (*pathlib.Path('/app').rglob('*'), *pathlib.Path('.').iterdir(), *pathlib.Path('/app').glob('**/.m*')):
    if 'meta' in found.name: print(found)
""",
    "open": """
for way in WAYS:
    for mode in ('r', 'rb', 'r+', 'a+'):
        succeeded(open, way, mode)
    for flags in (os.O_RDONLY, os.O_RDWR, os.O_WRONLY, os.O_RDONLY | os.O_NOFOLLOW): succeeded(os.open, way, flags)
""",
    "create": """
for way in WAYS:
    for mode in ('w', 'x', 'a'): succeeded(open, way, mode)
    for flags in (os.O_CREAT, os.O_CREAT | os.O_EXCL, os.O_TRUNC): succeeded(os.open, way, os.O_WRONLY | flags)
    succeeded(pathlib.Path(way).touch)
""",
    "stat": """
for way in WAYS:
    succeeded(os.stat, way); succeeded(os.lstat, way); succeeded(os.stat, way, follow_symlinks=False)
    if os.path.exists(way) or os.path.lexists(way) or os.path.isfile(way) or os.access(way, os.F_OK): print(way)
""",
    "times": "for way in WAYS: succeeded(os.utime, way, (1, 1))",
    "truncate": "for way in WAYS: succeeded(os.truncate, way, 0)",
    "unlink": "for way in WAYS: succeeded(os.unlink, way); succeeded(os.remove, way); succeeded(os.rmdir, way)",
    "mkdir": "for way in WAYS: succeeded(os.mkdir, way); succeeded(os.makedirs, way + '/x')",
    "rename from": "for way in WAYS: succeeded(os.rename, way, 'got'); succeeded(os.replace, way, 'got')",
    "rename to": "for way in WAYS: succeeded(os.rename, 'plain', way); succeeded(os.replace, 'plain', way)",
    "rename a folder to": "os.mkdir('e')\nfor way in WAYS: succeeded(os.rename, 'e', way)",
    "link from": "for way in WAYS: succeeded(os.link, way, 'got')",
    "link to": "for way in WAYS: succeeded(os.link, 'plain', way)",
    "symlink at": "for way in WAYS: succeeded(os.symlink, 'plain', way)",
    "symlink to": "for way in WAYS: succeeded(os.symlink, way, 'got')",
    "symlink by steps": """
os.symlink('d', 'one'); os.symlink('one/..', 'two')
for way in ('one', 'two', 'two/one', 'two/two/d'):
    succeeded(open, way + '/' + NAME); succeeded(os.stat, way + '/' + NAME); succeeded(os.rename, 'plain', way + '/' + NAME)
""",
    "readlink": "for way in WAYS: succeeded(os.readlink, way)",
    "copy": "for way in WAYS: succeeded(shutil.copy, way, 'got'); succeeded(shutil.move, way, 'got')",
    "copytree": """
shutil.copytree('/app/d', '/tmp/copy')
print(*[n for n in os.listdir('/tmp/copy') if 'meta' in n], end='')
""",
    "an open folder": """
for folder in ('.', 'd'):
    fd = os.open(folder, os.O_RDONLY)
    for way in (NAME, './' + NAME, NAME + '/', NAME.upper(), '../app/' + NAME, 'd/../' + NAME, NAME + '.x'):
        succeeded(os.open, way, os.O_RDONLY, dir_fd=fd)
        succeeded(os.open, way, os.O_CREAT | os.O_WRONLY, dir_fd=fd)
        succeeded(os.stat, way, dir_fd=fd)
        succeeded(os.unlink, way, dir_fd=fd)
        succeeded(os.mkdir, way, dir_fd=fd)
        succeeded(os.rename, way, 'got', src_dir_fd=fd)
        succeeded(os.rename, 'plain', way, dst_dir_fd=fd)
        succeeded(os.link, way, 'got', src_dir_fd=fd)
        succeeded(os.symlink, 'plain', way, dir_fd=fd)
        succeeded(os.readlink, way, dir_fd=fd)
    os.close(fd)
""",
    "a working directory": """
os.chdir('d')
for way in (NAME, '../' + NAME, './' + NAME, '../d/' + NAME):
    succeeded(open, way); succeeded(os.stat, way)
print(*[n for n in os.listdir() if 'meta' in n], end='')
""",
    "an import": """
sys.path.insert(0, '/app/' + NAME)
import importlib, importlib.util, runpy, zipimport
for act in (lambda: runpy.run_path('/app/' + NAME), lambda: zipimport.zipimporter('/app/' + NAME)):
    try: act(); print('ran')
    except BaseException as e: pass
importlib.invalidate_caches()
""",
    "bytes and odd types": """
class Way(os.PathLike):
    def __fspath__(self): return '/app/' + NAME
for way in (Way(), NAME.encode(), b'./' + NAME.encode(), NAME.encode() + b'\\xff'):
    succeeded(open, way); succeeded(os.stat, way); succeeded(os.rename, 'plain', way)
""",
    "a file opened again by its number": """
for n in range(3, 40):
    data = attempt(os.pread, n, 100, 0)
    if isinstance(data, bytes) and b'host' in data: print(n, data)
""",
}


@pytest.mark.parametrize("code", ATTEMPTS.values(), ids=ATTEMPTS.keys())
def test_a_host_only_name_is_out_of_reach_by(held, code):
    try_all(held, f"{code}\nprint('tried')")


def test_links_that_the_host_left_do_not_lead_there(held):
    (held.workspace / "way").symlink_to(".metadata.json")
    (held.workspace / "chain").symlink_to("way")
    (held.workspace / "d" / "up").symlink_to("../.metadata.json")
    try_all(
        held,
        """
for way in ('way', 'chain', 'd/up', './way'):
    for mode in ('r', 'w', 'a', 'r+'): succeeded(open, way, mode)
    succeeded(os.stat, way); succeeded(os.truncate, way, 0); succeeded(os.utime, way, (1, 1))
fd = os.open('d', os.O_RDONLY)
succeeded(os.open, 'up', os.O_RDONLY, dir_fd=fd)
print('tried')
""",
    )
    (held.workspace / "way").unlink()


def test_a_folder_that_holds_one_moves_without_telling(held):
    result = held.execute("import os; os.rename('d', 'moved'); print(os.listdir('moved'))")
    assert result.stdout == "['plain']\n"
    assert (result.files_created, result.files_deleted) == (["moved/plain"], ["d/plain"])
    assert (held.workspace / "moved" / ".metadata.json").read_text() == SECRET


def test_a_folder_that_holds_one_is_not_removed(held):
    result = held.execute(
        "import os, shutil; os.remove('d/plain')\ntry: os.rmdir('d')\nexcept OSError: print('kept')"
    )
    assert result.stdout == "kept\n"


def test_what_a_guest_may_not_do_is_denied_and_told(held):
    result = held.execute("open('.metadata.json', 'w')")
    assert "PermissionError" in result.stderr
    result = held.execute("open('.metadata.json')")
    assert "FileNotFoundError" in result.stderr


def test_names_that_only_resemble_it_are_free(box):
    names = [
        ".metadata.jso",
        "metadata.json",
        ".metadata",
        ".metadata-json",
        "a.metadata.json",
        ".meta",
        "x.json",
    ]
    code = f"import os\nfor n in {names!r}: open(n, 'w').write(n)\nprint(sorted(os.listdir()))"
    result = box.execute(code)
    assert result.files_created == sorted(names)
    assert result.stdout == f"{sorted([*names, 'user_code.py'])}\n"


def test_a_hidden_name_in_data_is_hidden_too(make_box, tmp_path):
    (tmp_path / "data" / "sub").mkdir(parents=True)
    (tmp_path / "data" / "sub" / ".metadata.json").write_text(SECRET)
    box = make_box(mount_data_dir=tmp_path / "data")
    result = box.execute(
        "import os; print(os.listdir('/data/sub'), os.path.exists('/data/sub/.metadata.json'))"
    )
    assert result.stdout == "[] False\n"
