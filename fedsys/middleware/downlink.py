"""What the server sends so that a client ends up with the current model, bit for bit.

The server numbers the models it sends. Version v is what clients have after v, which is the
server's model up to what the codec dropped, in the dtypes of the model; the next difference is
taken against it, so that the error is fed back (DoubleSqueeze, Tang et al. 2019). All clients
apply the same differences in the same order, so one model stands for all of them. A client that
missed versions gets the differences it lacks, or the whole model when those are gone or cost more.

A version can also go out as a key frame, the whole model, coded: the first does, and every one
whose receivers missed so many versions that this is less. Whoever joins while the latest key frame
and all since then are kept gets these. A key frame is judged by the versions that were missed, not
by what is left to send for them: after one, those who were not asked lack more than another, and
it would be key frames for ever.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedsys.codecs._base import check_finite
from fedsys.codecs._chain import Codec, parse
from fedsys.config.schema import KEY_FRAME_CODECS
from fedsys.middleware.store import checksum_of
from fedsys.rng import rng_for
from fedsys.types import F32
from fedsys.wire.packet import Kind, Packet, kind_of, pack, pack_frames
from fedsys.wire.schema import Array, Schema


@dataclass(frozen=True, slots=True)
class _Frame:
    """A version in a codec."""

    kind: Kind
    model: dict[str, Array]
    """What receivers have after it."""
    packet: bytes


@dataclass(slots=True)
class Downlink:
    """The models a server has sent; owned by one server, advanced once per version."""

    schema: Schema
    seed: int
    ring_versions: int
    key_codec: str = "none"
    """Codec of key frames; with ``none`` there are none, and the first model goes as it is."""
    version: int = 0
    sent: F32 | None = None
    """Coded values of ``version`` as clients hold it, float32 [n]."""
    held: bytes = b""
    """The same in the dtypes of the model."""
    exact: bytes = b""
    """The coded tensors of ``version`` as the server has it."""
    raw: bytes = b""
    deltas: dict[int, bytes] = field(default_factory=dict)
    """Packet that leads to version v, from v - 1 or, a key frame, from nothing; the latest ones."""
    key: int = 0
    """The latest key frame, or 0."""
    _frames: dict[int, bytes] = field(default_factory=dict)
    """What ``payload`` gave for the current version."""
    _whole: bytes | None = None
    _checksum: int | None = None

    def advance(self, arrays: Mapping[str, Array], spec: str, holders: Sequence[int] = ()) -> int:
        """Make ``arrays`` the current model, to be sent in codec ``spec``.

        ``holders`` are the versions that its receivers hold, 0 for none; where they are given, a
        key frame is made if it is less for them all. Returns the version; the same one when the
        model has not changed. Raises NonFiniteError for a model with NaN or infinite values.
        """
        exact, raw = self.schema.split_exact(arrays)
        if self.sent is not None and raw == self.raw and exact == self.exact:
            return self.version
        flat, _ = self.schema.split(arrays)
        version, frame = self.version + 1, self._frame(flat, raw, parse(spec), holders)
        if frame is None:
            check_finite(flat)
            self.deltas.clear()
            self.sent, self.held, self.key = flat, exact, 0
        else:
            self.held, _ = self.schema.split_exact(frame.model)
            self.sent, _ = self.schema.split(frame.model)
            if frame.kind is Kind.MODEL:
                self.deltas.clear()
                self.key = version
            self.deltas[version] = frame.packet
            self.deltas.pop(version - self.ring_versions, None)
        self.exact, self.raw, self.version = exact, raw, version
        self._whole = self._checksum = None
        self._frames = {}
        return version

    def _frame(self, flat: F32, raw: bytes, codec: Codec, holders: Sequence[int]) -> _Frame | None:
        """The next version as it is sent; None: as it is.

        A difference that is larger than a key frame says that the model is wanted more exactly.
        """
        whole = parse(self.key_codec)
        if not codec.stages or (self.sent is None and not whole.stages):
            return None
        if self.sent is None:
            return self._coded(whole, flat, raw, None)
        delta = self._coded(codec, flat, raw, self.sent)
        are_current = all(version == self.version for version in holders)
        if self.key_codec not in KEY_FRAME_CODECS or are_current:
            return delta
        key = self._coded(whole, flat, raw, None)
        one, each = len(delta.packet), len(key.packet)
        held = Counter(holders).items()
        behind = sum(count * self._missed_bytes(version, one) for version, count in held)
        return key if one <= each and len(holders) * each < behind else delta

    def _missed_bytes(self, held_version: int, one: int) -> int:
        """What the next version, a difference of ``one`` bytes, costs who holds that one."""
        lacking = self._lacking(held_version)
        known = len(self.whole()) if lacking is None else sum(map(len, lacking)) + one
        missed = self.version + 1 - held_version
        return min(known, missed * one) if missed <= self.ring_versions else known

    def _coded(self, codec: Codec, flat: F32, raw: bytes, base: F32 | None) -> _Frame:
        """The next version as a difference to ``base``; a key frame where that is None."""
        kind, version = Kind.MODEL if base is None else Kind.DELTA, self.version + 1
        start = np.zeros_like(flat) if base is None else base
        rng = rng_for(self.seed, "downlink", version)
        body = codec.encode(flat - start, self.schema.layout, rng)
        step = codec.decode(body, self.schema.n, self.schema.layout).dense()
        base_version = 0 if base is None else self.version
        packet = self._pack(kind, codec.spec, base_version, version, body, raw)
        return _Frame(kind, self.schema.join(start + step, raw), packet)

    def payload(self, held_version: int) -> bytes:
        """Frames for a client that holds ``held_version`` (0: nothing); none if it is current.

        The same object for all clients that get the same.
        """
        start = 0 if held_version < self.key else held_version
        if start not in self._frames:
            lacking = self._lacking(start)
            self._frames[start] = self.whole() if lacking is None else pack_frames(lacking)
        return self._frames[start]

    def _lacking(self, held_version: int) -> list[bytes] | None:
        """The packets that lead on from that version; None where the whole model is less."""
        first = self.key if held_version < self.key else held_version + 1
        wanted = range(first, self.version + 1)
        is_known = 0 <= held_version <= self.version
        if not is_known or any(version not in self.deltas for version in wanted):
            return None
        packets = [self.deltas[version] for version in wanted]
        return packets if sum(map(len, packets)) < len(self.whole()) else None

    def whole(self) -> bytes:
        """Frames with the whole current model, its schema included."""
        if not self.version:
            raise ValueError("no model to send: advance() comes first")
        if self._whole is None:
            packet = self._pack(Kind.MODEL, "none", 0, self.version, self.held, self.raw)
            self._whole = pack_frames([packet])
        return self._whole

    def model(self) -> F32:
        """The coded values that clients hold, float32 [n]."""
        if self.sent is None:
            raise ValueError("no model to send: advance() comes first")
        return self.sent

    def owed(self) -> F32 | None:
        """The server's model minus that, float32 [n]; None where clients have it bit for bit."""
        if self.exact == self.held:
            return None
        arrays = self.schema.join_exact(self.exact, self.raw)
        return self.schema.split(arrays)[0] - self.model()

    def checksum(self) -> int:
        """CRC-32 of the current model as clients hold it."""
        if self._checksum is None:
            self._checksum = checksum_of(self.schema, self.held, self.raw)
        return self._checksum

    def tensors(self) -> dict[str, Array]:
        """What a checkpoint must hold, as arrays."""
        if self.sent is None:
            return {}
        ring = {f"delta.{version}": packet for version, packet in self.deltas.items()}
        parts = {"held": self.held, "exact": self.exact, "raw": self.raw, **ring}
        return {name: np.frombuffer(data, np.uint8) for name, data in parts.items()}

    def restore(self, version: int, tensors: Mapping[str, Array]) -> None:
        """Continue from what ``tensors()`` gave when ``version`` was the current one."""
        self.version, self._whole, self._checksum = version, None, None
        self._frames = {}
        self.held, self.exact, self.raw = (
            tensors[name].tobytes() for name in ("held", "exact", "raw")
        )
        self.sent, _ = self.schema.split(self.schema.join_exact(self.held, self.raw))
        self.deltas = {
            int(name.removeprefix("delta.")): array.tobytes()
            for name, array in sorted(tensors.items())
            if name.startswith("delta.")
        }
        keys = (v for v, packet in self.deltas.items() if kind_of(packet) is Kind.MODEL)
        self.key = max(keys, default=0)

    def _pack(
        self, kind: Kind, spec: str, base: int, version: int, body: bytes, raw: bytes
    ) -> bytes:
        packet = Packet(
            kind=kind,
            spec=spec,
            schema_digest=self.schema.digest,
            base_version=base,
            version=version,
            n=self.schema.n,
            body=body,
            raw=raw,
            schema=self.schema.to_bytes() if kind is Kind.MODEL else b"",
        )
        return pack(packet)
