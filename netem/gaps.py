"""Windows of time that come again: outages without an end to them, and when a device takes part."""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from fedsys.errors import LinkError

DRAWN_OUTAGES = 256
"""Outages that are drawn for a node before its pattern repeats."""
SHORTEST_S = 1e-6


@dataclass(frozen=True, slots=True)
class Gaps:
    """``windows`` of (begin_s, end_s), ascending, which come again every ``period_s``."""

    windows: tuple[tuple[float, float], ...]
    period_s: float
    _edges: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        edges = tuple(edge_s for window in self.windows for edge_s in window)
        ascending = all(one < two for one, two in pairwise(edges))
        if not edges or not ascending or edges[0] < 0 or not edges[-1] < self.period_s < math.inf:
            raise LinkError(
                f"repeating outages must be ascending windows from 0 to before their period "
                f"{self.period_s}, got {self.windows[:4]}"
            )
        object.__setattr__(self, "_edges", edges)

    @classmethod
    def drawn(cls, rng: np.random.Generator, mean_up_s: float, mean_outage_s: float) -> "Gaps":
        """Exponential up-times and outages with these means; at time 0 in either, as it falls."""
        up_s = rng.exponential(mean_up_s, DRAWN_OUTAGES) + SHORTEST_S
        out_s = rng.exponential(mean_outage_s, DRAWN_OUTAGES) + SHORTEST_S
        if rng.random() < mean_outage_s / (mean_up_s + mean_outage_s):
            up_s[0] = 0.0
        end_s = np.cumsum(up_s + out_s)
        windows = tuple(zip((end_s - out_s).clip(0.0).tolist(), end_s.tolist(), strict=True))
        return cls(windows, float(end_s[-1] + rng.exponential(mean_up_s) + SHORTEST_S))

    def after(self, now_s: float) -> Iterator[tuple[float, float]]:
        """The windows that end after ``now_s``, in absolute time; there is always another."""
        lap, local_s = divmod(now_s, self.period_s)
        first = bisect_right(self._edges, local_s) // 2
        while True:
            lap_s = lap * self.period_s
            for at in range(first, len(self.windows)):
                begin_s, end_s = self.windows[at]
                if lap_s + end_s > now_s:
                    yield lap_s + begin_s, lap_s + end_s
            lap, first = lap + 1, 0


def merged(
    once: Iterable[tuple[float, float]], again: Iterator[tuple[float, float]]
) -> Iterator[tuple[float, float]]:
    """Both kinds of windows as one ascending sequence in which none touch; ``again`` is endless."""
    waiting = iter(once)
    one, two = next(waiting, (math.inf, math.inf)), next(again)
    while True:
        begin_s, end_s = min(one, two)
        while one[0] <= end_s or two[0] <= end_s:
            if one[0] <= end_s:
                end_s = max(end_s, one[1])
                one = next(waiting, (math.inf, math.inf))
            if end_s == math.inf:
                break
            if two[0] <= end_s:
                end_s = max(end_s, two[1])
                two = next(again)
        yield begin_s, end_s
        if end_s == math.inf:
            return


@dataclass(frozen=True, slots=True)
class Availability:
    """A device takes part for ``open_s`` of every ``period_s``, from ``phase_s`` on."""

    period_s: float
    open_s: float
    phase_s: float

    def __post_init__(self) -> None:
        if not 0 < self.open_s <= self.period_s < math.inf or not 0 <= self.phase_s < self.period_s:
            raise LinkError(
                f"availability needs 0 < open_s <= period_s and a phase within it, got {self}"
            )

    def from_s(self, now_s: float) -> float:
        """The first moment from ``now_s`` on at which the device takes part."""
        since_s = (now_s - self.phase_s) % self.period_s
        return now_s if since_s < self.open_s else now_s + (self.period_s - since_s)
