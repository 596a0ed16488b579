"""The client's half: a Flower mod that unpacks the model and packs the update.

``ClientApp(mods=[codec_mod])`` is all that a client needs. The app inside sees plain Flower
records; what crosses the network is one packet each way. A message from a server without
``CodecGrid`` passes through untouched.
"""

from collections.abc import Callable

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict

from fedsys.middleware.conform import conform
from fedsys.middleware.control import RECORD, array_records, wrap
from fedsys.middleware.envelope import sealed_message, unseal
from fedsys.middleware.exchange import Opened, code_update, open_packet
from fedsys.middleware.store import HeldModel
from fedsys.wire.schema import Array as Values
from fedsys.wire.schema import Schema

CallNext = Callable[[Message, Context], Message]


def codec_mod(message: Message, context: Context, call_next: CallNext) -> Message:
    """Decode what came, run the app, encode what it answers. Raises WireError on bad input."""
    content = unseal(message.content) if message.has_content() else RecordDict()
    opened = open_packet(content, context)
    if opened is None:
        return call_next(message, context)
    message.content = _plain(content, opened.record, opened.model)
    reply = call_next(message, context)
    if reply.has_content() and message.metadata.message_type.startswith("train"):
        _encode_reply(reply.content, opened)
    pieces = opened.control.piece_bytes
    return sealed_message(reply, pieces) if pieces else reply


def _encode_reply(content: RecordDict, opened: Opened) -> None:
    """Replace the trained tensors in ``content`` by one packet."""
    if not array_records(content):
        return
    schema = opened.model.schema
    name, trained = _trained(content, schema)
    flat, raw = schema.split(trained)
    coded = code_update(opened, flat, raw, schema.split_exact(trained)[0])
    content[name] = wrap(coded.packet(opened, raw))
    content[RECORD] = MetricRecord({**coded.figures})


def _trained(content: RecordDict, schema: Schema) -> tuple[str, dict[str, Values]]:
    """The name of the record that holds the trained model, and its tensors."""
    names = {tensor.name for tensor in schema.tensors}
    records = array_records(content)
    name = next((name for name in records if records[name].keys() == names), next(iter(records)))
    return name, conform({key: array.numpy() for key, array in records[name].items()}, schema)


def _plain(content: RecordDict, name: str, model: HeldModel) -> RecordDict:
    """The content as an app without codecs would have got it."""
    plain = RecordDict({key: value for key, value in content.items() if key != RECORD})
    plain[name] = ArrayRecord({key: Array(array) for key, array in model.arrays().items()})
    return plain
