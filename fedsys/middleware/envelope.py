"""Small messages as one object instead of seven.

Flower moves a message as a tree of objects, and every record, array and chunk of it in a request
of its own, each with about 840 bytes of head and a signature, and half a round trip. A packet of
some kilobytes would pay more for its requests than for itself. ``seal`` puts all records of a
small message into one ``ConfigRecord``; a large one stays as it is, because Flower repeats a
broken request from its beginning and only arrays travel in chunks.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from fedsys._flwr_private import error_instead, with_content
from fedsys.errors import WireError

SEALED = "fedsys.sealed"
"""Name of the record that a sealed message consists of."""
MAX_SEALED_BYTES = 1 << 16
"""Data of the arrays that is still sealed; at 64 kbit/s as much takes 8 s of a request's 30."""
_KEY = "r"
_PREFIX = 4
_SLACK_BYTES = 1 << 16
"""What names, configuration and metrics may take beside the data."""

Record = ArrayRecord | ConfigRecord | MetricRecord
_PLAIN: Mapping[str, Callable[[dict[str, Any]], Record]] = {"c": ConfigRecord, "m": MetricRecord}


def seal(content: RecordDict) -> RecordDict:
    """``content`` in one record, or ``content`` itself where that would not help.

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
    if not parts or sum(map(len, parts)) > MAX_SEALED_BYTES:
        return content
    try:
        text = json.dumps(table, separators=(",", ":")).encode()
    except TypeError:  # bytes in a user's configuration
        return content
    if len(text) > _SLACK_BYTES:
        return content
    data = b"".join([len(text).to_bytes(_PREFIX, "little"), text, *parts])
    return RecordDict({SEALED: ConfigRecord({_KEY: data})})


def unseal(content: RecordDict) -> RecordDict:
    """What ``seal`` was given. Raises WireError for anything that ``seal`` does not make."""
    sealed = content.get(SEALED)
    if sealed is None:
        return content
    data = sealed.get(_KEY) if isinstance(sealed, ConfigRecord) else None
    if not isinstance(data, bytes) or len(data) > _PREFIX + _SLACK_BYTES + MAX_SEALED_BYTES:
        raise WireError("a sealed message without data, or with too much of it")
    end = _PREFIX + int.from_bytes(data[:_PREFIX], "little")
    try:
        records, end = _records(json.loads(data[_PREFIX:end]), data, end)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise WireError(f"a sealed message cannot be read: {str(error)[:120]}") from None
    if end != len(data):
        raise WireError(f"a sealed message of {len(data)} bytes names {end}")
    return RecordDict(records)


def sealed_message(message: Message) -> Message:
    """``message`` with its content sealed; the message that was given stays as it is."""
    return with_content(message, seal(message.content)) if message.has_content() else message


def unsealed_reply(reply: Message) -> Message:
    """``reply`` with its content unsealed, or an error that says why it cannot be."""
    if not reply.has_content() or SEALED not in reply.content:
        return reply
    try:
        return with_content(reply, unseal(reply.content))
    except WireError as error:
        return error_instead(reply, f"reply of node {reply.metadata.src_node_id}: {error}")


def moves_objects(grid: Grid) -> bool:
    """Whether ``grid`` sends messages as trees of objects, which is what sealing saves.

    A grid inside this process moves them whole and says so by an attribute ``whole_messages``.
    """
    return not getattr(grid, "whole_messages", False)


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
