"""The client's half: a Flower mod that unpacks the model and packs the update.

``ClientApp(mods=[codec_mod])`` is all that a client needs. The app inside sees plain Flower
records; what crosses the network is one packet each way. A message from a server without
``CodecGrid`` passes through untouched.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict

from fedsys.codecs._base import Dense, all_finite, check_finite, sum_of_squares
from fedsys.codecs._chain import parse_received
from fedsys.codecs._feedback import Feedback, encode_with_feedback
from fedsys.errors import WireError
from fedsys.middleware.control import RECORD, Control, unwrap, wrap
from fedsys.middleware.store import ClientStore, HeldModel, NodeState, Pending
from fedsys.rng import rng_for
from fedsys.types import F32
from fedsys.wire.packet import Kind, Packet, kind_of, pack, unpack, unpack_frames
from fedsys.wire.schema import Array as Values
from fedsys.wire.schema import Schema

MAX_FRAMES = 1024
MAX_PACKET_BYTES = 1 << 34
STATE_KEY = "state-dir"
"""Node config key that names the folder for residuals and models."""

CallNext = Callable[[Message, Context], Message]


def codec_mod(message: Message, context: Context, call_next: CallNext) -> Message:
    """Decode what came, run the app, encode what it answers. Raises WireError on bad input."""
    found = unwrap(message.content) if message.has_content() else None
    if found is None:
        return call_next(message, context)
    name, data = found
    control = Control.from_record(message.content.config_records[RECORD])
    node = int(context.node_config.get("partition-id", context.node_id))
    store = _store(context)
    state = store.load(node) if control.oldest_version else NodeState()
    version, model = receive(data, state.held_version, store)
    if control.oldest_version and state.held_version != version:
        store.save_model(version, model, oldest_version=control.oldest_version)
        state = replace(state, held_version=version)
        store.save(node, state)
    message.content = _plain(message.content, name, model)
    reply = call_next(message, context)
    if reply.has_content() and message.metadata.message_type.startswith("train"):
        _encode_reply(reply.content, (version, model), control, node, store)
    return reply


def receive(data: bytes, held_version: int, store: ClientStore) -> tuple[int, HeldModel]:
    """The model that the frames in ``data`` lead to, and its version.

    Differences that the node already has are passed over, so that a message sent twice does no
    harm. Raises WireError when the node lacks the model that a difference builds upon.
    """
    frames = unpack_frames(data, MAX_FRAMES)
    if not frames:
        raise WireError("the message holds no model")
    if kind_of(frames[0]) is Kind.MODEL:
        version, model = _whole(unpack(frames.pop(0), schema=None, max_bytes=MAX_PACKET_BYTES))
    else:
        held = store.load_model(held_version) if held_version else None
        if held is None:
            raise WireError(f"this node lacks model {held_version}, send the whole model")
        version, model = held_version, held
    for frame in frames:
        packet = unpack(frame, schema=model.schema, max_bytes=MAX_PACKET_BYTES)
        if packet.kind is Kind.DELTA and packet.version <= version:
            continue
        if packet.kind is not Kind.DELTA or packet.base_version != version:
            raise WireError(f"model {version} cannot take a packet based on {packet.base_version}")
        codec = parse_received(packet.spec)
        step = codec.decode(packet.body, packet.n, model.schema.layout).dense()
        stepped = model.schema.join(model.flat() + step, packet.raw)
        version, model = packet.version, HeldModel.of(model.schema, stepped)
    return version, model


def _whole(packet: Packet) -> tuple[int, HeldModel]:
    if packet.spec != "none":
        raise WireError(f"a whole model in codec '{packet.spec[:80]}', expected 'none'")
    model = HeldModel(Schema.from_bytes(packet.schema), bytes(packet.body), bytes(packet.raw))
    if not all_finite(model.flat()):
        raise WireError("the model holds NaN or infinite values")
    return packet.version, model


def _encode_reply(
    content: RecordDict,
    received: tuple[int, HeldModel],
    control: Control,
    node: int,
    store: ClientStore,
) -> None:
    """Replace the trained tensors in ``content`` by one packet, and remember what it left out."""
    version, model = received
    name, trained = _trained(content, model.schema)
    state = store.load(node)
    base = NodeState(held_version=state.held_version)
    if control.feedback:
        base = state.settled(
            version=version, acked_version=control.acked_version, decay=control.decay
        )
    codec = parse_received(control.uplink)
    before = model.flat()
    flat, raw = model.schema.split(trained)
    if codec.stages:
        rng = rng_for(control.seed, "uplink", node, version)
        layout = model.schema.layout
        made = encode_with_feedback(codec, flat - before, base.residual, layout, rng)
    else:
        made = _encode_exact(model.schema, before, trained, base.residual)
    if control.feedback and (codec.stages or base.residual is not None):
        pending = Pending(version=version, compensated=made.compensated, left=made.residual)
        store.save(node, replace(base, pending=pending))
    packet = Packet(
        kind=Kind.UPDATE,
        spec=codec.spec,
        schema_digest=model.schema.digest,
        base_version=version,
        version=version,
        n=model.schema.n,
        body=made.body,
        raw=raw,
    )
    content[name] = wrap(pack(packet))
    content[RECORD] = MetricRecord(
        {
            "update-norm": float(np.sqrt(sum_of_squares(flat - before))),
            "residual-norm": float(np.sqrt(sum_of_squares(made.residual))),
            "nmse": float(made.nmse),
        }
    )


def _encode_exact(
    schema: Schema, before: F32, trained: Mapping[str, Values], residual: F32 | None
) -> Feedback:
    """Codec ``none``: the trained tensors in their own dtypes, what earlier codecs left added.

    The server gets them bit for bit where nothing was left; a sum is rounded to their dtypes.
    """
    flat, raw = schema.split(trained)
    compensated = flat - before
    sent = trained
    if residual is not None:
        compensated += residual
        sent = schema.join(before + compensated, raw)
    check_finite(compensated)
    decoded = schema.split(sent)[0] - before
    body, _ = schema.split_exact(sent)
    return Feedback(body, Dense(decoded), compensated, compensated - decoded, 0.0)


def _trained(content: RecordDict, schema: Schema) -> tuple[str, dict[str, Values]]:
    """The name of the record that holds the trained model, and its tensors."""
    names = [tensor.name for tensor in schema.tensors]
    for name, record in content.array_records.items():
        if list(record) == names:
            return name, {key: array.numpy() for key, array in record.items()}
    raise WireError(f"the reply holds no ArrayRecord with the {len(names)} tensors of the model")


def _plain(content: RecordDict, name: str, model: HeldModel) -> RecordDict:
    """The content as an app without codecs would have got it."""
    plain = RecordDict({key: value for key, value in content.items() if key != RECORD})
    plain[name] = ArrayRecord({key: Array(array) for key, array in model.arrays().items()})
    return plain


def _store(context: Context) -> ClientStore:
    """The node's folder; a device without one of its own gets a folder per run in its home."""
    folder = context.node_config.get(STATE_KEY)
    if folder is not None:
        return ClientStore(
            Path(str(folder)), durable=bool(context.node_config.get("durable", True))
        )
    home = Path.home() / ".fedsys" / f"run-{context.run_id}" / f"node-{context.node_id}"
    return ClientStore(home, durable=True)
