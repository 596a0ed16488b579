"""Random numbers that any language can reproduce from a 64-bit seed (SplitMix64).

Sender and receiver draw the same indices and signs from a seed on the wire; numpy's own
generators are not specified well enough for that.
"""

import struct

import numpy as np
from numpy.typing import NDArray

from fedsys.codecs._base import Index
from fedsys.errors import WireError

U64 = NDArray[np.uint64]

SEED_BYTES = 8
_SEED = struct.Struct("<Q")
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def new_seed(rng: np.random.Generator) -> bytes:
    """A fresh seed, as it travels."""
    return _SEED.pack(int(rng.integers(0, 1 << 64, dtype=np.uint64)))


def read_seed(side: memoryview, what: str) -> int:
    """The seed from untrusted bytes that must hold nothing else."""
    if len(side) != SEED_BYTES:
        raise WireError(f"{what}: {len(side)} bytes of seed, expected {SEED_BYTES}")
    return int(_SEED.unpack(side)[0])


def words(seed: int, start: int, stop: int) -> U64:
    """Words number ``start`` to ``stop`` - 1 of the SplitMix64 sequence of ``seed``."""
    z = np.arange(start + 1, stop + 1, dtype=np.uint64)
    z *= np.uint64(_GOLDEN)
    z += np.uint64(seed & _MASK)
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def stratified_index(seed: int, k: int, n: int) -> tuple[Index, Index]:
    """``k`` ascending indices below ``n``, one in each of ``k`` equal runs, and the run lengths.

    Every index is equally likely up to the rounding of run lengths, and no two are the same.
    """
    edges = np.arange(k + 1, dtype=np.int64) * n // max(k, 1)
    lengths = np.diff(edges)
    high = (words(seed, 0, k) >> np.uint64(32)).astype(np.int64)
    return edges[:-1] + (high * lengths >> 32), lengths
