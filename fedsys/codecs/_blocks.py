"""Block-wise scales: how values become small integers, and how these are added to a sum.

A block of consecutive values shares one scale, sent as the upper 16 bits of a float32
("bfloat16"): it spans the whole float32 range, where a float16 scale would overflow above
65504. The scale is rounded before anything is quantised, so that both sides use the same one.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedsys.codecs._base import CHUNK, chunks, sum_of_squares
from fedsys.errors import WireError
from fedsys.types import F32

I8 = NDArray[np.int8]
U16 = NDArray[np.uint16]

_SMALLEST_NORMAL = 0x0080
_LARGEST = 0x7BFF
"""2**120 * (2 - 2**-7): 128 of it still fit into a float32."""

MAX_BLOCK = 1 << 20
ROUNDINGS = ["nearest", "stochastic"]


def scale_bits(scale: F32, *, up: bool) -> U16:
    """Scales as 16 bits, to nearest or, where ``up``, never below the given one.

    Scales below 2**-126 become 0, which decodes the block to zeros: dividing by them overflows.
    """
    bits = scale.view(np.uint32)
    rounded = bits + np.uint32(0xFFFF) if up else bits + np.uint32(0x7FFF) + (bits >> 16 & 1)
    short: U16 = np.minimum(rounded >> 16, _LARGEST).astype("<u2")
    short[short < _SMALLEST_NORMAL] = 0
    return short


def read_scales(side: memoryview, count: int, what: str) -> F32:
    """Scales float32 [count] from untrusted bytes, each 0 or a normal positive number."""
    short = np.frombuffer(side, "<u2", count)
    if count and not bool(((short == 0) | (short - 1 < _LARGEST)).all()):
        raise WireError(f"{what}: a scale is negative or out of range")
    return (short.astype(np.uint32) << 16).view(np.float32)


def rows(x: F32, part: slice, block: int) -> F32:
    """One chunk as float32 [blocks, block]; only the last block of a vector is padded."""
    chunk = x[part]
    short = -chunk.size % block
    return (np.pad(chunk, (0, short)) if short else chunk).reshape(-1, block)


def chunk_of(block: int) -> int:
    """Chunk length that is a whole number of blocks."""
    return block * max(1, CHUNK // block)


def peaks(chunk: F32) -> F32:
    """Largest magnitude of each row of float32 [blocks, block]."""
    starts = np.arange(0, chunk.size, chunk.shape[1])
    return np.maximum.reduceat(np.abs(chunk).reshape(-1), starts)


def quantise(
    x: F32, levels: int, block: int, rounding: str, rng: np.random.Generator
) -> tuple[I8, U16]:
    """Codes int8 [n] in [-levels, levels] and one scale for each block of ``block`` values.

    The scale maps the block's largest magnitude to ``levels``. Nearest rounding is off by at
    most half a step; stochastic rounding by less than a step and by nothing on average.
    """
    stochastic = rounding == "stochastic"
    codes = np.empty(x.size, np.int8)
    scales = np.empty(-(-x.size // block), "<u2")
    size = chunk_of(block)
    work = np.empty(min(size, x.size + block), np.float32)
    for part in chunks(x.size, size):
        chunk = rows(x, part, block)
        short = scale_bits(peaks(chunk) / np.float32(levels), up=stochastic)
        first = part.start // block
        scales[first : first + short.size] = short
        scale = (short.astype(np.uint32) << 16).view(np.float32)
        inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
        steps = work[: chunk.size].reshape(chunk.shape)
        np.multiply(chunk, inverse[:, None], out=steps)
        if stochastic:
            steps += rng.random(steps.shape, np.float32)
            np.floor(steps, out=steps)
        else:
            np.rint(steps, out=steps)
        np.clip(steps, -levels, levels, out=steps)
        codes[part] = steps.reshape(-1)[: part.stop - part.start]
    return codes, scales


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
