"""Three values (Li and Liu 2016, Ternary weight networks; Wen et al. 2017, TernGrad)."""

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

_PACKING = Packing(kinds=3, per_byte=5)
_MEANING = np.array([0, 1, -1], np.float32)
_FITS = 3


@dataclass(frozen=True, slots=True)
class Ternary:
    """Send 0, + or - the block's scale, five values a byte: 1.6 + 16/block bits each.

    Nearest rounding fits the scale to the block and needs error feedback; ``"stochastic"``
    (TernGrad) takes the block's largest value as scale and is unbiased.
    """

    _: KW_ONLY
    block: int = 256
    rounding: str = "nearest"

    def __post_init__(self) -> None:
        """Refuse bad parameters before anything starts."""
        check_int("ternary.block", self.block, 1, MAX_BLOCK)
        check_choice("ternary.rounding", self.rounding, ROUNDINGS)

    def encode(self, x: F32, layout: Layout, rng: np.random.Generator) -> tuple[F32 | None, bytes]:
        """Scales bfloat16 [blocks], then five codes a byte: 0, 1 for plus, 2 for minus."""
        stochastic = self.rounding == "stochastic"

        def quantised(rows: F32) -> tuple[U16, U8]:
            short = scale_bits(peaks(rows)) if stochastic else _fitted_scale(rows)
            chance = rng.random(rows.shape, np.float32) if stochastic else np.float32(0.5)
            kept = np.abs(divide(rows, widen_scale(short))) > chance
            return short, (kept * (1 + np.signbit(rows).view(np.uint8))).astype(np.uint8)

        return None, pack_blocks(x, self.block, _PACKING, quantised)

    def value_count(self, side: memoryview, n: int) -> int:
        """No values follow."""
        return 0

    def decode(self, side: memoryview, values: F32 | None, n: int, layout: Layout) -> Update:
        """Signs times their block's scale, expanded when added."""
        return unpack_blocks(side, n, self.block, _PACKING, _MEANING, "ternary")


def _fitted_scale(rows: F32) -> U16:
    """The scale of least squared error of each row: the mean of what exceeds half of it."""
    top = peaks(rows)
    unit = np.abs(divide(rows, top))
    scale = 1.5 * unit.mean(axis=1, keepdims=True)
    for _ in range(_FITS):
        kept = unit > scale / 2
        scale = (unit * kept).sum(axis=1, keepdims=True) / np.maximum(
            kept.sum(axis=1, keepdims=True), 1
        )
    return scale_bits((scale[:, 0] * top).astype(np.float32))


Impl = Ternary
