"""Archives of sessions, honest and hostile."""

from __future__ import annotations

import gc
import io
import json
import os
import random
import shutil
import sys
import tarfile

import pytest

from sandbox.errors import ArchiveRejected, SessionInUse
from sandbox.sessions import (
    archive_session,
    archive_sessions,
    create_session_sandbox,
    get_session_sandbox,
    hold_session,
    list_session_files,
    make_session,
    prune_sessions,
    read_session_metadata,
    restore_session,
    write_session_file,
)
from sandbox.sessions.locks import using
from sandbox.sessions.tarball import MAX_DEPTH, stays_inside

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


def contents(folder):
    """Every path below a folder with what it is, the last use aside."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_file() and path.name != ".metadata.json":
            found[name] = (path.read_bytes(), int(path.stat().st_mtime), path.stat().st_mode & 0o777)
        else:
            found[name] = None
    return found


def test_a_session_goes_into_an_archive_and_comes_back_the_same(tmp_path):
    session_id, box = create_session_sandbox(workspace_root=tmp_path / "root")
    box.execute(
        "import os\nos.makedirs('a/empty')\nopen('a/grüße.txt', 'w').write('x' * 100000)\n"
        "os.symlink('a/grüße.txt', 'link')\nopen('a/' + 'n' * 150, 'w').write('long name')"
    )
    folder = tmp_path / "root" / session_id
    state = tmp_path / "root" / ".state" / session_id
    (state / "generations").mkdir(parents=True)
    (state / "generations" / "1").write_bytes(b"pages")
    before = contents(folder)
    created = read_session_metadata(session_id, tmp_path / "root").created_at
    archive = archive_session(session_id, tmp_path / "archive", tmp_path / "root")
    assert archive == tmp_path / "archive" / f"{session_id}.tar.zst"
    assert not folder.exists()
    assert not state.exists()
    assert restore_session(archive, tmp_path / "root") == session_id
    assert contents(folder) == before
    assert (state / "generations" / "1").read_bytes() == b"pages"
    assert read_session_metadata(session_id, tmp_path / "root").created_at == created
    assert sorted(os.listdir(tmp_path / "root")) == sorted([".state", session_id])
    assert get_session_sandbox(session_id, workspace_root=tmp_path / "root").execute("open('link')").success


def test_an_archive_is_what_tar_and_zstd_read(tmp_path):
    make_session("s", tmp_path, fill=lambda folder: (folder / "a.txt").write_text("x"))
    archive = archive_session("s", tmp_path / "out", tmp_path)
    plain = zstd.decompress(archive.read_bytes())
    with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
        assert tar.getnames() == ["session.json", "workspace", "workspace/.metadata.json", "workspace/a.txt"]
    assert archive.stat().st_mode & 0o777 == 0o600


def test_old_sessions_are_archived_and_a_dry_run_agrees(tmp_path, aged_session, logger, events):
    root, out = tmp_path / "root", tmp_path / "out"
    old, recent = aged_session(48, root, data="x"), aged_session(1, root)
    dry = archive_sessions(24, out, root, dry_run=True)
    assert not out.exists()
    assert sorted(os.listdir(root)) == sorted([old, recent])
    real = archive_sessions(24, out, root, logger=logger)
    assert dry.archives == real.archives == {old: out / f"{old}.tar.zst"}
    assert dry.archived_bytes == real.archived_bytes > 0
    assert (os.listdir(root), os.listdir(out)) == ([recent], [f"{old}.tar.zst"])
    assert events.fields("session.archived")[0]["session_id"] == old


def test_a_session_whose_archive_cannot_be_written_stays(tmp_path, aged_session):
    root = tmp_path / "root"
    session_id = aged_session(48, root)
    (tmp_path / "out").write_text("a file in the way")
    result = archive_sessions(24, tmp_path / "out", root)
    assert (result.archives, list(result.errors)) == ({}, [session_id])
    assert os.listdir(root) == [session_id]


def test_an_archive_that_fails_half_way_leaves_no_file_and_prints_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    folder = make_session("s", tmp_path / "root")
    folder.joinpath(*"d" * (MAX_DEPTH + 1)).mkdir(parents=True)
    with pytest.raises(OSError, match="nested deeper"):
        archive_session("s", tmp_path / "out", tmp_path / "root")
    gc.collect()
    assert (os.listdir(tmp_path / "out"), capsys.readouterr().err) == ([], "")


def test_what_a_killed_archive_left_goes_with_the_next(tmp_path, aged_session, killed_at):
    root, folder = tmp_path / "root", tmp_path / "archive"
    first = aged_session(root=root)
    archive = "from sandbox import archive_sessions; archive_sessions(24, sys.argv[2], sys.argv[1])"
    killed_at("fsync", archive, root, folder)
    assert [path.suffix for path in folder.iterdir()] == [""]
    assert (root / first).is_dir()
    shutil.rmtree(root / first)
    second = aged_session(root=root)
    assert list(archive_sessions(24, folder, root).archives) == [second]
    assert os.listdir(folder) == [f"{second}.tar.zst"]


def test_a_session_in_use_is_not_archived(tmp_path):
    folder = make_session("s", tmp_path)
    with using(folder), pytest.raises(SessionInUse):
        archive_session("s", tmp_path / "out", tmp_path)
    assert not (tmp_path / "out").exists()


def test_a_held_session_is_archived_only_beside_itself(tmp_path):
    make_session("s", tmp_path)
    hold_session("s", tmp_path)
    with pytest.raises(SessionInUse, match="is in use; stop what holds it"):
        archive_session("s", tmp_path / "out", tmp_path)
    assert not (tmp_path / "out").exists()
    assert archive_session("s", tmp_path / "out", tmp_path, keep=True).exists()
    assert read_session_metadata("s", tmp_path).held


def test_a_restored_session_is_held_by_nobody(tmp_path):
    make_session("s", tmp_path)
    hold_session("s", tmp_path)
    archive = archive_session("s", tmp_path / "out", tmp_path, keep=True)
    restore_session(archive, tmp_path / "elsewhere")
    assert not read_session_metadata("s", tmp_path / "elsewhere").held


def test_a_kept_session_stays_beside_its_archive(tmp_path):
    make_session("s", tmp_path)
    archive = archive_session("s", tmp_path / "out", tmp_path, keep=True)
    with pytest.raises(FileExistsError):
        restore_session(archive, tmp_path)
    assert restore_session(archive, tmp_path / "elsewhere") == "s"


def test_a_restored_session_counts_as_used_now(tmp_path, aged_session):
    session_id = aged_session(48, tmp_path / "root")
    archive = archive_sessions(24, tmp_path / "out", tmp_path / "root").archives[session_id]
    restore_session(archive, tmp_path / "root")
    assert prune_sessions(24, tmp_path / "root").deleted_sessions == []


def test_a_legacy_session_comes_back_as_one(tmp_path):
    (tmp_path / "root" / "old").mkdir(parents=True)
    archive = archive_session("old", tmp_path / "out", tmp_path / "root")
    restore_session(archive, tmp_path / "root")
    assert os.listdir(tmp_path / "root" / "old") == []


def test_links_that_lead_out_are_left_out_and_told(tmp_path, aged_session):
    root = tmp_path / "root"
    session_id = aged_session(48, root)
    (root / session_id / "out").symlink_to("../../secret")
    (root / session_id / "abs").symlink_to("/etc/passwd")
    (root / session_id / "in").symlink_to("data/x")
    os.mkfifo(root / session_id / "fifo")
    result = archive_sessions(24, tmp_path / "out", root)
    assert set(result.left_out[session_id]) == {"out", "abs", "fifo"}
    restore_session(result.archives[session_id], root)
    assert sorted(os.listdir(root / session_id)) == [".metadata.json", "in"]


@pytest.mark.parametrize(
    ("at", "target", "inside"),
    [
        ("link", "file", True),
        ("link", "..", False),
        ("link", "a/b", True),
        ("link", "a/../b", False),
        ("d/link", "../file", True),
        ("d/link", "../../file", False),
        ("d/e/link", "../../file", True),
        ("link", "/app/file", False),
        ("link", "", False),
    ],
)
def test_a_link_stays_inside_or_not(at, target, inside):
    assert stays_inside(tuple(at.split("/")), target) is inside


# Hostile archives


@pytest.fixture
def forge(tmp_path):
    """Writes an archive of any entries; the honest beginning comes by itself."""

    def make(*entries, honest=True, fmt=tarfile.GNU_FORMAT, compress=zstd.compress):
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w", format=fmt) as tar:
            for info, content in [*(beginning() if honest else []), *entries]:
                tar.addfile(info, io.BytesIO(content))
        archive = tmp_path / "forged.tar.zst"
        archive.write_bytes(compress(data.getvalue()))
        return archive

    return make


def file(name, content=b"", **fields):
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def folder(name):
    return file(name, type=tarfile.DIRTYPE)


def link(name, target, kind=tarfile.SYMTYPE):
    return file(name, type=kind, linkname=target)


def metadata(session_id="s"):
    moment = "2026-01-01T00:00:00.000000Z"
    fields = {"session_id": session_id, "created_at": moment, "updated_at": moment, "version": 1}
    return file("workspace/.metadata.json", json.dumps(fields).encode())


def manifest(**changes):
    return file("session.json", json.dumps({"format": 1, "session_id": "s"} | changes).encode())


def beginning():
    return [manifest(), folder("workspace"), metadata()]


def assert_rejected(archive, root, reason, **limits):
    root.mkdir(exist_ok=True)
    before = sorted(root.rglob("*"))
    with pytest.raises(ArchiveRejected, match=reason):
        restore_session(archive, root, **limits)
    assert sorted(path for path in root.rglob("*") if path.name != ".state") == before
    assert not (root.parent / "evil").exists()


HOSTILE = {
    "traversal": ([file("workspace/../../evil", b"x")], "not a path inside a session"),
    "traversal out of the root": ([file("../evil", b"x")], "not a path inside a session"),
    "absolute": ([file("/tmp/evil", b"x")], "not a path inside a session"),
    "elsewhere": ([file("other/evil", b"x")], "not a path inside a session"),
    "dot": ([file("workspace/./x", b"x")], "not a path inside a session"),
    "link out": ([link("workspace/l", "../../evil")], "leads out of the session"),
    "absolute link": ([link("workspace/l", "/etc")], "leads out of the session"),
    "link that turns back": (
        [folder("workspace/d"), link("workspace/d/l", ".."), link("workspace/m", "d/l/../..")],
        "leads out of the session",
    ),
    "file through a link": (
        [folder("workspace/d"), link("workspace/l", "d"), file("workspace/l/evil", b"x")],
        "cannot be a file",
    ),
    "hard link": ([link("workspace/h", "/etc/passwd", tarfile.LNKTYPE)], "neither a file"),
    "device": ([file("workspace/d", type=tarfile.CHRTYPE)], "neither a file"),
    "block device": ([file("workspace/d", type=tarfile.BLKTYPE)], "neither a file"),
    "fifo": ([file("workspace/f", type=tarfile.FIFOTYPE)], "neither a file"),
    "sparse": ([file("workspace/f", type=tarfile.GNUTYPE_SPARSE)], "neither a file"),
    "twice": ([file("workspace/a", b"1"), file("workspace/a", b"2")], "is in it twice"),
    "folder twice": ([folder("workspace/a"), folder("workspace/a")], "is in it twice"),
    "metadata twice": ([metadata()], "is in it twice"),
    "workspace twice": ([folder("workspace")], "is in it twice"),
    "second beginning": ([manifest()], "is in it twice"),
    "without its folder": ([file("workspace/a/b", b"x")], "comes before its folder"),
    "state without its folder": ([file("state/b", b"x")], "comes before its folder"),
    "file as a folder": ([file("workspace/a", b"x"), file("workspace/a/b", b"x")], "comes before its folder"),
    "host-only": ([file("workspace/.METADATA.json", b"{}")], "kept for the host"),
    "host-only below": (
        [folder("workspace/d"), file("workspace/d/.metadata.json", b"{}")],
        "kept for the host",
    ),
    "host-only beside": ([file("workspace/.metadata.json.next", b"{}")], "kept for the host"),
    "state link": ([folder("state"), link("state/l", "x")], "leads out of the session"),
    "workspace is a file": ([file("state", b"x")], "is not a folder"),
    "too deep": ([folder("workspace/" + "/".join("d" * (MAX_DEPTH + 2)))], "nested deeper"),
    "name too long": ([file("workspace/" + "n" * 300, b"x")], "cannot be a file"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_entry_is_refused_and_nothing_is_unpacked(forge, tmp_path, kind):
    entries, reason = HOSTILE[kind]
    assert_rejected(forge(*entries), tmp_path / "root", reason)


BEGINNINGS = {
    "nothing": ([], "does not begin with session.json"),
    "no manifest": ([folder("workspace"), metadata()], "does not begin with session.json"),
    "other format": ([manifest(format=2)], "its format is 2"),
    "bad id": ([manifest(session_id="../x")], "session.json is not valid"),
    "no id": ([file("session.json", b"{}")], "session.json is not valid"),
    "no json": ([file("session.json", b"[" * 60000)], "session.json is not valid"),
    "endless": ([file("session.json", b" " * 100_000)], "does not begin with session.json"),
    "others' metadata": ([manifest(), folder("workspace"), metadata("other")], "metadata is not valid"),
    "no metadata at all": (
        [manifest(), folder("workspace"), file("workspace/.metadata.json", b"{")],
        "metadata is not valid",
    ),
}


@pytest.mark.parametrize("kind", BEGINNINGS)
def test_an_archive_that_does_not_begin_like_one_is_refused(forge, tmp_path, kind):
    entries, reason = BEGINNINGS[kind]
    assert_rejected(forge(*entries, honest=False), tmp_path / "root", reason)


def test_a_bomb_is_refused_before_it_fills_the_disk(forge, tmp_path):
    archive = forge(file("workspace/zeros", b"\0" * 50_000_000))
    assert archive.stat().st_size < 100_000
    assert_rejected(archive, tmp_path / "root", "more than 1000000 bytes", max_bytes=1_000_000)


def test_a_bomb_of_names_is_refused(forge, tmp_path):
    name = file("././@LongLink", b"n" * 60_000, type=tarfile.GNUTYPE_LONGNAME)
    archive = forge(*[name] * 1_000)
    assert archive.stat().st_size < 100_000
    assert_rejected(archive, tmp_path / "root", "more than 1000000 bytes", max_bytes=1_000_000)


def test_too_many_files_are_refused(forge, tmp_path):
    archive = forge(*(folder(f"workspace/{number}") for number in range(200)))
    assert_rejected(archive, tmp_path / "root", "more than 100 files", max_files=100)


def test_a_name_that_claims_gigabytes_is_refused_unread(tmp_path, forge):
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 5 * 2**30

    def compress(data):
        return zstd.compress(
            data[: data.index(b"workspace/.metadata.json")] + header.tobuf() + b"\0" * 10_000_000
        )

    assert_rejected(forge(compress=compress), tmp_path / "root", "a name that is too long")


def test_pax_headers_are_refused(forge, tmp_path):
    archive = forge(file("workspace/" + "n" * 200, b"x"), fmt=tarfile.PAX_FORMAT)
    assert_rejected(archive, tmp_path / "root", "neither a file")


def test_a_window_that_needs_too_much_memory_is_refused(forge, tmp_path):
    compressor = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 28})
    archive = forge(compress=lambda data: compressor.compress(data) + compressor.flush())
    assert_rejected(archive, tmp_path / "root", "damaged")


def test_what_goes_on_after_the_end_is_refused(forge, tmp_path):
    archive = forge(compress=lambda data: zstd.compress(data + b"\0" * 200_000))
    assert_rejected(archive, tmp_path / "root", "goes on after its end")


def test_a_truncated_or_flipped_archive_is_refused_wherever_it_is_damaged(tmp_path):
    make_session(
        "s", tmp_path / "root", fill=lambda at: (at / "data").write_bytes(random.Random(1).randbytes(3000))
    )
    good = archive_session("s", tmp_path / "out", tmp_path / "root").read_bytes()
    bad = tmp_path / "bad.tar.zst"
    for position in range(0, len(good), 37):
        flipped = bytearray(good)
        flipped[position] ^= 0x10
        for damaged in (good[:position], bytes(flipped)):
            bad.write_bytes(damaged)
            assert_rejected(bad, tmp_path / "root", "forged|bad.tar.zst")


def test_a_file_that_is_no_archive_is_refused(tmp_path):
    (tmp_path / "text").write_text("hello")
    assert_rejected(tmp_path / "text", tmp_path / "root", "damaged")
    with pytest.raises(FileNotFoundError):
        restore_session(tmp_path / "missing", tmp_path / "root")


def test_modes_from_an_archive_make_no_file_special_or_unreadable(forge, tmp_path):
    archive = forge(file("workspace/x", b"x", mode=0o6000, mtime=2**60), folder("workspace/d"))
    restore_session(archive, tmp_path / "root")
    assert (tmp_path / "root/s/x").stat().st_mode & 0o7777 == 0o600
    write_session_file("s", "d/y", b"", tmp_path / "root")
    assert list_session_files("s", tmp_path / "root") == ["d/y", "x"]


def test_an_archive_changed_at_random_is_refused_or_restores_inside_its_folder(tmp_path):
    root = tmp_path / "root"
    make_session("s", root, fill=fill_with_everything)
    plain = zstd.decompress(archive_session("s", tmp_path / "out", root).read_bytes())
    rng = random.Random(11)
    mutant = tmp_path / "mutant.tar.zst"
    restored = 0
    for _ in range(400):
        mutant.write_bytes(zstd.compress(mutate(plain, rng), 1))
        try:
            session_id = restore_session(mutant, root, max_bytes=10_000_000)
        except ArchiveRejected:
            pass
        else:
            restored += 1
            assert all(path.resolve().is_relative_to(root / session_id) for path in root.rglob("*"))
            shutil.rmtree(root / session_id)
        assert os.listdir(root) == []
        assert sorted(os.listdir(tmp_path)) == ["mutant.tar.zst", "out", "root"]
    assert 0 < restored < 400


def fill_with_everything(folder):
    (folder / "a").mkdir()
    (folder / "a" / "b.txt").write_text("x" * 700)
    (folder / "link").symlink_to("a/b.txt")
    (folder / ("n" * 120)).write_text("long")


def mutate(plain, rng):
    """A few bytes of some blocks changed, and the headers' checksums made good again."""
    data = bytearray(plain)
    for _ in range(rng.randint(1, 4)):
        block = rng.randrange(len(data) // 512) * 512
        field = rng.choice([rng.randrange(100), 124 + rng.randrange(12), 156, 157 + rng.randrange(20)])
        data[block + field] = rng.choice([*b"\0./01235LK\x80\xff", rng.randrange(256)])
        data[block + 148 : block + 156] = b" " * 8
        data[block + 148 : block + 156] = b"%06o\0 " % sum(data[block : block + 512])
    return bytes(data)
