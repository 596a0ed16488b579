"""What a Flower message puts on a link, both ways.

Flower 1.42 moves a message as a tree of objects over HTTP: one request announces it, one more
moves each object, two of them at a time, and one confirms that all have come. Requests are signed.
The figures were read off the sockets of a SuperLink and its SuperNodes; a test repeats that.
"""

from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedsys.middleware.control import unwrap
from fedsys.middleware.envelope import PIECE_BYTES
from netem.transfer import Traffic

HEAD_BYTES = 842
"""Head of a request, with key, time stamp and signature."""
ANSWER_BYTES = 145
"""Head of an answer."""
ASKING_BYTES = HEAD_BYTES + 90
"""A request that asks for an object or confirms a message."""
OBJECT_BYTES = 240
"""What an object is wrapped in: its type, the ids of its children and of itself."""
ANNOUNCEMENT_BYTES = 430
"""Metadata and tree of a message."""
SEALED_BYTES = 330
"""Names, types and settings of the records of a sealed message; see ``fedsys.middleware``."""


def download(message: Message) -> Traffic:
    """A message from server to client: the client asks for each object and confirms the whole.

    Round trips: one per two objects, one to confirm.
    """
    objects = _objects(message)
    return Traffic(
        size_bytes=_payload_bytes(message, objects)
        + ANNOUNCEMENT_BYTES
        + (objects + 2) * ANSWER_BYTES,
        back_bytes=(objects + 2) * ASKING_BYTES,
        round_trips=-(-min(objects, _TREE) // 2) + 1,
    )


def upload(message: Message) -> Traffic:
    """A reply: the client announces it and sends each object.

    Round trips: one to announce, one per two objects, the last of which is the data's own.
    """
    objects = _objects(message)
    return Traffic(
        size_bytes=_payload_bytes(message, objects)
        + ANNOUNCEMENT_BYTES
        + (objects + 1) * HEAD_BYTES,
        back_bytes=(objects + 1) * ANSWER_BYTES,
        round_trips=-(-min(objects, _TREE) // 2),
    )


_TREE = 16
"""Objects whose requests are waited for; the pieces of a large message fill the link instead."""


def _payload_bytes(message: Message, objects: int) -> int:
    """Objects with what is in them; of an error, whose text depends on the machine, only those."""
    content = 0 if message.has_error() else content_bytes(message.content)
    return content + objects * OBJECT_BYTES


def _objects(message: Message) -> int:
    """Into how many objects Flower takes ``message`` apart: itself, its records, their arrays.

    A message with a packet of fedsys goes in pieces instead.
    """
    if message.has_error():
        return 1
    if unwrap(message.content) is not None:
        return 2 + -(-(content_bytes(message.content) + SEALED_BYTES) // PIECE_BYTES)
    return 2 + sum(
        1 + sum(1 + max(1, -(-len(array.data) // CHUNK_BYTES)) for array in record.values())
        if isinstance(record, ArrayRecord)
        else 1
        for record in message.content.values()
    )


CHUNK_BYTES = 5 << 20
"""Largest piece of an array, unless FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE says otherwise."""


def content_bytes(content: RecordDict) -> int:
    """Bytes of the records themselves: the length of the arrays' data, the rest deflated."""
    size_bytes = 0
    for record in content.values():
        if isinstance(record, ArrayRecord):
            size_bytes += sum(len(array.data) for array in record.values())
        else:
            size_bytes += _deflated_bytes(record)
    return size_bytes


def _deflated_bytes(record: ConfigRecord | MetricRecord) -> int:
    """The length of ``record.deflate()``, which depends on names, types and digits alone."""
    shape = (type(record), *map(_shape, record.items()))
    size_bytes = _KNOWN.get(shape)
    if size_bytes is None:
        if len(_KNOWN) >= _MAX_KNOWN:
            _KNOWN.clear()
        size_bytes = _KNOWN[shape] = len(record.deflate())
    return size_bytes


def _shape(item: tuple[str, Any]) -> tuple[Any, ...]:
    """What an entry's length in protobuf depends on; a float has eight bytes, whatever it is."""
    name, value = item
    kind = type(value)
    if kind is float or kind is bool:
        return name, kind
    if kind is int:
        # Seven bits a byte, of a number that also says the sign.
        return name, kind, value < 0, (value if value >= 0 else -value - 1).bit_length()
    if kind is str:
        return name, kind, len(value.encode())
    if kind is bytes:
        return name, kind, len(value)
    return name, kind, tuple(map(_shape, (("", one) for one in value)))


_KNOWN: dict[tuple[Any, ...], int] = {}
_MAX_KNOWN = 4096
