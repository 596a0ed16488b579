"""What a client does with a packet and with an update, whatever trains in between.

Opening a packet gives the server's model; an update is coded with what earlier ones left, and what
it leaves is kept. The mod does this for one message of a Flower app, a simulation for many.
"""

import contextlib
import math
import re
import shutil
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import get_args

import numpy as np
from flwr.app import Context, RecordDict

from fedsys.codecs._base import Dense, Update, all_finite, check_finite, sum_of_squares
from fedsys.codecs._chain import Codec, parse_received
from fedsys.codecs._feedback import encode_with_feedback
from fedsys.config.schema import FirstModel
from fedsys.errors import WireError
from fedsys.middleware.control import MAX_NORM, Control, unwrap
from fedsys.middleware.store import ClientStore, HeldModel, NodeState, Pending
from fedsys.middleware.trials import trial_figures
from fedsys.rng import rng_for
from fedsys.types import F32, RunConfig
from fedsys.wire.packet import Kind, Packet, kind_of, pack, packed_bytes, unpack, unpack_frames
from fedsys.wire.schema import Schema

MAX_FRAMES = 1024
MODEL_CODECS: tuple[str, ...] = get_args(FirstModel)
"""Of a whole model."""
MAX_PACKET_BYTES = 1 << 34
STATE_KEY = "state-dir"
"""Node config key that names the folder for residuals and models."""
DURABLE_KEY = "durable"
"""Node config key; False says that this node is simulated and shares its folder with others."""
RUNS_KEPT = 8
"""Runs whose state a device keeps; the oldest is forgotten when a new one begins."""
_OUTSIDE = re.compile(r"[\w.:]*:[\w.:]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Opened:
    """A packet that was read: the model, and what is to be done with its update."""

    record: str
    """Name of the record that the packet came in."""
    version: int
    model: HeldModel
    control: Control
    store: ClientStore
    node: int
    run_config: RunConfig


@dataclass(frozen=True, slots=True)
class Coded:
    """An update as it is sent."""

    codec: Codec
    body: bytes | F32
    """Values where they are sent as they are, so that bytes are made only if they are needed."""
    update: Update
    """What the server will see."""
    norm2: float
    """Its squared norm."""
    figures: dict[str, int | float | list[float]]
    """What the client tells of it."""

    def packet(self, opened: Opened, raw: bytes) -> bytes:
        """All that crosses the network; ``raw`` are the tensors that no codec may touch."""
        body = self.body if isinstance(self.body, bytes) else self.body.tobytes()
        return pack(_packet(self.codec, opened, raw, body))

    def packet_bytes(self, opened: Opened, raw: bytes) -> int:
        """The length of that, without making it."""
        body_bytes = len(self.body) if isinstance(self.body, bytes) else self.body.nbytes
        return body_bytes + _bytes_around(
            self.codec.spec,
            opened.model.schema.digest,
            opened.version,
            opened.model.schema.n,
            len(raw),
        )


@dataclass(frozen=True, slots=True)
class _Made:
    body: bytes | F32
    decoded: Update
    norm2: float
    compensated: F32
    left: F32 | None
    """None is zero."""
    nmse: float


def open_packet(content: RecordDict, context: Context) -> Opened | None:
    """The model in ``content``, now also the node's own; None if it holds no packet.

    Raises WireError when the packet is bad, or builds upon a model that the node lacks.
    """
    found = unwrap(content)
    if found is None:
        return None
    name, data = found
    control, store = Control.from_content(content), _store(context)
    state = store.load(context.node_id) if control.oldest_version else NodeState()
    version, model = receive(data, state, control, store, context.run_config)
    is_new = (version, control.checksum) != (state.held_version, state.held_checksum)
    if control.oldest_version and is_new:
        store.save_model(version, model, oldest_version=control.oldest_version)
        state = replace(state, held_version=version, held_checksum=control.checksum)
        store.save(context.node_id, state)
    return Opened(name, version, model, control, store, context.node_id, context.run_config)


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
        frames.pop(0)
        version, model = (_whole_for_many if store.shared else _whole)(data)
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


def _whole(data: bytes) -> tuple[int, HeldModel]:
    """The model in the first frame of ``data``, and its version."""
    packet = unpack(unpack_frames(data, MAX_FRAMES)[0], schema=None, max_bytes=MAX_PACKET_BYTES)
    if packet.spec not in MODEL_CODECS:
        known = ", ".join(MODEL_CODECS)
        raise WireError(f"a whole model in codec '{packet.spec[:80]}', expected one of {known}")
    codec, schema = parse_received(packet.spec), Schema.from_bytes(packet.schema)
    if codec.stages:
        values = codec.decode(packet.body, packet.n, schema.layout).dense()
        model = HeldModel.of(schema, schema.join(values, packet.raw))
    else:
        model = HeldModel(schema, bytes(packet.body), bytes(packet.raw))
    if not all_finite(model.flat()):
        raise WireError("the model holds NaN or infinite values")
    return packet.version, model


_whole_for_many = lru_cache(maxsize=1)(_whole)
"""In a simulation a whole cohort gets the same bytes, object for object."""


def code_update(opened: Opened, trained: F32, raw: bytes, exact: bytes | None = None) -> Coded:
    """Code what training changed, with what earlier rounds left, and keep what this one leaves.

    ``trained`` float32 [n] are the coded values, ``raw`` the bytes of the tensors that are not
    coded. ``exact`` are the coded tensors in their own dtypes, None where all are float32. An
    update too large for any server to accept is not kept: it would spoil all later ones.
    Raises NonFiniteError for an update with NaN or infinite values.
    """
    control, model, node = opened.control, opened.model, opened.node
    update = trained - model.flat()
    codec = _codec(control.uplink, opened.run_config)
    if not (codec.stages or control.trials or opened.store.remembers(node)):
        return _as_it_is(codec, trained if exact is None else exact, update)
    state = opened.store.load(node).of_size(model.schema.n)
    if control.feedback:
        base = state.settled(
            version=opened.version,
            acked_version=control.acked_version,
            rule=control.rule,
            turn=control.turn,
        )
    else:
        base = replace(state, residual=None, pending=None)
    residual = control.rule.clipped(base.residual, update)
    norm2 = sum_of_squares(update)
    if codec.stages:
        rng = rng_for(control.seed, "uplink", node, control.turn or opened.version)
        coded = encode_with_feedback(codec, update, residual, model.schema.layout, rng)
        decoded, left = coded.decoded, coded.residual
        made = _Made(coded.body, decoded, decoded.norm2(), coded.compensated, left, coded.nmse)
    elif residual is None:
        body = trained if exact is None else exact
        plain = _as_it_is(codec, body, update)
        made = _Made(body, plain.update, norm2, update, None, 0.0)
    else:
        made = _add_residual(model, update, residual, raw)
    if control.feedback and (codec.stages or base.residual is not None):
        pending = None
        if sum_of_squares(made.compensated) <= MAX_NORM**2:
            left = np.zeros_like(update) if made.left is None else made.left
            pending = Pending(
                version=opened.version,
                compensated=made.compensated,
                left=left,
                turn=control.turn,
            )
        opened.store.save(node, replace(base, pending=pending))
    figures: dict[str, int | float | list[float]] = {
        "update-norm": float(np.sqrt(norm2)),
        "residual-norm": 0.0 if made.left is None else float(np.sqrt(sum_of_squares(made.left))),
        "nmse": float(made.nmse),
    }
    if control.trials:
        tried = [_codec(spec, opened.run_config) for spec in control.trials]
        figures.update(trial_figures(tried, made.compensated, control.seed))
    return Coded(codec, made.body, made.decoded, made.norm2, figures)


def _as_it_is(codec: Codec, body: bytes | F32, update: F32) -> Coded:
    """Codec ``none`` at a node that has nothing to add."""
    norm2 = sum_of_squares(update)
    if not math.isfinite(norm2):
        check_finite(update)
    figures: dict[str, int | float | list[float]] = {
        "update-norm": math.sqrt(norm2),
        "residual-norm": 0.0,
        "nmse": 0.0,
    }
    return Coded(codec, body, Dense(update), norm2, figures)


def _add_residual(model: HeldModel, update: F32, residual: F32, raw: bytes) -> _Made:
    """Codec ``none`` with what earlier codecs left added: rounded to the tensors' dtypes."""
    schema, before = model.schema, model.flat()
    compensated = update + residual
    check_finite(compensated)
    sent = schema.join(before + compensated, raw)
    decoded = Dense(schema.split(sent)[0] - before)
    body, _ = schema.split_exact(sent)
    return _Made(body, decoded, decoded.norm2(), compensated, compensated - decoded.values, 0.0)


def _packet(codec: Codec, opened: Opened, raw: bytes, body: bytes) -> Packet:
    schema = opened.model.schema
    return _packet_of(codec.spec, schema.digest, opened.version, schema.n, raw, body)


def _packet_of(spec: str, digest: bytes, version: int, n: int, raw: bytes, body: bytes) -> Packet:
    return Packet(
        kind=Kind.UPDATE,
        spec=spec,
        schema_digest=digest,
        base_version=version,
        version=version,
        n=n,
        body=body,
        raw=raw,
    )


@lru_cache(maxsize=64)
def _bytes_around(spec: str, digest: bytes, version: int, n: int, raw_bytes: int) -> int:
    """Length of a packet without its body."""
    return packed_bytes(_packet_of(spec, digest, version, n, bytes(raw_bytes), b""))


def _codec(spec: str, run_config: RunConfig) -> Codec:
    """The codec that the server named; WireError where there is none.

    One from outside fedsys is imported only if the run config, which comes with the app and not
    with the message, names it too.
    """
    outside = set(_OUTSIDE.findall(spec))
    if outside:
        known = " ".join(str(value) for value in run_config.values())
        outside -= set(_OUTSIDE.findall(known))
    return parse_received(spec, trusted=() if outside else (spec,))


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
