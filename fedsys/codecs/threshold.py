"""Keep the values above a fixed magnitude (Strom 2015, Scalable distributed DNN training)."""

from dataclasses import dataclass

import numpy as np

from fedsys.codecs._base import Layout, Update
from fedsys.codecs._check import check_number
from fedsys.codecs._indices import read_set, set_size, write_set
from fedsys.codecs._select import at_least
from fedsys.types import F32

_LARGEST = 3.0e38


@dataclass(frozen=True, slots=True)
class Threshold:
    """Keep values of at least ``magnitude``; the rest decode to 0.

    Sends more when more has changed, and nothing at all when nothing reached the threshold.
    Pair it with error feedback, so that what is small now is sent once it has added up.
    """

    magnitude: float = 0.001

    def __post_init__(self) -> None:
        """Refuse bad parameters before anything starts."""
        check_number("threshold.magnitude", self.magnitude, 0, _LARGEST)

    def encode(self, x: F32, layout: Layout, rng: np.random.Generator) -> tuple[F32 | None, bytes]:
        """The kept values in their order; count varint, then the index set."""
        index = at_least(x, self.magnitude)
        return x[index], write_set(index, x.size)

    def value_count(self, side: memoryview, n: int) -> int:
        """The count that leads the own bytes."""
        return set_size(side, n, "threshold")

    def decode(self, side: memoryview, values: F32 | None, n: int, layout: Layout) -> Update:
        """The kept values at their places."""
        return read_set(side, values, n, "threshold")


Impl = Threshold
