"""Two-bit values: sign and one of two magnitudes, with one scale for each block."""

from dataclasses import KW_ONLY, dataclass

import numpy as np

from fedsys.codecs._base import Layout, Update
from fedsys.codecs._blocks import (
    MAX_BLOCK,
    ROUNDINGS,
    U16,
    divide,
    peaks,
    scale_bits,
    widen_scale,
)
from fedsys.codecs._check import check_choice, check_int
from fedsys.codecs._packed import Packing, pack_blocks, unpack_blocks
from fedsys.types import F32, U8

_PACKING = Packing(kinds=4, per_byte=4)
_MEANING = np.array([-1.5, -0.5, 0.5, 1.5], np.float32)
_FITS = 3
"""Rounds of fitting the scale; a Gaussian block is within 1 % of the best after two."""


@dataclass(frozen=True, slots=True)
class Int2:
    """Send one of -1.5, -0.5, 0.5, 1.5 times the block's scale: 2 + 16/block bits each.

    Nearest rounding fits the scale to the block, clips outliers and needs error feedback;
    ``"stochastic"`` takes the scale from the largest value and is unbiased.
    """

    _: KW_ONLY
    block: int = 256
    rounding: str = "nearest"

    def __post_init__(self) -> None:
        """Refuse bad parameters before anything starts."""
        check_int("int2.block", self.block, 1, MAX_BLOCK)
        check_choice("int2.rounding", self.rounding, ROUNDINGS)

    def encode(self, x: F32, layout: Layout, rng: np.random.Generator) -> tuple[F32 | None, bytes]:
        """Scales bfloat16 [blocks], then four codes a byte."""

        def quantised(rows: F32) -> tuple[U16, U8]:
            if self.rounding == "stochastic":
                short = scale_bits(peaks(rows) / np.float32(1.5))
                steps = divide(rows, widen_scale(short))
                steps += np.float32(1.5)
                steps += rng.random(steps.shape, np.float32)
            else:
                short = _fitted_scale(rows)
                steps = divide(rows, widen_scale(short))
                steps += np.float32(2)
            return short, np.clip(np.floor(steps), 0, 3).astype(np.uint8)

        return None, pack_blocks(x, self.block, _PACKING, quantised)

    def value_count(self, side: memoryview, n: int) -> int:
        """No values follow."""
        return 0

    def decode(self, side: memoryview, values: F32 | None, n: int, layout: Layout) -> Update:
        """Levels times their block's scale, expanded when added."""
        return unpack_blocks(side, n, self.block, _PACKING, _MEANING, "int2")


def _fitted_scale(rows: F32) -> U16:
    """The scale of least squared error of each row, by alternating levels and scale."""
    top = peaks(rows)
    unit = np.abs(divide(rows, top))
    scale = np.sqrt((unit**2).mean(axis=1, keepdims=True))
    for _ in range(_FITS):
        level = np.where(unit >= scale, np.float32(1.5), np.float32(0.5))
        scale = (unit * level).sum(axis=1, keepdims=True) / (level**2).sum(axis=1, keepdims=True)
    return scale_bits(scale[:, 0] * top)


Impl = Int2
