"""A message as few objects as can be, each small enough to arrive.

Flower moves a message as a tree of objects, and every record, array and chunk of it in a request
of its own, each with about 840 bytes of signed head and half a round trip. A packet of some
kilobytes would pay more for its requests than for itself. A request that breaks is sent again
from its beginning, and one that takes 30 s breaks. ``seal`` puts all records of a message into
one text and the data of its arrays behind it, and cuts that into pieces: one object each, beside
the two that every message has.
"""

import json
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from fedsys._flwr_private import error_instead, with_content
from fedsys.errors import WireError

SEALED = "fedsys.sealed"
"""Name of the first record of a sealed message; further pieces are ``fedsys.sealed.1`` and so on.
"""
PIECE_BYTES = 1 << 17
"""Largest piece: two at once take 10 s at 210 kbit/s, a third of what Flower allows a request."""
MAX_PIECES = 1 << 16
_KEY = "r"
_PREFIX = 4
_MAX_TEXT_BYTES = 1 << 20
"""What names, configuration and metrics may take beside the data."""

Record = ArrayRecord | ConfigRecord | MetricRecord
_PLAIN: Mapping[str, Callable[[dict[str, Any]], Record]] = {"c": ConfigRecord, "m": MetricRecord}


def seal(content: RecordDict, piece_bytes: int = PIECE_BYTES) -> RecordDict:
    """``content`` as pieces, or ``content`` itself where it has no arrays or bytes in its settings.

    Layout of the bytes: uint32 little-endian length of a JSON text, the text, the data of all
    arrays in its order. The text maps each record's name to ``["c" | "m", values]`` or to
    ``["a", [[key, dtype, shape, stype, size_bytes], ...]]``.
    """
    parts: list[bytes] = []
    table: dict[str, list[Any]] = {}
    for name, record in content.items():
        if isinstance(record, ArrayRecord):
            table[name] = ["a", [_row(key, array, parts) for key, array in record.items()]]
        else:
            table[name] = ["c" if isinstance(record, ConfigRecord) else "m", dict(record)]
    if not parts:
        return content
    try:
        text = json.dumps(table, separators=(",", ":")).encode()
    except TypeError:  # bytes in a user's configuration
        return content
    if len(text) > _MAX_TEXT_BYTES:
        return content
    data = b"".join([len(text).to_bytes(_PREFIX, "little"), text, *parts])
    cuts = _cuts(len(data), piece_bytes)
    return RecordDict(
        {
            _name(number): ConfigRecord({_KEY: data[begin:end]})
            for number, (begin, end) in enumerate(pairwise(cuts))
        }
    )


def unseal(content: RecordDict) -> RecordDict:
    """What ``seal`` was given. Raises WireError for anything that ``seal`` does not make."""
    if SEALED not in content:
        return content
    data = _joined(content)
    end = _PREFIX + int.from_bytes(data[:_PREFIX], "little")
    if end > _PREFIX + _MAX_TEXT_BYTES:
        raise WireError("a sealed message with a text that is too long")
    try:
        records, end = _records(json.loads(data[_PREFIX:end]), data, end)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise WireError(f"a sealed message cannot be read: {str(error)[:120]}") from None
    if end != len(data):
        raise WireError(f"a sealed message of {len(data)} bytes names {end}")
    return RecordDict(records)


def sealed_message(message: Message, piece_bytes: int) -> Message:
    """``message`` with its content sealed; the message that was given stays as it is."""
    if not message.has_content():
        return message
    return with_content(message, seal(message.content, piece_bytes))


def unsealed_reply(reply: Message) -> Message:
    """``reply`` with its content unsealed, or an error that says why it cannot be."""
    if not reply.has_content() or SEALED not in reply.content:
        return reply
    try:
        return with_content(reply, unseal(reply.content))
    except WireError as error:
        return error_instead(reply, f"reply of node {reply.metadata.src_node_id}: {error}")


def piece_bytes_for(grid: Grid) -> int:
    """The largest piece that ``grid`` should be given; 0 where sealing gains nothing.

    A grid inside this process moves messages whole, and says so by an attribute
    ``whole_messages``; one that knows its links says by ``piece_bytes`` what they take.
    """
    if getattr(grid, "whole_messages", False):
        return 0
    piece_bytes: int = getattr(grid, "piece_bytes", PIECE_BYTES)
    return piece_bytes


def _cuts(size_bytes: int, piece_bytes: int) -> list[int]:
    """Where the pieces begin, and the end.

    The first of several is half as long: two that are sent at once would come to their ends at
    once, and the link would stand still until the server has answered both.
    """
    if size_bytes <= piece_bytes:
        return [0, size_bytes]
    return [0, *range((piece_bytes + 1) // 2, size_bytes, piece_bytes), size_bytes]


def _name(number: int) -> str:
    return f"{SEALED}.{number}" if number else SEALED


def _joined(content: RecordDict) -> bytes:
    """The bytes of all pieces; nothing else may be in the message."""
    if len(content) > MAX_PIECES:
        raise WireError(f"a sealed message in {len(content)} pieces, at most {MAX_PIECES}")
    pieces: list[bytes] = []
    for number in range(len(content)):
        record = content.get(_name(number))
        piece = record.get(_KEY) if isinstance(record, ConfigRecord) else None
        if not isinstance(piece, bytes):
            raise WireError(f"a sealed message lacks piece {number} of {len(content)}")
        pieces.append(piece)
    return b"".join(pieces)


def _row(key: str, array: Array, parts: list[bytes]) -> list[Any]:
    parts.append(array.data)
    return [key, array.dtype, array.shape, array.stype, len(array.data)]


def _records(table: dict[str, Any], data: bytes, begin: int) -> tuple[dict[str, Record], int]:
    records: dict[str, Record] = {}
    for name, (kind, values) in table.items():
        if kind != "a":
            records[name] = _PLAIN[kind](values)
            continue
        arrays = {}
        for key, dtype, shape, stype, size_bytes in values:
            end = begin + size_bytes
            if not (isinstance(size_bytes, int) and begin <= end <= len(data)):
                raise WireError("a sealed message names more data than it has")
            arrays[str(key)] = Array(str(dtype), tuple(shape), str(stype), data[begin:end])
            begin = end
        records[name] = ArrayRecord(arrays)
    return records, begin
