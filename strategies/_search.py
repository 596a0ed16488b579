"""The product rule: of all ways to run the next rounds, the one with the least rounds x seconds.

A way is local steps and a codec for each direction. Seconds are those of the slowest of a cohort:
download + steps * step + upload, after the slow ones got less work.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedsys.types import F64
from strategies._estimate import Line
from strategies._offers import LADDER, Offer

WAIT_QUANTILE = 0.8
"""The node at this quantile of finishing times is the one waited for; slower ones get less work."""

MIN_STEP_S = 1e-9
"""Keeps a clock that saw no time pass from making a division by zero."""
NEAR_SHARE = 0.01
"""Scores this close are the same: estimates are not more exact, and the lighter codec wins."""
HARDER_BY = 2
"""A slow node's codec is so many rungs harder than the others'."""
LEAST_SHARE = 4
"""A slow node does at least this part, 1 / LEAST_SHARE, of the others' steps."""


@dataclass(frozen=True, slots=True)
class Choice:
    """How the next rounds are run."""

    local_steps: int
    up: Offer
    down: Offer

    def is_lighter_than(self, other: "Choice") -> bool:
        """Whether it is the same but for a codec that drops less."""
        mine, others = (self.up.bits, self.down.bits), (other.up.bits, other.down.bits)
        same_steps = self.local_steps == other.local_steps
        return same_steps and mine != others and mine[0] >= others[0] and mine[1] >= others[1]


@dataclass(frozen=True, slots=True)
class Cohort:
    """The nodes of a round as arrays over them, float64 [c]."""

    step_s: F64
    up_floor_s: F64
    up_slope: F64
    down_floor_s: F64
    down_slope: F64

    @classmethod
    def of(cls, nodes: Sequence[tuple[Line, Line, float]]) -> "Cohort":
        """From (up, down, step_s) of each node."""
        up = np.array([line.fit() for line, _, _ in nodes])
        down = np.array([line.fit() for _, line, _ in nodes])
        step_s = np.array([max(MIN_STEP_S, step) for _, _, step in nodes])
        return cls(step_s, up[:, 0], up[:, 1], down[:, 0], down[:, 1])

    def upload_s(self, size_bytes: float | F64) -> F64:
        """Seconds of an upload by each node."""
        return self.up_floor_s + self.up_slope * size_bytes

    def download_s(self, size_bytes: float | F64) -> F64:
        """Seconds of a download by each node."""
        return self.down_floor_s + self.down_slope * size_bytes


Size = Callable[[Offer], float]


@dataclass(frozen=True, slots=True)
class Work:
    """What each node of a cohort is to do, arrays over them, and when it will be done."""

    steps: NDArray[np.int64]
    is_slow: NDArray[np.bool_]
    """Gets less work and a harder codec, so that the others need not wait."""
    finish_s: F64
    alone_s: F64
    """When it would be done with as much work as the others."""

    @property
    def last_s(self) -> float:
        """When the last one is done."""
        return float(self.finish_s.max())


def share_out(
    choice: Choice, cohort: Cohort, down_s: F64, up_s: F64, hard_up_s: F64, *, equalise: bool
) -> Work:
    """Less work for nodes that are slower than most.

    ``up_s`` and ``hard_up_s`` are uploads in the chosen and in a slow node's codec.
    """
    alone_s = down_s + choice.local_steps * cohort.step_s + up_s
    steps = np.full(len(alone_s), choice.local_steps, np.int64)
    limit_s = waited_s(alone_s)
    if not equalise or alone_s.max() <= 1.05 * limit_s:
        return Work(steps, np.zeros(len(alone_s), np.bool_), alone_s, alone_s)
    is_slow = alone_s > 1.05 * limit_s
    least = -(-choice.local_steps // LEAST_SHARE)
    fitting = np.floor((limit_s - down_s - hard_up_s) / cohort.step_s)
    fewer = np.clip(fitting, least, choice.local_steps).astype(np.int64)
    steps = np.where(is_slow, fewer, steps)
    finish_s = np.where(is_slow, down_s + steps * cohort.step_s + hard_up_s, alone_s)
    return Work(steps, is_slow, finish_s, alone_s)


def harder(offer: Offer) -> Offer:
    """The codec of a slow node: some rungs down the ladder."""
    if offer not in LADDER:
        return offer
    at = LADDER.index(offer)
    return LADDER[min(len(LADDER) - 1, at + HARDER_BY)]


Knobs = Mapping[str, Sequence[object]]
"""Field of a choice to the values it may take."""


def climb(start: Choice, knobs: Knobs, score: Callable[[Choice], float]) -> Choice:
    """From ``start``, one knob after the other to its best value until none can be bettered."""
    known: dict[Choice, float] = {}

    def scored(choice: Choice) -> float:
        if choice not in known:
            known[choice] = score(choice)
        return known[choice]

    best = start
    for _ in range(len(knobs) * 3):
        before = best
        for name, values in knobs.items():
            best = _lightest(list(_varied(best, name, values)), scored)
        if best == before:
            break
    return best


def _varied(choice: Choice, name: str, values: Sequence[object]) -> Iterator[Choice]:
    for value in values:
        yield replace(choice, **{name: value})  # type: ignore[arg-type]


def _lightest(choices: Sequence[Choice], score: Callable[[Choice], float]) -> Choice:
    """The best; of those close behind it, the one whose codecs drop least."""
    limit = (1 - NEAR_SHARE) * max(map(score, choices))
    near = (choice for choice in choices if score(choice) >= limit)
    return max(near, key=lambda choice: (choice.up.bits + choice.down.bits, score(choice)))


def waited_s(finish_s: F64) -> float:
    """The time at ``WAIT_QUANTILE``, interpolated; np.quantile takes ten times as long."""
    ordered = np.sort(finish_s)
    at = WAIT_QUANTILE * (len(ordered) - 1)
    low, high = ordered[int(at)], ordered[math.ceil(at)]
    return float(low + (at - int(at)) * (high - low))
