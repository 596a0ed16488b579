"""Keep the largest values (Aji and Heafield 2017, Sparse communication for distributed SGD)."""

from dataclasses import KW_ONLY, dataclass

import numpy as np

from fedsys.codecs._base import Layout, Update
from fedsys.codecs._check import check_int, check_number
from fedsys.codecs._indices import read_set, set_size, write_set
from fedsys.codecs._select import largest, largest_in_chunks
from fedsys.types import F32

_MAX_CHUNK = 1 << 24


@dataclass(frozen=True, slots=True)
class TopK:
    """Keep the ``fraction`` of values largest in magnitude, at least one; the rest decode to 0.

    Biased, so pair it with error feedback. The indices cost what a random set of that size must
    (8.1 bits each at 0.01), beside the kept values. ``chunk`` other than 0 selects within each
    run of so many values instead (SparseLoCo 2025), so that no layer is starved.
    """

    fraction: float = 0.01
    _: KW_ONLY
    chunk: int = 0

    def __post_init__(self) -> None:
        """Refuse bad parameters before anything starts."""
        check_number("topk.fraction", self.fraction, 0, 1)
        check_int("topk.chunk", self.chunk, 0, _MAX_CHUNK)

    def encode(self, x: F32, layout: Layout, rng: np.random.Generator) -> tuple[F32 | None, bytes]:
        """The kept values in their order; count varint, then the index set."""
        unit = self.chunk or x.size
        k = max(1, round(self.fraction * unit))
        index = largest_in_chunks(x, k, self.chunk) if self.chunk else largest(x, k)
        return x[index], write_set(index, x.size)

    def value_count(self, side: memoryview, n: int) -> int:
        """The count that leads the own bytes."""
        return set_size(side, n, "topk")

    def decode(self, side: memoryview, values: F32 | None, n: int, layout: Layout) -> Update:
        """The kept values at their places."""
        return read_set(side, values, n, "topk")


Impl = TopK
