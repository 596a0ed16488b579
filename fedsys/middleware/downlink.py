"""What the server sends so that a client ends up with the current model, bit for bit.

The server numbers the models it sends. Version v is what clients have after v, which is the
server's model up to what the codec dropped; the next difference is taken against it, so that the
error is fed back (DoubleSqueeze, Tang et al. 2019). All clients apply the same differences in the
same order, so one vector stands for all of them. A client that missed versions gets the
differences it lacks, or the whole model when those are gone or cost more.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from fedsys.codecs._chain import parse
from fedsys.rng import rng_for
from fedsys.types import F32
from fedsys.wire.packet import Kind, Packet, pack, pack_frames
from fedsys.wire.schema import Array, Schema


@dataclass(slots=True)
class Downlink:
    """The models a server has sent; owned by one server, advanced once per version."""

    schema: Schema
    seed: int
    ring_versions: int
    version: int = 0
    sent: F32 | None = None
    """The model of ``version`` as clients hold it, float32 [n]."""
    exact: F32 | None = None
    """The model of ``version`` as the server has it, float32 [n]."""
    raw: bytes = b""
    deltas: dict[int, bytes] = field(default_factory=dict)
    """Packet that leads from version v - 1 to v, for the latest versions."""
    _whole: bytes | None = None

    def advance(self, flat: F32, raw: bytes, spec: str) -> int:
        """Make ``flat`` float32 [n] the current model, to be sent in codec ``spec``.

        Returns its version; the same one when the model has not changed.
        """
        if self.exact is not None and raw == self.raw and np.array_equal(flat, self.exact):
            return self.version
        codec, version = parse(spec), self.version + 1
        if self.sent is None or not codec.stages:
            self.deltas.clear()
            self.sent = flat.copy()
        else:
            rng = rng_for(self.seed, "downlink", version)
            body = codec.encode(flat - self.sent, self.schema.layout, rng)
            step = codec.decode(body, self.schema.n, self.schema.layout).dense()
            self.sent = self.sent + step
            self.deltas[version] = self._pack(Kind.DELTA, codec.spec, self.version, body, raw)
            self.deltas.pop(version - self.ring_versions, None)
        self.exact, self.raw, self.version, self._whole = flat.copy(), raw, version, None
        return version

    def payload(self, held_version: int) -> bytes:
        """Frames for a client that holds ``held_version`` (0: nothing)."""
        wanted = range(held_version + 1, self.version + 1)
        if held_version and all(version in self.deltas for version in wanted):
            frames = pack_frames([self.deltas[version] for version in wanted])
            if len(frames) < len(self.whole()):
                return frames
        return self.whole()

    def whole(self) -> bytes:
        """Frames with the whole current model, its schema included."""
        if self.sent is None:
            raise ValueError("no model to send: advance() comes first")
        if self._whole is None:
            body = parse("none").encode(self.sent, self.schema.layout, rng_for(0))
            packet = self._pack(Kind.MODEL, "none", 0, body, self.raw, self.version)
            self._whole = pack_frames([packet])
        return self._whole

    def tensors(self) -> dict[str, Array]:
        """What a checkpoint must hold, as arrays."""
        if self.sent is None or self.exact is None:
            return {}
        ring = {f"delta.{v}": np.frombuffer(d, np.uint8) for v, d in self.deltas.items()}
        raw = np.frombuffer(self.raw, np.uint8)
        return {"sent": self.sent, "exact": self.exact, "raw": raw, **ring}

    def restore(self, version: int, tensors: Mapping[str, Array]) -> None:
        """Continue from what ``tensors()`` gave when ``version`` was the current one."""
        self.version, self._whole = version, None
        self.sent, self.exact = tensors["sent"].copy(), tensors["exact"].copy()
        self.raw = tensors["raw"].tobytes()
        self.deltas = {
            int(name.removeprefix("delta.")): array.tobytes()
            for name, array in sorted(tensors.items())
            if name.startswith("delta.")
        }

    def _pack(
        self, kind: Kind, spec: str, base: int, body: bytes, raw: bytes, version: int | None = None
    ) -> bytes:
        packet = Packet(
            kind=kind,
            spec=spec,
            schema_digest=self.schema.digest,
            base_version=base,
            version=base + 1 if version is None else version,
            n=self.schema.n,
            body=body,
            raw=raw,
            schema=self.schema.to_bytes() if kind is Kind.MODEL else b"",
        )
        return pack(packet)
