"""Eight-bit integers with one scale for each block."""

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import numpy as np

from fedsys.codecs._base import Layout, Update
from fedsys.codecs._blocks import MAX_BLOCK, ROUNDINGS, Blocks, quantise, read_blocks
from fedsys.codecs._check import check_choice, check_int
from fedsys.types import F32

_LEVELS = 127


@dataclass(frozen=True, slots=True)
class Int8:
    """Send 8-bit integers and a 16-bit scale for each ``block`` values: 8 + 16/block bits each.

    ``rounding="nearest"`` halves the error and wants error feedback; ``"stochastic"`` is
    unbiased. One outlier spoils no more than its own block.
    """

    checks_finite: ClassVar[bool] = True
    _: KW_ONLY
    block: int = 256
    rounding: str = "nearest"

    def __post_init__(self) -> None:
        """Refuse bad parameters before anything starts."""
        check_int("int8.block", self.block, 1, MAX_BLOCK)
        check_choice("int8.rounding", self.rounding, ROUNDINGS)

    def encode(self, x: F32, layout: Layout, rng: np.random.Generator) -> tuple[F32 | None, bytes]:
        """Scales bfloat16 [blocks], then codes int8 [n]."""
        codes, scales = quantise(x, _LEVELS, self.block, self.rounding, rng)
        return None, b"".join((scales.data, codes.data))

    def value_count(self, side: memoryview, n: int) -> int:
        """No values follow."""
        return 0

    def decode(self, side: memoryview, values: F32 | None, n: int, layout: Layout) -> Update:
        """Codes times their block's scale, expanded when added."""
        scale, tail = read_blocks(side, n, self.block, n, "int8")
        codes = np.frombuffer(tail, np.int8)
        return Blocks(n, self.block, scale, lambda start, stop: codes[start:stop].astype("f4"))


Impl = Int8
