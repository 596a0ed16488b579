"""The upper half of float32: the same range, eight bits of precision."""

from dataclasses import dataclass

import numpy as np

from fedsys.codecs._base import Dense, Layout, Update, all_finite, chunks
from fedsys.errors import WireError
from fedsys.types import F32

_SIGN = 0x8000
_LARGEST = 0x7F7F


@dataclass(frozen=True, slots=True)
class Bf16:
    """Send bfloat16 values: 16 bits per parameter, relative error 2**-9, any magnitude."""

    def encode(self, x: F32, layout: Layout, rng: np.random.Generator) -> tuple[F32 | None, bytes]:
        """Values bfloat16 [n], rounded to nearest even, never to infinity."""
        out = np.empty(x.size, "<u2")
        for part in chunks(x.size):
            bits = x[part].view(np.uint32)
            rounded = bits + np.uint32(0x7FFF) + (bits >> 16 & 1) >> 16
            overflowed = rounded & (_SIGN - 1) > _LARGEST
            out[part] = np.where(overflowed, rounded - 1, rounded)
        return None, out.tobytes()

    def value_count(self, side: memoryview, n: int) -> int:
        """No values follow."""
        return 0

    def decode(self, side: memoryview, values: F32 | None, n: int, layout: Layout) -> Update:
        """The values widened to float32, exactly."""
        if len(side) != 2 * n:
            raise WireError(f"bf16: {len(side)} bytes for {n} values, expected {2 * n}")
        wide: F32 = (np.frombuffer(side, "<u2").astype(np.uint32) << 16).view(np.float32)
        if not all_finite(wide):
            raise WireError("bf16: a value is NaN or infinite")
        return Dense(wide)


Impl = Bf16
