"""What a codec stage is, and the forms in which a decoded update can be added to a sum."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedsys.errors import FedsysError
from fedsys.types import F32

Layout = tuple[tuple[int, ...], ...]
"""Shapes of the tensors that were concatenated into the flat vector."""

Index = NDArray[np.intp]

CHUNK = 1 << 16
"""Values handled at a time: a chunk and its temporaries stay in the second-level cache."""


class NonFiniteError(FedsysError, ValueError):
    """An update holds NaN or infinity: a failed training step, never to be sent."""


class Update(Protocol):
    """A decoded update of ``n`` values that need not exist as one dense array."""

    @property
    def n(self) -> int:
        """Number of values of the dense form."""
        ...

    def add_to(self, out: F32, weight: float) -> None:
        """Add ``weight`` times this update to ``out`` float32 [n], in place."""
        ...

    def dense(self) -> F32:
        """The update as float32 [n]; may share memory with the received bytes."""
        ...

    def norm2(self) -> float:
        """Sum of squares, in float64."""
        ...


@dataclass(frozen=True, slots=True)
class Dense:
    """An update with all its values, float32 [n]."""

    values: F32

    @property
    def n(self) -> int:
        """Number of values."""
        return self.values.size

    def add_to(self, out: F32, weight: float) -> None:
        """Add ``weight`` times the values to ``out``, chunk by chunk."""
        factor = np.float32(weight)
        for part in chunks(self.values.size):
            out[part] += self.values[part] * factor

    def dense(self) -> F32:
        """The values themselves, not a copy."""
        return self.values

    def norm2(self) -> float:
        """Sum of squares, in float64."""
        return sum_of_squares(self.values)


@dataclass(frozen=True, slots=True)
class Sparse:
    """An update that is zero outside ``index`` (ascending, without repetition)."""

    index: Index
    values: F32
    n: int

    def add_to(self, out: F32, weight: float) -> None:
        """Add ``weight`` times the values to ``out``; the cost grows with what is kept only."""
        out[self.index] += self.values * np.float32(weight)

    def dense(self) -> F32:
        """A new float32 [n] array."""
        out = np.zeros(self.n, np.float32)
        out[self.index] = self.values
        return out

    def norm2(self) -> float:
        """Sum of squares, in float64."""
        return sum_of_squares(self.values)


class Stage(Protocol):
    """One link of a chain: values in; fewer or coarser values and some bytes out."""

    def encode(
        self, x: F32, layout: Layout, rng: np.random.Generator
    ) -> tuple[F32 | None, bytes | bytearray]:
        """Values for the next stage (None when this stage ends the chain) and own bytes.

        ``x`` must not be modified. It is finite, unless the class sets ``checks_finite`` because
        it finds out by itself and raises NonFiniteError.
        """
        ...

    def value_count(self, side: memoryview, n: int) -> int:
        """How many values the next stage carried; at most ``n``, WireError otherwise."""
        ...

    def decode(self, side: memoryview, values: F32 | None, n: int, layout: Layout) -> Update:
        """The update of ``n`` values from own bytes and the next stage's values.

        ``side`` is untrusted: anything wrong with it raises WireError and nothing else.
        """
        ...


def chunks(n: int, size: int = CHUNK) -> Iterator[slice]:
    """Slices that cut ``n`` values into runs of ``size``, the last one shorter."""
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))


def sum_of_squares(x: F32) -> float:
    """Sum of squares of float32 values without overflow, in float64."""
    total = 0.0
    for part in chunks(x.size):
        wide = x[part].astype(np.float64)
        total += float(np.dot(wide, wide))
    return total


def check_finite(x: F32) -> None:
    """Refuse an update with NaN or infinite values before anything of it is sent."""
    if not all_finite(x):
        raise NonFiniteError("the update holds NaN or infinite values, it is not sent")


def all_finite(x: F32) -> bool:
    """Whether no value is NaN or infinite."""
    return all(bool(np.isfinite(x[part]).all()) for part in chunks(x.size))
