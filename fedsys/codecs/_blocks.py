"""Block-wise scales: how values become small integers, and how these are added to a sum.

A block of consecutive values shares one scale, sent as the upper 16 bits of a float32
("bfloat16"): it spans the whole float32 range, where a float16 scale would overflow above
65504. The scale is rounded before anything is quantised, so that both sides use the same one.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedsys.codecs._base import CHUNK, check_finite, chunks, sum_of_squares
from fedsys.errors import WireError
from fedsys.types import F32

I8 = NDArray[np.int8]
U16 = NDArray[np.uint16]

_SMALLEST_NORMAL = 0x0080
_TINY = np.float32(2.0**-126)
_LARGEST = 0x7BFF
LARGEST_SCALE = 2.0**120 * (2 - 2.0**-7)
"""128 of it still fit into a float32; values that would need a larger one saturate."""

MAX_BLOCK = 1 << 16
ROUNDINGS = ["nearest", "stochastic"]


def scale_bits(scale: F32) -> U16:
    """Scales as 16 bits, rounded up so that no value of the block exceeds what it maps to.

    Scales below 2**-126 become 0, which decodes the block to zeros: dividing by them overflows.
    """
    bits = scale.view(np.uint32) + np.uint32(0xFFFF) >> 16
    short: U16 = np.minimum(bits, _LARGEST).astype("<u2")
    short[short < _SMALLEST_NORMAL] = 0
    return short


def read_scales(side: memoryview, count: int, what: str) -> F32:
    """Scales float32 [count] from untrusted bytes, each 0 or a normal positive number."""
    short = np.frombuffer(side, "<u2", count)
    if count and not bool(((short == 0) | (short - 1 < _LARGEST)).all()):
        raise WireError(f"{what}: a scale is negative or out of range")
    return widen_scale(short)


def chunk_of(block: int) -> int:
    """Chunk length that is a whole number of blocks and of bytes of 2, 4, 5 or 8 codes."""
    unit = math.lcm(block, 40)
    return unit * max(1, 2 * CHUNK // unit)


def block_rows(x: F32, block: int) -> Iterator[tuple[slice, F32]]:
    """Runs of whole blocks, then the shorter last one: where, and views [blocks, length]."""
    whole = x.size // block * block
    for part in chunks(whole, chunk_of(block)):
        yield part, x[part].reshape(-1, block)
    if whole < x.size:
        yield slice(whole, x.size), x[whole:].reshape(1, -1)


def peaks(rows: F32, work: F32 | None = None) -> F32:
    """Largest magnitude of each row of float32 [blocks, length]; ``work`` is overwritten."""
    starts = np.arange(0, rows.size, rows.shape[1])
    top: F32 = np.maximum.reduceat(np.abs(rows, out=work).reshape(-1), starts)
    return top


def widen_scale(short: U16) -> F32:
    """Scales as float32 from their 16 bits."""
    return (short.astype(np.uint32) << 16).view(np.float32)


def divide(rows: F32, scale: F32, out: F32 | None = None) -> F32:
    """Each row of float32 [blocks, length] over its scale, or over 2**-126 where that is less."""
    inverse = 1 / np.maximum(scale, _TINY)
    return np.multiply(rows, inverse[:, None], out=out)


def quantise(
    x: F32, levels: int, block: int, rounding: str, rng: np.random.Generator
) -> tuple[I8, U16]:
    """Codes int8 [n] in [-levels, levels] and one scale for each block of ``block`` values.

    The scale maps the block's largest magnitude to ``levels``. Nearest rounding is off by at
    most half a step; stochastic rounding by less than a step and by nothing on average.
    Raises NonFiniteError, so that nobody needs to look at the values a second time.
    """
    stochastic = rounding == "stochastic"
    codes = np.empty(x.size, np.int8)
    scales = [np.zeros(0, "<u2")]
    work = np.empty(min(chunk_of(block), x.size), np.float32)
    limit = levels * LARGEST_SCALE
    for part, rows in block_rows(x, block):
        steps = work[: rows.size].reshape(rows.shape)
        top = peaks(rows, steps)
        if not float(top.max()) <= limit:
            check_finite(top)
            rows = np.clip(rows, -limit, limit)
        short = scale_bits(top / np.float32(levels))
        divide(rows, widen_scale(short), steps)
        if stochastic:
            steps += rng.random(steps.shape, np.float32)
            np.floor(steps, out=steps)
        else:
            np.rint(steps, out=steps)
        codes[part] = steps.reshape(-1)
        scales.append(short)
    return codes, np.concatenate(scales)


@dataclass(frozen=True, slots=True)
class Blocks:
    """An update that is expanded chunk by chunk while it is added.

    expand  codes of values start..stop as float32, both multiples of the block or n
    scale   float32 [blocks], one factor for each block of codes
    """

    n: int
    block: int
    scale: F32
    expand: Callable[[int, int], F32]

    def add_to(self, out: F32, weight: float) -> None:
        """Add ``weight`` times the values to ``out`` without a dense copy."""
        factor = self.scale * np.float32(weight)
        for part in chunks(self.n, chunk_of(self.block)):
            target = out[part]
            np.add(target, self._part(part, factor), out=target)

    def dense(self) -> F32:
        """A new float32 [n] array."""
        out = np.empty(self.n, np.float32)
        for part in chunks(self.n, chunk_of(self.block)):
            out[part] = self._part(part, self.scale)
        return out

    def norm2(self) -> float:
        """Sum of squares, in float64."""
        parts = chunks(self.n, chunk_of(self.block))
        return sum(sum_of_squares(self._part(part, self.scale)) for part in parts)

    def _part(self, part: slice, factor: F32) -> F32:
        codes = self.expand(part.start, part.stop)
        first = part.start // self.block
        whole = codes.size // self.block * self.block
        body = codes[:whole].reshape(-1, self.block)
        blocks = body.shape[0]
        np.multiply(body, factor[first : first + blocks, None], out=body)
        codes[whole:] *= factor[first + blocks : first + blocks + 1]
        return codes


def read_blocks(
    side: memoryview, n: int, block: int, code_bytes: int, what: str
) -> tuple[F32, memoryview]:
    """Scales and the bytes of the codes of ``n`` values, with every length checked."""
    scale_bytes = 2 * -(-n // block)
    if len(side) != scale_bytes + code_bytes:
        expected = scale_bytes + code_bytes
        raise WireError(f"{what}: {len(side)} bytes for {n} values, expected {expected}")
    return read_scales(side, scale_bytes // 2, what), side[scale_bytes:]
