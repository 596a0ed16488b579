"""Four-bit integers with one scale for each block."""

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import numpy as np

from fedsys.codecs._base import Layout, Update
from fedsys.codecs._blocks import MAX_BLOCK, ROUNDINGS, quantise
from fedsys.codecs._check import check_choice, check_int
from fedsys.codecs._packed import Packing, unpack_blocks
from fedsys.types import F32

_LEVELS = 7
_PACKING = Packing(kinds=16, per_byte=2)
_MEANING = np.arange(-8, 8, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class Int4:
    """Send 4-bit integers and a 16-bit scale for each ``block`` values: 4 + 16/block bits each.

    Pair it with error feedback. ``rounding="stochastic"`` is unbiased with twice the error.
    """

    checks_finite: ClassVar[bool] = True
    _: KW_ONLY
    block: int = 256
    rounding: str = "nearest"

    def __post_init__(self) -> None:
        """Refuse bad parameters before anything starts."""
        check_int("int4.block", self.block, 1, MAX_BLOCK)
        check_choice("int4.rounding", self.rounding, ROUNDINGS)

    def encode(self, x: F32, layout: Layout, rng: np.random.Generator) -> tuple[F32 | None, bytes]:
        """Scales bfloat16 [blocks], then two codes a byte, each plus 8."""
        codes, scales = quantise(x, _LEVELS, self.block, self.rounding, rng)
        codes += 8
        return None, scales.tobytes() + _PACKING.pack(codes.view(np.uint8))

    def value_count(self, side: memoryview, n: int) -> int:
        """No values follow."""
        return 0

    def decode(self, side: memoryview, values: F32 | None, n: int, layout: Layout) -> Update:
        """Codes times their block's scale, expanded when added."""
        return unpack_blocks(side, n, self.block, _PACKING, _MEANING, "int4")


Impl = Int4
