"""What a Flower message puts on a link, both ways.

Flower 1.42 moves a message as a tree of objects over HTTP: one request announces it, one more
moves each object, two of them at a time, and one confirms that all have come. Requests are signed.
The figures were read off the sockets of a SuperLink and its SuperNodes; a test repeats that.
"""

from collections.abc import Sequence
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord

from fedsys.middleware.control import PACKET, STYPE
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
_FIGURES_BYTES = 230
"""Metrics beside a packet, about."""
CHUNK_BYTES = 5 << 20
"""Largest piece of an array, unless FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE says otherwise."""
_WAITED_FOR = 8


def download(message: Message) -> Traffic:
    """A message from server to client, which asks for each object and confirms the whole.

    Round trips: one per two objects, one to confirm.
    """
    objects, size_bytes = _objects(message)
    return Traffic(
        size_bytes=size_bytes + ANNOUNCEMENT_BYTES + (objects + 2) * ANSWER_BYTES,
        back_bytes=(objects + 2) * ASKING_BYTES,
        round_trips=_turns(objects) + 1,
    )


def upload(message: Message) -> Traffic:
    """A reply: the client announces it and sends each object."""
    return _upload(*_objects(message))


def packet_upload(size_bytes: int) -> Traffic:
    """A reply with a packet of fedsys of ``size_bytes``."""
    return _upload(*_pieces(size_bytes + _FIGURES_BYTES))


def _upload(objects: int, size_bytes: int) -> Traffic:
    """Round trips: one to announce, one per two objects, the last of which is the data's own."""
    return Traffic(
        size_bytes=size_bytes + ANNOUNCEMENT_BYTES + (objects + 1) * HEAD_BYTES,
        back_bytes=(objects + 1) * ANSWER_BYTES,
        round_trips=_turns(objects),
    )


def _turns(objects: int) -> int:
    """Turns of two objects; of many, only the first are waited for, the others fill the link."""
    return -(-min(objects, _WAITED_FOR) // 2)


def _objects(message: Message) -> tuple[int, int]:
    """How many objects ``message`` comes apart into, and their bytes.

    Itself, its records, their arrays and chunks; a message with a packet of fedsys goes in pieces.
    An error counts without its text, whose length depends on the machine.
    """
    if message.has_error():
        return 1, OBJECT_BYTES
    objects, size_bytes, sealed = 2, 0, False
    for record in message.content.values():
        objects += 1
        size_bytes += record_bytes(record)
        for name, array in record.items() if isinstance(record, ArrayRecord) else ():
            objects += 1 + max(1, -(-len(array.data) // CHUNK_BYTES))
            sealed = sealed or (name == PACKET and array.stype == STYPE)
    return _pieces(size_bytes) if sealed else (objects, size_bytes + objects * OBJECT_BYTES)


def _pieces(size_bytes: int) -> tuple[int, int]:
    size_bytes += SEALED_BYTES
    objects = 2 + -(-size_bytes // PIECE_BYTES)
    return objects, size_bytes + objects * OBJECT_BYTES


def record_bytes(record: ArrayRecord | ConfigRecord | MetricRecord) -> int:
    """Bytes of a record itself: the length of its arrays' data, or of any other deflated."""
    if isinstance(record, ArrayRecord):
        return sum([len(array.data) for array in record.values()])
    return _deflated_bytes(record)


def _deflated_bytes(record: ConfigRecord | MetricRecord) -> int:
    """The length of ``record.deflate()``, which depends on names, types and digits alone."""
    # A float has eight bytes, whatever it is, so its name alone will do.
    shape: tuple[Any, ...] = (
        type(record),
        *[name if type(v) is float else (name, _shape(v)) for name, v in record.items()],
    )
    size_bytes = _KNOWN.get(shape)
    if size_bytes is None:
        if len(_KNOWN) >= _MAX_KNOWN:
            _KNOWN.clear()
        size_bytes = _KNOWN[shape] = len(record.deflate())
    return size_bytes


def _shape(value: Any) -> Any:
    """What a value's length in protobuf depends on."""
    kind = type(value)
    if kind is int:
        # Seven bits a byte, of a number that also says the sign.
        return kind, value < 0, (value if value >= 0 else -value - 1).bit_length()
    if kind is str:
        return kind, len(value.encode())
    if kind is bytes:
        return kind, len(value)
    return kind if kind in (float, bool) else (kind, *map(_shape, value))


_KNOWN: dict[tuple[Any, ...], int] = {}
_MAX_KNOWN = 4096


def downloads(messages: Sequence[Message]) -> list[Traffic]:
    """What each message costs; content that several share is looked at once."""
    known: dict[int, Traffic] = {}
    sizes = []
    for message in messages:
        key = id(message.content) if message.has_content() else -1
        size = known.get(key)
        if size is None:
            size = known[key] = download(message)
        sizes.append(size)
    return sizes
