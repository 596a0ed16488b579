"""The packet: one message's codec body and raw tensors with what a receiver needs to check.

Layout, byte for byte, in docs/wire.md. Nothing is believed: every length is checked against the
bytes there are and against the receiver's own schema before anything is decoded.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from fedsys.codecs._bytes import Cursor, varint
from fedsys.codecs._chain import MAX_SPEC_CHARS
from fedsys.errors import WireError
from fedsys.wire.schema import Schema

MAGIC = b"FS"
PROTOCOL = 1
DIGEST_BYTES = 8

_CRC_BYTES = 4
_MAX_VERSION = (1 << 63) - 1
_MAX_COUNT = 1 << 40


class Kind(IntEnum):
    """What the values mean."""

    MODEL = 0
    """A whole model."""
    DELTA = 1
    """The difference between model ``version`` and ``base_version``."""
    UPDATE = 2
    """A client's trained weights minus the model ``base_version`` that it had received."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packet:
    """One message of a federation, before packing or after unpacking."""

    kind: Kind
    spec: str
    """Canonical codec spec of ``body``."""
    schema_digest: bytes
    base_version: int
    """Model version that the receiver must hold to use the values; 0 where none is needed."""
    version: int
    """Model version that results, or the round that an update belongs to."""
    n: int
    """Number of coded values."""
    body: bytes | memoryview
    raw: bytes | memoryview
    """Bytes of the tensors that no codec may touch."""
    schema: bytes = b""
    """The schema itself, where the receiver has none yet."""


def pack(packet: Packet) -> bytes:
    """The packet as bytes: its body, raw part, spec and schema plus at most 40 bytes."""
    content = b"".join([*_head(packet), packet.schema, packet.raw, packet.body])
    return content + zlib.crc32(content).to_bytes(_CRC_BYTES, "little")


def packed_bytes(packet: Packet) -> int:
    """The length of ``pack(packet)``."""
    parts = (*_head(packet), packet.schema, packet.raw, packet.body)
    return sum(map(len, parts)) + _CRC_BYTES


def _head(packet: Packet) -> list[bytes]:
    """What comes before schema, raw part and body."""
    spec = packet.spec.encode("ascii")
    if len(packet.schema_digest) != DIGEST_BYTES or len(spec) > MAX_SPEC_CHARS:
        raise ValueError(f"a packet needs {DIGEST_BYTES} digest bytes and a spec of <= 255")
    return [
        MAGIC,
        bytes([PROTOCOL, packet.kind]),
        packet.schema_digest,
        varint(packet.base_version),
        varint(packet.version),
        varint(packet.n),
        *(varint(len(part)) for part in (spec, packet.schema, packet.raw)),
        spec,
    ]


def unpack(data: bytes | memoryview, *, schema: Schema | None, max_bytes: int) -> Packet:
    """The packet in untrusted ``data``, whose body and raw part are views, not copies.

    Raises WireError, and nothing else, when ``data`` is longer than ``max_bytes``, damaged,
    of another protocol, or not about the model that ``schema`` describes. Without ``schema``
    the packet must carry its own; whether to accept that one is for the caller to say.
    """
    view = memoryview(data)
    if len(view) > max_bytes:
        raise WireError(f"packet: {len(view)} bytes, at most {max_bytes} are accepted")
    cursor = _checked_start(view)
    kind = cursor.take(1)[0]
    if kind not in set(Kind):
        raise WireError(f"packet: kind {kind} is unknown")
    digest = bytes(cursor.take(DIGEST_BYTES))
    base_version, version = cursor.varint(_MAX_VERSION), cursor.varint(_MAX_VERSION)
    n = cursor.varint(_MAX_COUNT)
    lengths = [cursor.varint(limit) for limit in (MAX_SPEC_CHARS, max_bytes, max_bytes)]
    spec, own_schema, raw = (cursor.take(length) for length in lengths)
    try:
        spec_text = str(spec, "ascii")
    except UnicodeDecodeError as error:
        raise WireError("packet: the codec spec is not ASCII") from error
    packet = Packet(
        kind=Kind(kind),
        spec=spec_text,
        schema_digest=digest,
        base_version=base_version,
        version=version,
        n=n,
        body=cursor.rest(),
        raw=raw,
        schema=bytes(own_schema),
    )
    expected = schema or Schema.from_bytes(packet.schema, max_elements=_MAX_COUNT)
    _check_schema(packet, expected)
    return packet


def kind_of(data: bytes | memoryview) -> Kind:
    """What ``data`` says it is, before it is known whom to check it against."""
    view = memoryview(data)
    if len(view) < 4 or bytes(view[:2]) != MAGIC or view[3] not in set(Kind):
        raise WireError("packet: not a packet, or of unknown kind")
    return Kind(view[3])


def pack_frames(frames: Sequence[bytes]) -> bytes:
    """Several byte strings as one, each behind its length."""
    return b"".join(piece for frame in frames for piece in (varint(len(frame)), frame))


def unpack_frames(data: bytes | memoryview, max_frames: int) -> list[memoryview]:
    """Views of the frames in untrusted ``data``; WireError when there are too many."""
    cursor = Cursor(data, "frames")
    frames: list[memoryview] = []
    left = len(memoryview(data))
    while left:
        if len(frames) == max_frames:
            raise WireError(f"frames: more than the {max_frames} allowed")
        length = cursor.varint(left)
        frames.append(cursor.take(length))
        left -= len(varint(length)) + length
    return frames


def _checked_start(view: memoryview) -> Cursor:
    """A cursor behind magic and protocol over bytes whose checksum was right."""
    start = Cursor(view, "packet")
    if start.take(len(MAGIC)) != MAGIC:
        raise WireError("packet: these bytes are not a fedsys packet")
    protocol = start.take(1)[0]
    if protocol != PROTOCOL:
        raise WireError(
            f"packet: the sender speaks protocol {protocol}, this receiver {PROTOCOL}; "
            "install the same fedsys on both"
        )
    content_bytes = len(view) - _CRC_BYTES
    cursor = Cursor(view[: max(0, content_bytes)], "packet")
    cursor.take(len(MAGIC) + 1)
    if zlib.crc32(view[:content_bytes]) != int.from_bytes(view[content_bytes:], "little"):
        raise WireError("packet: the checksum is wrong, bytes were damaged on the way")
    return cursor


def _check_schema(packet: Packet, schema: Schema) -> None:
    if packet.schema_digest != schema.digest:
        raise WireError(
            f"packet: model {packet.schema_digest.hex()} differs from the receiver's "
            f"{schema.digest.hex()} in a name, shape, dtype or rule"
        )
    if packet.n != schema.n:
        raise WireError(f"packet: {packet.n} coded values, the model has {schema.n}")
    if len(packet.raw) != schema.raw_n_bytes:
        raise WireError(f"packet: {len(packet.raw)} raw bytes, the model has {schema.raw_n_bytes}")
