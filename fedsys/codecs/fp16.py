"""Half precision with one shared power of two, so that no update over- or underflows."""

import math
import struct
from dataclasses import dataclass

import numpy as np

from fedsys.codecs._base import Dense, Layout, Update, all_finite, chunks
from fedsys.errors import WireError
from fedsys.types import F32

_EXPONENT = struct.Struct("<h")
_TOP_EXPONENT = 15
_LARGEST = 2.0**15 - 16
"""The largest half below 2**15; clipping there keeps the decoder inside float32."""


@dataclass(frozen=True, slots=True)
class Fp16:
    """Send IEEE half precision values: 16 bits per parameter plus 2 bytes in all.

    The whole vector is first multiplied by the power of two that brings its largest magnitude
    just below 2**15. So nothing overflows, and whatever is above 2**-29 of the largest keeps a
    relative error of 2**-11; smaller values are off by at most 2**-40 of the largest.
    """

    def encode(self, x: F32, layout: Layout, rng: np.random.Generator) -> tuple[F32 | None, bytes]:
        """Exponent int16, then the scaled values float16 [n]."""
        top = max((float(np.abs(x[part]).max()) for part in chunks(x.size)), default=0.0)
        shift = _TOP_EXPONENT - math.frexp(top)[1] if top else 0
        out = np.empty(x.size, "<f2")
        for part in chunks(x.size):
            scaled = x[part] * np.float64(2.0**shift)
            out[part] = np.clip(scaled, -_LARGEST, _LARGEST)
        return None, _EXPONENT.pack(-shift) + out.tobytes()

    def value_count(self, side: memoryview, n: int) -> int:
        """No values follow."""
        return 0

    def decode(self, side: memoryview, values: F32 | None, n: int, layout: Layout) -> Update:
        """Halves times the shared power of two."""
        if len(side) != _EXPONENT.size + 2 * n:
            raise WireError(f"fp16: {len(side)} bytes for {n} values, expected {2 + 2 * n}")
        (exponent,) = _EXPONENT.unpack_from(side)
        if not -163 <= exponent <= 113:
            raise WireError(f"fp16: exponent {exponent} is outside -163..113")
        halves = np.frombuffer(side, "<f2", offset=_EXPONENT.size)
        out = np.empty(n, np.float32)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            for part in chunks(n):
                out[part] = halves[part] * np.float64(2.0**exponent)
        if not all_finite(out):
            raise WireError("fp16: a value is not finite")
        return Dense(out)


Impl = Fp16
