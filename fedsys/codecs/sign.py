"""One bit for each value (Karimireddy et al. 2019, Error feedback fixes SignSGD)."""

from dataclasses import KW_ONLY, dataclass

import numpy as np

from fedsys.codecs._base import Layout, Update
from fedsys.codecs._blocks import MAX_BLOCK, block_rows, scale_bits
from fedsys.codecs._check import check_int
from fedsys.codecs._packed import Packing, unpack_blocks
from fedsys.types import F32

_PACKING = Packing(kinds=2, per_byte=8)
_MEANING = np.array([1, -1], np.float32)


@dataclass(frozen=True, slots=True)
class Sign:
    """Send signs and each block's mean magnitude: 1 + 16/block bits per parameter.

    Zero counts as positive, except in a block of zeros, which decodes to zeros. Needs error
    feedback. ``topk(0.01)|sign`` is sparse ternary compression (Sattler et al. 2019).
    """

    _: KW_ONLY
    block: int = 4096

    def __post_init__(self) -> None:
        """Refuse bad parameters before anything starts."""
        check_int("sign.block", self.block, 1, MAX_BLOCK)

    def encode(self, x: F32, layout: Layout, rng: np.random.Generator) -> tuple[F32 | None, bytes]:
        """Scales bfloat16 [blocks], then eight signs a byte, 1 for negative."""
        means = [np.zeros(0)]
        means += [np.abs(rows).mean(axis=1, dtype="f8") for _, rows in block_rows(x, self.block)]
        scales = scale_bits(np.concatenate(means).astype(np.float32))
        negative = np.signbit(x) & (x != 0)
        return None, scales.tobytes() + _PACKING.pack(negative.view(np.uint8))

    def value_count(self, side: memoryview, n: int) -> int:
        """No values follow."""
        return 0

    def decode(self, side: memoryview, values: F32 | None, n: int, layout: Layout) -> Update:
        """Signs times their block's scale, expanded when added."""
        return unpack_blocks(side, n, self.block, _PACKING, _MEANING, "sign")


Impl = Sign
