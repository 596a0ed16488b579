"""The client's half: a Flower mod that unpacks the model and packs the update.

``ClientApp(mods=[codec_mod])`` is all that a client needs. The app inside sees plain Flower
records; what crosses the network is one packet each way. A message from a server without
``CodecGrid`` passes through untouched.
"""

import contextlib
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict

from fedsys.codecs._base import Dense, all_finite, check_finite, sum_of_squares
from fedsys.codecs._chain import Codec, parse_received
from fedsys.codecs._feedback import Feedback, encode_with_feedback
from fedsys.errors import WireError
from fedsys.middleware.conform import conform
from fedsys.middleware.control import MAX_NORM, RECORD, Control, unwrap, wrap
from fedsys.middleware.envelope import sealed_message, unseal
from fedsys.middleware.store import ClientStore, HeldModel, NodeState, Pending
from fedsys.middleware.trials import trial_figures
from fedsys.rng import rng_for
from fedsys.types import F32, RunConfig
from fedsys.wire.packet import Kind, Packet, kind_of, pack, unpack, unpack_frames
from fedsys.wire.schema import Array as Values
from fedsys.wire.schema import Schema

MAX_FRAMES = 1024
MAX_PACKET_BYTES = 1 << 34
STATE_KEY = "state-dir"
"""Node config key that names the folder for residuals and models."""
DURABLE_KEY = "durable"
"""Node config key; False says that this node is simulated and shares its folder with others."""
RUNS_KEPT = 8
"""Runs whose state a device keeps; the oldest is forgotten when a new one begins."""
_OUTSIDE = re.compile(r"[\w.:]*:[\w.:]*", re.ASCII)

CallNext = Callable[[Message, Context], Message]


def codec_mod(message: Message, context: Context, call_next: CallNext) -> Message:
    """Decode what came, run the app, encode what it answers. Raises WireError on bad input."""
    content = unseal(message.content) if message.has_content() else RecordDict()
    found = unwrap(content)
    if found is None:
        return call_next(message, context)
    message.content = content
    name, data = found
    control = Control.from_content(content)
    store = _store(context)
    state = store.load(context.node_id) if control.oldest_version else NodeState()
    version, model = receive(data, state, control, store, context.run_config)
    is_new = (version, control.checksum) != (state.held_version, state.held_checksum)
    if control.oldest_version and is_new:
        store.save_model(version, model, oldest_version=control.oldest_version)
        state = replace(state, held_version=version, held_checksum=control.checksum)
        store.save(context.node_id, state)
    message.content = _plain(content, name, model)
    reply = call_next(message, context)
    if reply.has_content() and message.metadata.message_type.startswith("train"):
        _encode_reply(reply.content, (version, model), control, store, context)
    return sealed_message(reply) if control.seals else reply


def receive(
    data: bytes, state: NodeState, control: Control, store: ClientStore, run_config: RunConfig
) -> tuple[int, HeldModel]:
    """The model that the frames in ``data`` lead to, and its version.

    No frames say that the node has it. Differences that the node already has are passed over, so
    that a message sent twice does no harm. Raises WireError when the node lacks the model that a
    difference builds upon, or ends up with another one than the server's.
    """
    frames = unpack_frames(data, MAX_FRAMES)
    if frames and kind_of(frames[0]) is Kind.MODEL:
        version, model = _whole(unpack(frames.pop(0), schema=None, max_bytes=MAX_PACKET_BYTES))
    else:
        version = state.held_version
        held = store.load_model(version, state.held_checksum) if version else None
        if held is None:
            raise WireError(f"this node lacks model {version}, send the whole model")
        model = held
    for frame in frames:
        packet = unpack(frame, schema=model.schema, max_bytes=MAX_PACKET_BYTES)
        if packet.kind is Kind.DELTA and packet.version <= version:
            continue
        if packet.kind is not Kind.DELTA or packet.base_version != version:
            raise WireError(f"model {version} cannot take a packet based on {packet.base_version}")
        codec = _codec(packet.spec, run_config)
        step = codec.decode(packet.body, packet.n, model.schema.layout).dense()
        stepped = model.schema.join(model.flat() + step, packet.raw)
        version, model = packet.version, HeldModel.of(model.schema, stepped)
    if model.checksum() != control.checksum:
        raise WireError(f"model {version} is not what the server has, send the whole model")
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
    store: ClientStore,
    context: Context,
) -> None:
    """Replace the trained tensors in ``content`` by one packet, and remember what it left out."""
    if not content.array_records:
        return
    (version, model), node = received, context.node_id
    name, trained = _trained(content, model.schema)
    flat, raw = model.schema.split(trained)
    update = flat - model.flat()
    codec = _codec(control.uplink, context.run_config)
    made = _compensated(codec, trained, update, received, control, store, node)
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
    figures = MetricRecord(
        {
            "update-norm": float(np.sqrt(sum_of_squares(update))),
            "residual-norm": float(np.sqrt(sum_of_squares(made.residual))),
            "nmse": float(made.nmse),
        }
    )
    if control.trials:
        tried = [_codec(spec, context.run_config) for spec in control.trials]
        figures.update(trial_figures(tried, made.compensated, control.seed))
    content[RECORD] = figures


def _compensated(
    codec: Codec,
    trained: Mapping[str, Values],
    update: F32,
    received: tuple[int, HeldModel],
    control: Control,
    store: ClientStore,
    node: int,
) -> Feedback:
    """Encode the update with what earlier rounds left, and keep what this one leaves.

    An update too large for any server to accept is not kept: it would spoil all later ones.
    """
    version, model = received
    state = store.load(node).of_size(model.schema.n)
    base = replace(state, residual=None, pending=None)
    if control.feedback:
        base = state.settled(
            version=version, acked_version=control.acked_version, rule=control.rule
        )
    residual = control.rule.clipped(base.residual, update)
    if codec.stages:
        rng = rng_for(control.seed, "uplink", node, version)
        made = encode_with_feedback(codec, update, residual, model.schema.layout, rng)
    else:
        made = _encode_exact(model, trained, update, residual)
    if control.feedback and (codec.stages or base.residual is not None):
        pending = None
        if sum_of_squares(made.compensated) <= MAX_NORM**2:
            pending = Pending(version=version, compensated=made.compensated, left=made.residual)
        store.save(node, replace(base, pending=pending))
    return made


def _encode_exact(
    model: HeldModel, trained: Mapping[str, Values], update: F32, residual: F32 | None
) -> Feedback:
    """Codec ``none``: the trained tensors in their own dtypes, what earlier codecs left added.

    The server gets them bit for bit where nothing was left; a sum is rounded to their dtypes.
    """
    schema, before = model.schema, model.flat()
    compensated, sent = update, trained
    if residual is not None:
        compensated = update + residual
        sent = schema.join(before + compensated, schema.split_exact(trained)[1])
    check_finite(compensated)
    decoded = schema.split(sent)[0] - before
    body, _ = schema.split_exact(sent)
    return Feedback(body, Dense(decoded), compensated, compensated - decoded, 0.0)


def _trained(content: RecordDict, schema: Schema) -> tuple[str, dict[str, Values]]:
    """The name of the record that holds the trained model, and its tensors."""
    names = {tensor.name for tensor in schema.tensors}
    records = content.array_records
    name = next((name for name in records if records[name].keys() == names), next(iter(records)))
    return name, conform({key: array.numpy() for key, array in records[name].items()}, schema)


def _plain(content: RecordDict, name: str, model: HeldModel) -> RecordDict:
    """The content as an app without codecs would have got it."""
    plain = RecordDict({key: value for key, value in content.items() if key != RECORD})
    plain[name] = ArrayRecord({key: Array(array) for key, array in model.arrays().items()})
    return plain


def _codec(spec: str, run_config: RunConfig) -> Codec:
    """The codec that the server named; WireError where there is none.

    One from outside fedsys is imported only if the run config, which comes with the app and not
    with the message, names it too.
    """
    known = " ".join(str(value) for value in run_config.values())
    named = set(_OUTSIDE.findall(spec)) <= set(_OUTSIDE.findall(known))
    return parse_received(spec, trusted=(spec,) if named else ())


def _store(context: Context) -> ClientStore:
    """The folder of this run: one for each device, one for all simulated nodes together."""
    folder = context.node_config.get(STATE_KEY)
    base = Path.home() / ".fedsys" if folder is None else Path(str(folder))
    run = base / f"run-{context.run_id}"
    if not run.exists():
        _forget_old_runs(base)
    shared = not context.node_config.get(DURABLE_KEY, True)
    return ClientStore(run if shared else run / f"node-{context.node_id}", shared=shared)


def _forget_old_runs(base: Path) -> None:
    """Make room for one more run; another process may be doing the same."""
    with contextlib.suppress(FileNotFoundError):
        runs = sorted(base.glob("run-*"), key=lambda run: run.stat().st_mtime)
        for run in runs[: max(0, len(runs) - RUNS_KEPT + 1)]:
            shutil.rmtree(run, ignore_errors=True)
