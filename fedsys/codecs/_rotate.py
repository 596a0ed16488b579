"""The random rotation of EDEN: random signs, then a Walsh-Hadamard transform of each block.

After it any block looks Gaussian. Only additions and one scaling are used, in a fixed order, so
that two machines get the same bits.
"""

import numpy as np

from fedsys.codecs._hash import words
from fedsys.types import F32

_SIGN_BITS = 64


def random_signs(seed: int, start: int, stop: int) -> F32:
    """Signs number ``start`` to ``stop`` - 1 of ``seed`` as +1 or -1; ``start`` is 64 * m."""
    first, last = start // _SIGN_BITS, -(-stop // _SIGN_BITS)
    raw = words(seed, first, last).astype("<u8").view(np.uint8)
    bits = np.unpackbits(raw, bitorder="little")[: stop - start]
    return 1 - 2 * bits.astype(np.float32)


def hadamard(rows: F32) -> F32:
    """Orthonormal Walsh-Hadamard transform of each row of float32 [blocks, 2**m]; its inverse."""
    blocks, length = rows.shape
    # Blocks innermost: the last butterflies, of neighbours, still run over long rows.
    now = np.ascontiguousarray(rows.T)
    spare = np.empty_like(now)
    half = length // 2
    while half:
        pair = now.reshape(-1, 2, half * blocks)
        out = spare.reshape(-1, 2, half * blocks)
        np.add(pair[:, 0], pair[:, 1], out=out[:, 0])
        np.subtract(pair[:, 0], pair[:, 1], out=out[:, 1])
        now, spare = spare, now
        half //= 2
    now *= np.float32(length**-0.5)
    return np.ascontiguousarray(now.T)
