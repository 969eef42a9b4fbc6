"""State files of other versions, damaged ones and hostile ones."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys

import pytest

from sandbox import ExecutionPolicy, PolicyValidationError, StateUnusable
from sandbox.sessions import (
    archive_session,
    archive_sessions,
    delete_session_workspace,
    prune_sessions,
    restore_session,
    saved,
    statefolder,
)

REMEDY = "open the session with fresh_interpreter=True to keep its files and start anew"


@pytest.fixture
def saved_box(stateful):
    """A session with a variable and a file, both on disk alone."""
    box = stateful.new(save_within_seconds=0)
    box.execute("x = 'saved'\nopen('kept.txt', 'w').write('kept')")
    stateful.lose_memory(box)
    return box


def parts(data):
    """Header and compressed pages of a state file."""
    start = len(saved.MAGIC) + 4
    (length,) = struct.unpack_from("<I", data, len(saved.MAGIC))
    return json.loads(data[start : start + length]), data[start + length : -saved.DIGEST_BYTES]


def forged(header, payload):
    """A state file that somebody wrote with care: its checksum is right."""
    fields = header if isinstance(header, bytes) else json.dumps(header).encode()
    content = saved.MAGIC + struct.pack("<I", len(fields)) + fields + payload
    return content + hashlib.sha256(content).digest()


def assert_refused(stateful, box, reason):
    with pytest.raises(StateUnusable) as refused:
        box.execute("x")
    assert (refused.value.session_id, refused.value.remedy) == (box.session_id, REMEDY)
    assert reason in refused.value.reason
    assert str(refused.value).endswith(REMEDY)
    fresh = stateful.get(box.session_id, fresh_interpreter=True)
    assert fresh.execute("'x' in globals(), open('kept.txt').read()").value == "(False, 'kept')"
    fresh.execute("x = 'new'")
    fresh.hibernate()
    assert box.execute("x").value == "'new'"


def test_a_state_of_another_runtime_is_refused(stateful, saved_box):
    file = stateful.state_file(saved_box)
    header, payload = parts(file.read_bytes())
    file.write_bytes(forged(header | {"guest_sha256": "0" * 64}, payload))
    assert_refused(stateful, saved_box, "it was saved by another version of the runtime")


def test_a_state_of_another_driver_is_refused(stateful, saved_box):
    file = stateful.state_file(saved_box)
    header, payload = parts(file.read_bytes())
    file.write_bytes(forged(header | {"protocol": header["protocol"] + 1}, payload))
    assert_refused(stateful, saved_box, "it was saved by another version of the runtime")


@pytest.mark.parametrize("kept", [0, 10, 33, 34, 200, -40, -1])
def test_a_truncated_state_is_refused(stateful, saved_box, kept):
    file = stateful.state_file(saved_box)
    file.write_bytes(file.read_bytes()[:kept])
    assert_refused(stateful, saved_box, "it is")


@pytest.mark.parametrize("place", [0, 31, 40, 2_000, -1])
def test_a_state_with_a_flipped_bit_is_refused(stateful, saved_box, place):
    file = stateful.state_file(saved_box)
    data = bytearray(file.read_bytes())
    data[place] ^= 4
    file.write_bytes(data)
    assert_refused(stateful, saved_box, "it")


def test_every_flipped_byte_of_the_beginning_is_an_error_of_ours(stateful, saved_box):
    data = stateful.state_file(saved_box).read_bytes()
    for place in range(min(len(data), 700)):
        damaged = bytearray(data)
        damaged[place] ^= 0xFF
        with pytest.raises(ValueError, match="it"):
            saved.decode(bytes(damaged))


@pytest.mark.parametrize(
    "changes",
    [
        {"size": 1 << 60},
        {"size": -1},
        {"size": 1.5},
        {"size": "64"},
        {"size": None},
        {"ranges": -1},
        {"ranges": 1 << 40},
        {"ranges": 0},
        {"clock_ns": -5},
        {"clock_ns": 1 << 70},
        {"clock_ns": float("inf")},
        {"generation": float("nan")},
        {"generation": 10**4000},
        {"descriptors": None},
        {"descriptors": [-1]},
        {"descriptors": [float("inf")]},
        {"descriptors": [[]]},
        {"preload": 5},
        {"image": "0" * 64},
        {"image": "../../etc/passwd"},
        {"data_path": "/app"},
        {"preload": ["os"]},
    ],
    ids=str,
)
def test_absurd_headers_are_refused(stateful, saved_box, changes):
    file = stateful.state_file(saved_box)
    header, payload = parts(file.read_bytes())
    file.write_bytes(forged(header | changes, payload))
    # A data path or modules that are not the image's name another image, which is not there.
    statefolder._images.clear()
    if changes.keys() & {"image", "data_path", "preload"}:
        assert_refused(stateful, saved_box, "its ")
    else:
        assert_refused(stateful, saved_box, "")


def test_a_header_that_nests_too_deep_is_refused(stateful, saved_box):
    file = stateful.state_file(saved_box)
    _, payload = parts(file.read_bytes())
    file.write_bytes(forged(b"[" * 500_000, payload))
    assert_refused(stateful, saved_box, "its header cannot be read")


def test_many_absurd_descriptors_open_no_more_than_the_policy_allows(stateful, saved_box):
    file = stateful.state_file(saved_box)
    header, payload = parts(file.read_bytes())
    many = [*range(8, 90_000), (1 << 62) - 1]
    file.write_bytes(forged(header | {"descriptors": many}, payload))
    before = len(os.listdir("/proc/self/fd"))
    assert saved_box.execute("x").value == "'saved'"
    assert len(os.listdir("/proc/self/fd")) - before < saved_box.policy.max_open_files + 20
    assert saved_box.execute("open('more.txt', 'w')").stderr.splitlines()[-1].startswith("OSError")


@pytest.mark.parametrize(
    "ranges",
    [
        [(0, 8192), (4096, 4096)],
        [(8192, 4096), (0, 4096)],
        [(4096, 0)],
        [(100, 4096)],
        [(0, 100)],
        [((1 << 64) - 4096, 4096)],
        [(0, (1 << 64) - 4096)],
        [(1 << 32, 4096)],
    ],
    ids=str,
)
def test_pages_that_overlap_or_lie_outside_are_refused(stateful, saved_box, ranges):
    file = stateful.state_file(saved_box)
    header, _ = parts(file.read_bytes())
    table = b"".join(struct.pack("<QQ", *place) for place in ranges)
    data = bytes(min(sum(length for _, length in ranges), 1 << 20))
    file.write_bytes(forged(header | {"ranges": len(ranges)}, saved.compress(table + data)))
    assert_refused(stateful, saved_box, "its ")


def test_a_small_file_that_expands_without_end_is_refused(stateful, saved_box):
    file = stateful.state_file(saved_box)
    header, _ = parts(file.read_bytes())
    bomb = saved.compress(bytes(header["size"] + (1 << 20)))
    assert len(bomb) < 1 << 20
    file.write_bytes(forged(header, bomb))
    assert_refused(stateful, saved_box, "its content is larger than it says")


def test_a_state_that_claims_more_than_the_policy_allows_is_not_expanded(stateful, saved_box):
    file = stateful.state_file(saved_box)
    header, _ = parts(file.read_bytes())
    file.write_bytes(forged(header | {"size": 4 << 30}, b"not looked at"))
    with pytest.raises(PolicyValidationError, match="the saved interpreter alone needs 4294967296 bytes"):
        saved_box.execute("x")


def test_pages_of_noise_end_the_turn_and_never_the_host(stateful, saved_box):
    file = stateful.state_file(saved_box)
    header, _ = parts(file.read_bytes())
    start, size = 1 << 20, header["size"] - (1 << 20)
    noise = (os.urandom(1 << 16) * (size // (1 << 16) + 1))[:size]
    payload = saved.compress(struct.pack("<QQ", start, size) + noise)
    file.write_bytes(forged(header | {"ranges": 1}, payload))
    result = saved_box.execute("x")
    assert result.success is False
    fresh = stateful.get(saved_box.session_id, fresh_interpreter=True)
    assert fresh.execute("1").value == "1"


def test_the_image_beside_the_state_is_enough(stateful, saved_box):
    output = stateful.run(
        saved_box.session_id,
        """
from sandbox.sessions import stateful, statefolder
stateful.know_image = lambda image: image  # as if this process had made another one
print(get_session_sandbox(session_id, workspace_root=root).execute('x').value, len(statefolder._images))
""",
    )
    assert output == "'saved' 1\n"


@pytest.mark.parametrize("damage", ["missing", "cut", "flipped", "bomb", "header"])
def test_a_damaged_image_is_refused(stateful, saved_box, damage, monkeypatch):
    image = stateful.state_file(saved_box).with_name("image")
    content = image.read_bytes()
    image.unlink()
    if damage == "cut":
        image.write_bytes(content[:-100])
    elif damage == "bomb":
        image.write_bytes(saved.compress(bytes(200 << 20)))
    elif damage in {"flipped", "header"}:
        plain = bytearray(saved.expand(content, 1 << 30))
        if damage == "flipped":
            plain[100_000] ^= 1
        else:
            plain[:4096] = (b"[" * 4000).ljust(4096, b"\0")
        image.write_bytes(saved.compress(bytes(plain)))
    monkeypatch.setattr(statefolder, "_images", {})
    with pytest.raises(StateUnusable, match="its image"):
        statefolder.StateFolder(stateful.root, saved_box.session_id).load(_guest(saved_box), 1 << 30)


def test_a_refused_image_holds_no_descriptor(stateful, saved_box, monkeypatch):
    image = stateful.state_file(saved_box).with_name("image")
    plain = bytearray(saved.expand(image.read_bytes(), 1 << 30))
    plain[100_000] ^= 1
    image.unlink()
    image.write_bytes(saved.compress(bytes(plain)))
    monkeypatch.setattr(statefolder, "_images", {})
    folder, guest = statefolder.StateFolder(stateful.root, saved_box.session_id), _guest(saved_box)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(StateUnusable):
            folder.load(guest, 1 << 30)
    assert len(os.listdir("/proc/self/fd")) == before


def test_sessions_share_one_image_on_disk(stateful):
    boxes = [stateful.new(save_within_seconds=0) for _ in range(3)]
    for box in boxes:
        box.execute("x = 1")
    images = list((stateful.root / ".state" / ".images").iterdir())
    assert [image.stat().st_nlink for image in images] == [4]


def test_an_image_that_no_session_needs_is_swept(stateful):
    boxes = [stateful.new(save_within_seconds=0) for _ in range(2)]
    for box in boxes:
        box.execute("x = 1")
    (image,) = (stateful.root / ".state" / ".images").iterdir()
    for box, left in zip(boxes, (True, False), strict=True):
        delete_session_workspace(box.session_id, stateful.root)
        os.utime(image, (0, 0))
        prune_sessions(workspace_root=stateful.root)
        assert image.exists() is left
    fresh = stateful.new(save_within_seconds=0)
    assert fresh.execute("x = 1").state == "saved"
    prune_sessions(workspace_root=stateful.root)  # too young to go
    assert image.exists()


def test_an_archive_carries_the_last_turn_along_though_it_was_not_saved(stateful, tmp_path):
    box = stateful.new(save_within_seconds=1000)
    box.execute("x = 'archived'\nopen('f.txt', 'w').write('file')")
    box.checkpoint("before")
    box.execute("x += '!'")
    archive = archive_session(box.session_id, tmp_path / "archives", stateful.root)
    assert not (stateful.root / box.session_id).exists()
    shutil.rmtree(stateful.root / ".state" / ".images")
    assert restore_session(archive, stateful.root) == box.session_id
    assert stateful.get(box.session_id).execute("x, open('f.txt').read()").value == "('archived!', 'file')"
    again = stateful.get(box.session_id)
    again.restore("before")
    assert again.execute("x").value == "'archived'"


def test_an_archive_goes_on_in_another_root_and_process(stateful, tmp_path):
    box = stateful.new(save_within_seconds=1000)
    box.execute("x = 'moved'")
    archive = archive_session(box.session_id, tmp_path / "archives", stateful.root, keep=True)
    code = (
        "import sys\nfrom sandbox import *\nroot, archive = sys.argv[1:]\n"
        "print(get_session_sandbox(restore_session(archive, root), workspace_root=root).execute('x').value)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "elsewhere", archive],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "'moved'\n"
    assert box.execute("x").value == "'moved'"


def test_archiving_by_age_carries_the_last_turn_along(stateful, tmp_path):
    box = stateful.new(save_within_seconds=1000)
    box.execute("x = 'aged'")
    result = archive_sessions(0, tmp_path / "archives", stateful.root)
    restore_session(result.archives[box.session_id], stateful.root)
    assert stateful.get(box.session_id).execute("x").value == "'aged'"


def test_the_state_is_the_owners_alone(stateful, saved_box):
    folder = stateful.state_file(saved_box).parent
    modes = {path.name: path.stat().st_mode & 0o777 for path in [folder, *folder.iterdir()]}
    assert modes == {folder.name: 0o700, "interpreter.state": 0o600, "image": 0o600, "lock": 0o600}


def test_a_policy_with_less_memory_says_what_is_needed(stateful, saved_box):
    small = stateful.get(saved_box.session_id, policy=ExecutionPolicy(memory_bytes=1 << 20))
    with pytest.raises(PolicyValidationError, match="memory_bytes"):
        small.execute("x")


def _guest(box):
    return box._inner.warm_up().recipe.guest
