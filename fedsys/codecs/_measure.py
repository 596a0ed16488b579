"""What a codec does to one vector: bytes and squared error."""

from dataclasses import dataclass

import numpy as np

from fedsys.codecs._base import Layout, sum_of_squares
from fedsys.codecs._chain import Codec
from fedsys.types import F32


@dataclass(frozen=True, slots=True)
class Measure:
    """One codec on one vector."""

    body_bytes: int
    nmse: float
    """Squared error over the squared norm; 0 for a vector of zeros."""


def measure(codec: Codec, x: F32, layout: Layout, rng: np.random.Generator) -> Measure:
    """Encode and decode ``x`` float32 [n]. Raises NonFiniteError as the codec does."""
    body = codec.encode(x, layout, rng)
    left = x.copy()
    codec.decode_add(body, x.size, layout, -1.0, left)
    energy = sum_of_squares(x)
    return Measure(len(body), sum_of_squares(left) / energy if energy else 0.0)
