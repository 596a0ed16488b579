"""Unbiased few-bit quantizer after a random rotation (Vargaftik et al. 2022, EDEN; one bit per
value is DRIVE, 2021).
"""

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass

import numpy as np

from fedsys.codecs._base import Dense, Layout, Update
from fedsys.codecs._blocks import divide, peaks, read_scales
from fedsys.codecs._bytes import Cursor
from fedsys.codecs._check import check_bool, check_number
from fedsys.codecs._hash import SEED_BYTES, new_seed, read_seed
from fedsys.codecs._rotate import hadamard, random_signs
from fedsys.errors import WireError
from fedsys.types import F32, F64, U8

_BLOCK = 4096
_BLOCKS_AT_ONCE = 32
"""Blocks whose bit planes lie together; part of the wire format, as is the block."""

_MAX_BITS = 4
_LARGEST_SCALE = np.float32(2.0**119)
"""The rotation back may make one value 175 scales large."""

_POSITIVE = (
    (),
    (0.7979,),
    (0.4528, 1.5104),
    (0.2451, 0.7560, 1.3439, 2.1520),
    (0.1284, 0.3881, 0.6568, 0.9424, 1.2562, 1.6181, 2.0690, 2.7326),
)
"""Lloyd-Max reconstruction points of the standard normal distribution (Max 1960)."""


@dataclass(frozen=True, slots=True)
class Eden:
    """Send ``bits`` bits per parameter, from 4 down to 0.05, unbiased without any state.

    For clients that appear once, where no error feedback can mend a bias. Squared error over
    squared norm is 0.571, 0.133, 0.036, 0.0096 at 1, 2, 3, 4 bits whatever the distribution,
    by rotating blocks of 4096 values. ``unbiased=false`` takes the scale of least error instead
    (0.363 at 1 bit), for use with error feedback. Overhead: 8 bytes and 2 per block.
    """

    bits: float = 1.0
    _: KW_ONLY
    unbiased: bool = True

    def __post_init__(self) -> None:
        """Refuse bad parameters before anything starts."""
        check_number("eden.bits", self.bits, 0, _MAX_BITS)
        check_bool("eden.unbiased", self.unbiased)

    def encode(self, x: F32, layout: Layout, rng: np.random.Generator) -> tuple[F32 | None, bytes]:
        """Seed, scales bfloat16 [blocks], then bit planes of each run of blocks."""
        own_seed = new_seed(rng)
        seed = read_seed(memoryview(own_seed), "eden")
        scales, planes = [np.zeros(0, "<u2")], [b""]
        for start, blocks, length in _runs(x.size):
            rows = np.zeros(blocks * length, np.float32)
            part = x[start : start + rows.size]
            rows[: part.size] = part
            rows *= random_signs(seed, start, start + rows.size)
            scale, codes = self._quantise(rows.reshape(blocks, length))
            scales.append(_round_unbiased(scale, rng))
            planes.append(self._pack(codes))
        return None, b"".join([own_seed, np.concatenate(scales).tobytes(), *planes])

    def value_count(self, side: memoryview, n: int) -> int:
        """No values follow."""
        return 0

    def decode(self, side: memoryview, values: F32 | None, n: int, layout: Layout) -> Update:
        """Reconstruction points, rotated back and scaled."""
        cursor = Cursor(side, "eden")
        seed = read_seed(cursor.take(SEED_BYTES), "eden")
        count = sum(blocks for _, blocks, _ in _runs(n))
        scales = read_scales(cursor.take(2 * count), count, "eden")
        if count and float(scales.max()) > _LARGEST_SCALE:
            raise WireError("eden: a scale is out of range")
        out = np.empty(n, np.float32)
        block = 0
        for start, blocks, length in _runs(n):
            rows = hadamard(self._unpack(cursor, blocks, length))
            rows *= scales[block : block + blocks, None]
            block += blocks
            stop = min(n, start + rows.size)
            signs = random_signs(seed, start, stop)
            np.multiply(rows.reshape(-1)[: stop - start], signs, out=out[start:stop])
        cursor.end()
        return Dense(out)

    def _split(self, length: int) -> list[tuple[int, int, int]]:
        """Columns from, to, and bits each: the first columns take the fraction's extra bit."""
        whole = int(self.bits)
        edge = round((self.bits - whole) * length)
        parts = (0, edge, whole + 1), (edge, length, whole)
        return [part for part in parts if part[0] < part[1]]

    def _quantise(self, rows: F32) -> tuple[F32, U8]:
        """Scale of each block and the code of each rotated value."""
        top = peaks(rows)
        rotated = hadamard(divide(rows, top))
        energy = _row_dot(rotated, rotated)
        unit = divide(rotated, np.sqrt(energy / rows.shape[1]).astype(np.float32))
        codes = np.zeros(rows.shape, np.uint8)
        points = np.zeros(rows.shape, np.float32)
        for start, stop, bits in self._split(rows.shape[1]):
            meaning = _points(bits)
            for threshold in (meaning[1:] + meaning[:-1]) / 2:
                codes[:, start:stop] += unit[:, start:stop] > threshold
            points[:, start:stop] = meaning[codes[:, start:stop]]
        overlap = _row_dot(rotated, points)
        above, below = energy, overlap
        if not self.unbiased:
            above, below = overlap, _row_dot(points, points)
        factor = np.divide(above, below, out=np.zeros_like(below), where=below > 0)
        limit = float(_LARGEST_SCALE)
        return np.minimum(factor * top, limit).astype(np.float32), codes

    def _pack(self, codes: U8) -> bytes:
        """Bit planes from the lowest up, of the columns with the extra bit, then of the others."""
        planes = []
        for start, stop, bits in self._split(codes.shape[1]):
            part = codes[:, start:stop]
            planes += [np.packbits(part >> bit & 1, bitorder="little") for bit in range(bits)]
        return b"".join(plane.tobytes() for plane in planes)

    def _unpack(self, cursor: Cursor, blocks: int, length: int) -> F32:
        """Reconstruction points float32 [blocks, length]."""
        points = np.empty((blocks, length), np.float32)
        for start, stop, bits in self._split(length):
            count = blocks * (stop - start)
            codes = np.zeros(count, np.uint8)
            for bit in range(bits):
                packed = np.frombuffer(cursor.take(-(-count // 8)), np.uint8)
                codes |= np.unpackbits(packed, count=count, bitorder="little") << bit
            points[:, start:stop] = _points(bits)[codes].reshape(blocks, -1)
        return points


def _points(bits: int) -> F32:
    """Reconstruction points of a ``bits``-bit code in ascending order; 0 for no bits."""
    positive = np.array(_POSITIVE[bits], np.float32)
    return np.concatenate([-positive[::-1], positive]) if bits else np.zeros(1, np.float32)


def _runs(n: int) -> Iterator[tuple[int, int, int]]:
    """Start, number of blocks and block length of what is rotated together.

    What is left after the whole blocks is one block, filled up with zeros to a power of two.
    """
    whole = n // _BLOCK
    for first in range(0, whole, _BLOCKS_AT_ONCE):
        yield first * _BLOCK, min(_BLOCKS_AT_ONCE, whole - first), _BLOCK
    rest = n - whole * _BLOCK
    if rest:
        yield whole * _BLOCK, 1, 1 << (rest - 1).bit_length()


def _row_dot(a: F32, b: F32) -> F64:
    return np.asarray((a.astype(np.float64) * b).sum(axis=1))


def _round_unbiased(
    scale: F32, rng: np.random.Generator
) -> np.ndarray[tuple[int], np.dtype[np.uint16]]:
    """Scales as 16 bits, rounded up or down at random so that the mean is right."""
    chance = rng.integers(0, 1 << 16, scale.size, dtype=np.uint32)
    bits = scale.view(np.uint32) + np.where(scale < _LARGEST_SCALE, chance, 0).astype(np.uint32)
    short = (bits >> 16).astype("<u2")
    short[short < 0x80] = 0
    return short


Impl = Eden
