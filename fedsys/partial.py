"""Sums of updates in an order that does not depend on where, or in how many places, they are made.

The clients of a round are cut into blocks by their place in the plan. Each block is summed in
order, and the sums of the blocks are added in order. So a block may be summed by the process that
trained it, and the result is the same to the last bit for any number of processes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsys.codecs._base import Update
from fedsys.types import F32

Array = NDArray[Any]

_SINGLES = 16
"""So many clients are blocks of their own, because they share the work out most evenly."""
_MAX_BLOCK = 10
"""Weights of more small models than this at once fall out of a core's cache."""
_EVEN = 2
"""Blocks come in multiples of this, so that two workers have equally many."""


def blocks_of(count: int) -> list[slice]:
    """Runs of 1 to ``10`` clients, as even as can be, that together are 0..count-1."""
    if count <= _SINGLES:
        return [slice(i, i + 1) for i in range(count)]
    parts = _EVEN * -(-count // (_EVEN * _MAX_BLOCK))
    ends = [count * part // parts for part in range(parts + 1)]
    return [slice(start, end) for start, end in pairwise(ends)]


@dataclass(slots=True)
class Partial:
    """The weighted sum of some updates of ``n`` values, and what a mean needs beside it."""

    n: int
    normalise: bool
    """Divide each update by its local steps."""
    weight: float = 0.0
    """Sum of the examples, or of what they count for."""
    count: int = 0
    energy: float = 0.0
    """Sum of squared norms of the scaled updates over their examples."""
    steps: float = 0.0
    """Sum of examples times local steps."""
    total: F32 = field(init=False)
    raw: dict[str, Array] = field(default_factory=dict)
    """Of integers and booleans the largest seen, of floats the weighted sum as float64."""

    def __post_init__(self) -> None:
        self.total = np.zeros(self.n, np.float32)

    def add(
        self,
        update: Update,
        raw: Mapping[str, Array],
        *,
        examples: float,
        local_steps: int,
        norm2: float | None = None,
    ) -> None:
        """Add one client's update; ``examples`` is its weight, above 0, ``local_steps`` at least 1.

        ``norm2`` is ``update.norm2()`` where the caller knows it.
        """
        scale = examples / local_steps if self.normalise else float(examples)
        update.add_to(self.total, scale)
        self.energy += scale**2 * (update.norm2() if norm2 is None else norm2) / examples
        self.steps += examples * local_steps
        self.weight += examples
        self.count += 1
        for name, array in raw.items():
            exact = is_exact(array)
            # In float64: float16 would overflow when multiplied by a number of examples.
            one = array if exact else np.asarray(array.astype(np.float64) * examples)
            self._merge_raw(name, one)

    def merge(self, later: "Partial") -> None:
        """Add the sum of the updates that come next."""
        if not later.count:
            return
        if self.count:
            self.total += later.total
        else:
            self.total = later.total.copy()
        self.energy += later.energy
        self.steps += later.steps
        self.weight += later.weight
        self.count += later.count
        for name, array in later.raw.items():
            self._merge_raw(name, array)

    def _merge_raw(self, name: str, array: Array) -> None:
        known = self.raw.get(name)
        if known is None:
            self.raw[name] = array
        else:
            joined = np.maximum(known, array) if is_exact(array) else known + array
            self.raw[name] = np.asarray(joined)


def is_exact(array: Array) -> bool:
    """Whether the array holds integers or booleans."""
    return array.dtype.kind in "biu"
