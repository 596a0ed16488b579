"""How many bytes a Flower message puts on a link."""

from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

MESSAGE_OVERHEAD_BYTES = 2800
"""What a message of one array costs besides its data, per direction.

Flower sends a message as a tree of objects, each in an HTTP request of its own: message, records,
array, chunk. In 1.42 the tree without data and configuration deflates to about 720 bytes, and six
requests have about 350 bytes of head and framing each. Nothing is added for further arrays.
"""


def message_bytes(message: Message) -> int:
    """Bytes of ``message`` on the wire: packed data, deflated configuration, a fixed overhead.

    An error counts as overhead only: the length of a traceback depends on the machine.
    """
    content = 0 if message.has_error() else content_bytes(message.content)
    return MESSAGE_OVERHEAD_BYTES + content


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
