"""The file that holds a saved interpreter.

    magic line · header length (u32) · header (JSON) · page table and pages (zstd) · sha256 of all before

Reading it parses JSON and copies bytes into guest memory; nothing in it is run by the host.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from sandbox.snapshots import MOST_MEMORY_BYTES, Snapshot

if TYPE_CHECKING:
    from typing import BinaryIO

try:
    from compression import zstd  # type: ignore[import-not-found, unused-ignore]  # Python 3.14 and later
except ImportError:
    from backports import zstd

MAGIC = b"session-sandbox interpreter 1\n"
LEVEL = 1  # a third of the size for a tenth of the time that the best would take
DIGEST_BYTES = hashlib.sha256().digest_size
MOST_HEADER_BYTES = 1 << 20
_LENGTH = struct.Struct("<I")
_RANGE = struct.Struct("<QQ")


@dataclass(frozen=True)
class SavedHeader:
    """What a saved interpreter belongs to."""

    generation: int  # counts the saves of a session
    guest_sha256: str  # of the guest's module: the code that the memory is for
    protocol: int  # of the driver inside
    image_sha256: str  # of the memory that the pages differ from
    preload: tuple[str, ...]
    data_path: str
    size: int
    ranges: int
    descriptors: tuple[int, ...]
    clock_ns: int


def encode(snapshot: Snapshot, header: SavedHeader) -> bytes:
    """The file of a snapshot."""
    fields = json.dumps(asdict(header)).encode()
    table = b"".join(_RANGE.pack(*place) for place in snapshot.ranges)
    payload = zstd.compress(table + snapshot.data, level=LEVEL)
    content = b"".join([MAGIC, _LENGTH.pack(len(fields)), fields, payload])
    return content + hashlib.sha256(content).digest()


def decode(data: bytes) -> tuple[SavedHeader, Snapshot]:
    """A snapshot from its file; ValueError says what is wrong with it."""
    header, start = _decode_header(data)
    content, digest = memoryview(data)[:-DIGEST_BYTES], data[-DIGEST_BYTES:]
    if hashlib.sha256(content).digest() != digest:
        raise ValueError("it is damaged: its checksum does not match")
    payload = _expand(content[start:])
    pages = header.ranges * _RANGE.size
    if pages > len(payload):
        raise ValueError("its page table is cut off")
    ranges = tuple((start, length) for start, length in _RANGE.iter_unpack(payload[:pages]))
    return header, Snapshot(header.size, ranges, payload[pages:], header.descriptors, header.clock_ns)


def read_header(stream: BinaryIO) -> SavedHeader:
    """The header alone; ValueError says what is wrong with it."""
    return _decode_header(stream.read(len(MAGIC) + _LENGTH.size + MOST_HEADER_BYTES))[0]


def _decode_header(data: bytes) -> tuple[SavedHeader, int]:
    if data[: len(MAGIC)] != MAGIC:
        raise ValueError("it is no saved interpreter of this version")
    start = len(MAGIC) + _LENGTH.size
    if len(data) < start:
        raise ValueError("it is cut off")
    (length,) = _LENGTH.unpack_from(data, len(MAGIC))
    if length > MOST_HEADER_BYTES or start + length > len(data):
        raise ValueError("it is cut off")
    try:
        return _header_from(json.loads(data[start : start + length])), start + length
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"its header cannot be read: {error}") from None


def _header_from(fields: dict[str, Any]) -> SavedHeader:
    return SavedHeader(
        generation=int(fields["generation"]),
        guest_sha256=str(fields["guest_sha256"]),
        protocol=int(fields["protocol"]),
        image_sha256=str(fields["image_sha256"]),
        preload=tuple(map(str, fields["preload"])),
        data_path=str(fields["data_path"]),
        size=int(fields["size"]),
        ranges=int(fields["ranges"]),
        descriptors=tuple(map(int, fields["descriptors"])),
        clock_ns=max(0, int(fields["clock_ns"])),
    )


def _expand(payload: memoryview) -> bytes:
    """Decompress, never more than a guest's memory holds."""
    limit = MOST_MEMORY_BYTES + (MOST_MEMORY_BYTES >> 8)
    try:
        expander = zstd.ZstdDecompressor()
        data: bytes = expander.decompress(payload, limit)
    except zstd.ZstdError as error:
        raise ValueError(f"its pages cannot be read: {error}") from None
    if not expander.eof:
        raise ValueError("its pages are cut off")
    return data


def compress_image(content: bytes) -> bytes:
    """An image as it is kept beside the states that need it."""
    return bytes(zstd.compress(content, level=LEVEL))


def expand_image(data: bytes) -> bytes:
    """An image from what `compress_image` gave; ValueError where it is damaged."""
    return _expand(memoryview(data))
