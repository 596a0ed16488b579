"""The product rule: of all (local steps, uplink codec, downlink codec), the most gain per second.

gain(E, q) = E^p * g(q_up) * g(q_down); seconds(E, q) = download + E * step + upload of the node
that most of the cohort waits for. Maximising their ratio is minimising rounds x seconds per round.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedsys.types import F64
from strategies._estimate import Line
from strategies._offers import LADDER, Offer

WAIT_QUANTILE = 0.8
"""The node at this quantile of finishing times is the one waited for; slower ones get less work."""

MIN_STEP_S = 1e-9
"""Keeps a clock that saw no time pass from making a division by zero."""
NEAR_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class Choice:
    """Local steps and codecs of a round."""

    local_steps: int
    up: Offer
    down: Offer

    def is_lighter_than(self, other: "Choice") -> bool:
        """Whether one of its codecs drops less, and neither drops more."""
        mine, others = (self.up.bits, self.down.bits), (other.up.bits, other.down.bits)
        return mine != others and mine[0] >= others[0] and mine[1] >= others[1]


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

    def upload_s(self, size_bytes: float) -> F64:
        """Seconds of an upload by each node."""
        return self.up_floor_s + self.up_slope * size_bytes

    def download_s(self, size_bytes: float) -> F64:
        """Seconds of a download by each node."""
        return self.down_floor_s + self.down_slope * size_bytes


Size = Callable[[Offer], float]


def round_s(choice: Choice, cohort: Cohort, up_bytes: Size, down_bytes: Size) -> float:
    """Seconds that the round is expected to take for most of its nodes."""
    finish_s = (
        cohort.download_s(down_bytes(choice.down))
        + choice.local_steps * cohort.step_s
        + cohort.upload_s(up_bytes(choice.up))
    )
    return waited_s(finish_s)


def waited_s(finish_s: F64) -> float:
    """The time at ``WAIT_QUANTILE``, interpolated; np.quantile takes ten times as long."""
    ordered = np.sort(finish_s)
    at = WAIT_QUANTILE * (len(ordered) - 1)
    low, high = ordered[int(at)], ordered[math.ceil(at)]
    return float(low + (at - int(at)) * (high - low))


def gain(choice: Choice, exponent: float, feedback: bool) -> float:
    """Expected loss decrease of the round, in units of one exact local step.

    The downlink always has error feedback: the next difference contains what this one dropped.
    """
    return float(
        choice.local_steps**exponent * choice.up.gain(feedback) * choice.down.gain(feedback=True)
    )


def best(
    steps: Sequence[int],
    ups: Sequence[Offer],
    downs: Sequence[Offer],
    score: Callable[[Choice], float],
) -> Choice:
    """The choice with the highest score; of those close behind it, the one that loses least.

    Estimates are not exact to ``NEAR_SHARE``, while what a codec drops is dropped for sure.
    """
    choices = (Choice(e, up, down) for e in steps for up in ups for down in downs)
    scores = {choice: score(choice) for choice in choices}
    limit = (1 - NEAR_SHARE) * max(scores.values())
    near = (choice for choice in scores if scores[choice] >= limit)
    return max(near, key=lambda choice: (choice.up.bits + choice.down.bits, scores[choice]))


def finer(offer: Offer) -> Offer:
    """The next lighter codec of the ladder."""
    return LADDER[max(0, LADDER.index(offer) - 1)]
