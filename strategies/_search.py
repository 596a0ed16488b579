"""The product rule: of all ways to run the next rounds, the one with the least rounds x seconds.

A way is local steps and a codec for each direction. A client takes download + steps * step +
upload, a round as long as its last one, or until its quorum closes it.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedsys.types import F64, Quorum
from strategies._estimate import Line
from strategies._offers import Offer

MIN_STEP_S = 1e-9
"""Keeps a clock that saw no time pass from making a division by zero."""
NEAR_SHARE = 0.01
"""Scores this close are the same: estimates are not more exact, and the lighter codec wins."""


@dataclass(frozen=True, slots=True)
class Choice:
    """How the next rounds are run."""

    local_steps: int
    up: Offer
    down: Offer


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


def closes_s(finish_s: F64, quorum: Quorum | None) -> float:
    """When a round ends whose clients are done at ``finish_s`` float64 [c]."""
    last_s = float(finish_s.max())
    if quorum is None:
        return last_s
    ordered = np.sort(finish_s)
    enough = min(len(ordered), max(quorum.least, math.ceil(quorum.share * len(ordered))))
    return min(last_s, quorum.factor * float(ordered[enough - 1]))


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
