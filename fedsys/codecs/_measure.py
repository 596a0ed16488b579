"""What a codec does to one vector, or to a sample of it: bytes and squared error."""

from dataclasses import dataclass

import numpy as np

from fedsys.codecs._base import Layout, sum_of_squares
from fedsys.codecs._chain import Codec
from fedsys.types import F32

SAMPLE = 1 << 16
_RUNS = 256


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


def sample_of(x: F32) -> F32:
    """``x`` itself or, of a long one, 65,536 values in 256 runs spread evenly over it.

    Runs, because blocks and gaps between large values must look as they do in the whole. What
    depends on the shape of tensors (lowrank) cannot be judged from it.
    """
    if x.size <= SAMPLE:
        return x
    length = SAMPLE // _RUNS
    starts = np.linspace(0, x.size - length, _RUNS).astype(np.intp)
    return np.concatenate([x[start : start + length] for start in starts])
