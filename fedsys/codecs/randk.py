"""Keep random values whose places both sides draw from one seed (Konecny et al. 2016)."""

from dataclasses import KW_ONLY, dataclass

import numpy as np

from fedsys.codecs._base import Layout, Sparse, Update
from fedsys.codecs._check import check_bool, check_number
from fedsys.codecs._hash import new_seed, read_seed, stratified_index
from fedsys.errors import WireError
from fedsys.types import F32


@dataclass(frozen=True, slots=True)
class RandK:
    """Keep a random ``fraction`` of the values, at least one; the indices cost 8 bytes in all.

    One value is drawn from each of k equal runs. With ``unbiased=true`` kept values are
    multiplied by the length of their run, which makes the result right on average and its error
    larger; without it, pair it with error feedback. For equal bytes topk is far more exact.
    """

    fraction: float = 0.1
    _: KW_ONLY
    unbiased: bool = False

    def __post_init__(self) -> None:
        """Refuse bad parameters before anything starts."""
        check_number("randk.fraction", self.fraction, 0, 1)
        check_bool("randk.unbiased", self.unbiased)

    def encode(self, x: F32, layout: Layout, rng: np.random.Generator) -> tuple[F32 | None, bytes]:
        """The kept values in their order; the seed."""
        seed = new_seed(rng)
        k = self.value_count(memoryview(seed), x.size)
        index, lengths = stratified_index(read_seed(memoryview(seed), "randk"), k, x.size)
        values = x[index]
        if self.unbiased:
            limit = np.finfo(np.float32).max
            values = np.clip(values * lengths.astype(np.float64), -limit, limit).astype(np.float32)
        return values, seed

    def value_count(self, side: memoryview, n: int) -> int:
        """Follows from ``fraction`` and ``n`` alone."""
        return min(n, max(1, round(self.fraction * n)))

    def decode(self, side: memoryview, values: F32 | None, n: int, layout: Layout) -> Update:
        """The kept values at their places."""
        k = self.value_count(side, n)
        if values is None or values.size != k:
            raise WireError(f"randk: {k} places without as many values")
        index, _ = stratified_index(read_seed(side, "randk"), k, n)
        return Sparse(index, values, n)


Impl = RandK
