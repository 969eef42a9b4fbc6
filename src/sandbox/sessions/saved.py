"""The file that holds a saved interpreter.

    magic line · header length (u32) · header (JSON) · page table and pages (zstd) · sha256 of all before

Reading it parses JSON and copies bytes into guest memory; nothing in it is run by the host.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import asdict, dataclass
from typing import Any

from sandbox.snapshots import MOST_MEMORY_BYTES, Snapshot

try:
    from compression import zstd  # type: ignore[import-not-found, unused-ignore]  # Python 3.14 and later
except ImportError:
    from backports import zstd

MAGIC = b"session-sandbox interpreter 1\n"
DENSE_LEVEL = 1  # less than half of the size
FAST_LEVEL = -20  # two thirds of the size, in less than half of the time: for saves that somebody waits for
DIGEST_BYTES = hashlib.sha256().digest_size
MOST_HEADER_BYTES = 1 << 20
LEAST_PAGE_BYTES = 4096
MOST_COUNT = (1 << 62) - 1
_LENGTH = struct.Struct("<I")
_RANGE = struct.Struct("<QQ")


@dataclass(frozen=True)
class SavedHeader:
    """What a saved interpreter belongs to."""

    generation: int  # counts the saves of a session
    guest_sha256: str  # of the guest's module: the code that the memory is for
    protocol: int  # of the driver inside
    image: str  # the identity of the memory that the pages differ from
    preload: tuple[str, ...]
    data_path: str
    size: int
    ranges: int
    descriptors: tuple[int, ...]
    clock_ns: int


def encode(snapshot: Snapshot, header: SavedHeader, *, dense: bool = True) -> list[bytes]:
    """The file of a snapshot, in pieces."""
    fields = json.dumps(asdict(header)).encode()
    table = b"".join(_RANGE.pack(*place) for place in snapshot.pieces)
    compressor = zstd.ZstdCompressor(level=DENSE_LEVEL if dense else FAST_LEVEL)
    payload = [compressor.compress(piece) for piece in (table, *snapshot.pieces.values())]
    payload.append(compressor.flush())
    pieces = [MAGIC, _LENGTH.pack(len(fields)), fields, *payload]
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return [*pieces, digest.digest()]


def decode_header(data: bytes) -> SavedHeader:
    """The header alone, of a file that may be damaged behind it; ValueError says what is wrong."""
    return _decode_header(data)[0]


def decode(data: bytes) -> tuple[SavedHeader, Snapshot]:
    """A snapshot from its file; ValueError says what is wrong with it."""
    header, start = _decode_header(data)
    content, digest = memoryview(data)[:-DIGEST_BYTES], data[-DIGEST_BYTES:]
    if hashlib.sha256(content).digest() != digest:
        raise ValueError("it is damaged: its checksum does not match")
    pages = header.ranges * _RANGE.size
    payload = memoryview(expand(content[start:], pages + header.size))
    if pages > len(payload):
        raise ValueError("its page table is cut off")
    places = [(start, length) for start, length in _RANGE.iter_unpack(payload[:pages])]
    snapshot = Snapshot.from_file(header.size, places, payload[pages:], header.descriptors, header.clock_ns)
    return header, snapshot


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
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise ValueError(f"its header cannot be read: {error}") from None


def _header_from(fields: dict[str, Any]) -> SavedHeader:
    size = _count(fields["size"], MOST_MEMORY_BYTES)
    return SavedHeader(
        generation=_count(fields["generation"]),
        guest_sha256=str(fields["guest_sha256"]),
        protocol=_count(fields["protocol"]),
        image=str(fields["image"]),
        preload=tuple(map(str, fields["preload"])),
        data_path=str(fields["data_path"]),
        size=size,
        ranges=_count(fields["ranges"], size // LEAST_PAGE_BYTES),
        descriptors=tuple(map(_count, fields["descriptors"])),
        clock_ns=_count(fields["clock_ns"]),
    )


def _count(value: object, most: int = MOST_COUNT) -> int:
    if not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError("a number in it is impossible")
    return value


def expand(data: bytes | memoryview, most: int) -> bytes:
    """Decompress what must not grow past a limit; ValueError where it does, or is damaged."""
    try:
        expander = zstd.ZstdDecompressor()
        expanded: bytes = expander.decompress(data, most + 1)
    except zstd.ZstdError as error:
        raise ValueError(f"its content cannot be read: {error}") from None
    if len(expanded) > most:
        raise ValueError("its content is larger than it says")
    if not expander.eof:
        raise ValueError("its content is cut off")
    return expanded


def compress(content: bytes) -> bytes:
    """What `expand` reads; written once for all sessions that share an image."""
    return bytes(zstd.compress(content, level=DENSE_LEVEL))
