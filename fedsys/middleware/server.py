"""The server's half: what each node holds, what was accepted of it, and packets both ways.

One ``ServerCodec`` serves one run. It does no I/O and knows nothing of Flower's grid; ``CodecGrid``
puts it under any Flower strategy, fedsys's own strategies call it directly.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fedsys.codecs._base import Dense, Update
from fedsys.codecs._chain import parse, parse_received
from fedsys.codecs._feedback import ResidualRule
from fedsys.config.schema import CodecConfig
from fedsys.errors import WireError
from fedsys.middleware.control import MAX_NORM, Control, unwrap, wrap
from fedsys.middleware.downlink import Downlink
from fedsys.types import F32
from fedsys.wire.packet import Kind, unpack
from fedsys.wire.schema import Array, Schema

SLACK_BYTES = 4096
"""Header, spec and framing that an update may have beyond twice the model's own bytes."""


@dataclass(frozen=True, slots=True)
class Received:
    """An update that passed every check."""

    update: Update
    raw: dict[str, Array]
    """The tensors that no codec may touch: new values, not differences."""
    size_bytes: int
    exact: dict[str, Array] | None = None
    """All tensors as trained, bit for bit; None when a codec was used."""


@dataclass(slots=True)
class ServerCodec:
    """Codec state of a server; owned by one run."""

    schema: Schema
    config: CodecConfig
    seed: int
    holds: bool
    """Whether clients keep the models they get, so that differences can be sent."""
    held: dict[int, int] = field(default_factory=dict)
    """Node to the model version it is known to hold."""
    acked: dict[int, int] = field(default_factory=dict)
    """Node to the base version of its last accepted update, or its turn where requests have one."""
    piece_bytes: int = 0
    """Largest piece that messages are sealed in, both ways; 0 does not seal. See ``envelope``."""
    downlink: Downlink = field(init=False)

    def __post_init__(self) -> None:
        self.downlink = Downlink(
            self.schema, self.seed, self.config.ring_versions, self.config.first_model
        )

    def advance(self, arrays: Mapping[str, Array], spec: str, nodes: Iterable[int] = ()) -> int:
        """Make ``arrays`` the model that goes out next, coded by ``spec``; its version.

        A key frame where that is less for the ``nodes`` who get it, unless there are to be none.
        """
        wanted = nodes if self.config.key_frames else ()
        return self.downlink.advance(arrays, spec, [self.held.get(node, 0) for node in wanted])

    def payload_for(self, node: int) -> bytes:
        """The frames that bring ``node`` to the current model; the same object for many nodes."""
        return self.downlink.payload(self.held.get(node, 0))

    def control_for(
        self, node: int, uplink: str, trials: tuple[str, ...] = (), turn: int = 0
    ) -> Control:
        """The words that go with the payload.

        ``trials`` are codec specs that the client is to try on a sample of its update. ``turn``
        counts the requests to ``node`` where it may be asked about one model more than once.
        """
        version = self.downlink.version
        return Control(
            seed=self.seed,
            uplink=parse(uplink).spec,
            acked_version=self.acked.get(node, 0),
            oldest_version=max(1, version - self.config.ring_versions) if self.holds else 0,
            checksum=self.downlink.checksum(),
            feedback=self.config.error_feedback,
            rule=_rule(self.config),
            trials=trials,
            piece_bytes=self.piece_bytes,
            turn=turn,
        )

    def records_for(
        self, node: int, uplink: str, trials: tuple[str, ...] = ()
    ) -> tuple[ArrayRecord, ConfigRecord]:
        """Both as records."""
        control = self.control_for(node, uplink, trials)
        return wrap(self.payload_for(node)), control.to_record()

    def receive(
        self, content: RecordDict, version: int, uplink: str, base: F32 | None = None
    ) -> Received:
        """Check and decode a reply to model ``version``, asked for in codec ``uplink``.

        ``base`` float32 [n] is what the client got as that version, ``downlink.sent`` of then;
        None is the current one. Raises WireError for anything that is not exactly that. Nothing
        is remembered: call ``accept`` once the update was used.
        """
        found = unwrap(content)
        if found is None:
            raise WireError("the reply holds no packet; does the client use codec_mod?")
        data, schema = found[1], self.schema
        packet = unpack(data, schema=schema, max_bytes=_limit_bytes(schema))
        if packet.kind is not Kind.UPDATE or packet.base_version != version:
            raise WireError(
                f"{packet.kind.name} based on model {packet.base_version}, expected an UPDATE of "
                f"model {version}"
            )
        if packet.spec != parse(uplink).spec:
            raise WireError(f"codec '{packet.spec}', asked for '{uplink}'")
        exact = None
        if packet.spec == "none":
            exact = schema.join_exact(packet.body, packet.raw)
            update: Update = Dense(schema.split(exact)[0] - self._base(version, base))
        else:
            codec = parse_received(packet.spec, trusted=(packet.spec,))
            update = codec.decode(packet.body, packet.n, schema.layout)
        if not np.isfinite(update.norm2()):
            raise WireError("the update is not finite")
        return Received(update, self._raw(packet.raw), len(data), exact)

    def seen(self, node: int, version: int) -> None:
        """``node`` has answered to model ``version``, so it holds it."""
        if self.holds:
            self.held[node] = version

    def forget(self, node: int) -> None:
        """``node`` may hold nothing: the next message brings the model."""
        self.held.pop(node, None)

    def accept(self, node: int, version: int, turn: int = 0) -> None:
        """The update of ``node`` based on ``version`` was used; it may commit its residual.

        ``turn`` is that of the request, where it had one.
        """
        if self.leaves_residuals:
            self.acked[node] = turn or version

    @property
    def leaves_residuals(self) -> bool:
        """Whether any codec that a client is asked for drops something."""
        return self.holds or bool(parse(self.config.uplink).stages)

    def _base(self, version: int, base: F32 | None) -> F32:
        if base is None and version == self.downlink.version:
            base = self.downlink.sent
        if base is None:
            raise ValueError(f"an update of model {version} in codec none needs that model")
        return base

    def _raw(self, raw: bytes | memoryview) -> dict[str, Array]:
        if not self.schema.raw_n_bytes:
            return {}
        joined = self.schema.join(np.zeros(self.schema.n, np.float32), raw)
        pairs = zip(self.schema.tensors, self.schema.coded, strict=True)
        arrays = {tensor.name: joined[tensor.name] for tensor, coded in pairs if not coded}
        for name, array in arrays.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise WireError(f"tensor '{name}' holds NaN or infinite values")
        return arrays


def would_accept(schema: Schema, packet_bytes: int, norm2: float) -> bool:
    """Whether a server takes an update of that squared norm in a packet of that length."""
    return packet_bytes <= _limit_bytes(schema) and float(np.sqrt(norm2)) <= MAX_NORM


def _limit_bytes(schema: Schema) -> int:
    return 8 * schema.n + schema.raw_n_bytes + SLACK_BYTES


def _rule(config: CodecConfig) -> ResidualRule:
    return ResidualRule(
        decay=config.residual_decay,
        decay_per_round=config.residual_decay_per_round,
        max_age_versions=config.residual_max_age_versions,
        clip=config.residual_clip,
    )
