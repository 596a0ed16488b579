"""Cost-effective federated learning (Luo, Li, Wang, Huang and Tassiulas, INFOCOM 2021).

K of N clients sampled, E local steps each: for strongly convex losses the error after R rounds is
at most (A0 / E + B0 C(K) E) / R with C(K) = 1 + (N - K) / (K (N - 1)). Rounds to an error eps are
therefore R = (A0 / E + B0 C(K) E) / eps, and the time is R times the seconds of a round, which are
those of the slowest of K. Least time over E and K needs A0 / B0 alone. For N = K, a seconds a step
and b an exchange, E is the root of 2 a B0 E^3 + b B0 E^2 = b A0.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from fedsys.errors import ConfigError
from fedsys.types import F64, RoundPlan, RoundRecord
from strategies._base import Scene
from strategies._options import require_whole
from strategies._signals import Paces, received_loss


@dataclass(frozen=True, slots=True)
class State:
    """Paces, the probes so far, and the choice once they are done."""

    paces: Paces = field(default_factory=Paces)
    last_loss: float | None = None
    gains: tuple[float, float] = (0.0, 0.0)
    """Sum over each probe's rounds of how much 1/F rose."""
    rounds: int = 0
    steps: int | None = None
    cohort: int | None = None
    ratio: float | None = None
    """A0 / B0."""


@dataclass(frozen=True, slots=True)
class CostEffective:
    """Probe two numbers of local steps, then keep the E and K of least expected time.

    The paper runs each probe from the first model to two losses and compares the rounds. Here the
    probes take turns, round by round, in the one run (our reading): where the error is
    (A0/E + B0 C E) / R and the best loss is 0, 1/F rises by 1 / (A0/E + B0 C E) in each round, so
    the ratio of both probes' rises gives A0/B0. Static after the probes, as published. Codecs are
    the experiment file's.
    """

    probe_steps: tuple[int, int] = (5, 20)
    """E of the two probes (ours)."""
    probe_rounds: int = 5
    """Rounds of each (ours)."""
    max_steps: int = 100
    """Largest E (ours)."""
    choose_cohort: bool = False
    """Choose K too. Off (ours): under label skew few clients cost more than the bound says."""
    chooses_codecs: ClassVar[bool] = False
    fednova: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse options that cannot be."""
        require_whole(self, "probe_rounds", "max_steps")
        if not 1 <= self.probe_steps[0] < self.probe_steps[1]:
            raise ConfigError(
                f"probe_steps must be two whole numbers, the larger last, got {self.probe_steps}"
            )

    def start(self, scene: Scene) -> State:
        """Nothing probed."""
        return State()

    def plan(self, scene: Scene, state: State, round_number: int) -> RoundPlan:
        """A probe's steps, or the ones chosen."""
        steps, reason = self.probe_steps[state.rounds % 2], "cost_effective: probe"
        if state.steps is not None and state.ratio is not None:
            steps, reason = state.steps, f"cost_effective: A0/B0 = {state.ratio:.3g}"
        nodes = scene.sample(round_number, state.cohort)
        return scene.plan(
            round_number,
            dict.fromkeys(nodes, steps),
            reason=f"{reason}, {steps} steps of {len(nodes)} clients",
        )

    def observe(self, scene: Scene, state: State, record: RoundRecord) -> State:
        """Learn paces; while probing, credit the last round's probe with what it gained."""
        state = replace(state, paces=state.paces.seen(record.reports), rounds=state.rounds + 1)
        loss = received_loss(record)
        if state.steps is not None or not loss or loss <= 0:
            return state
        gains = list(state.gains)
        if state.last_loss is not None:
            gains[state.rounds % 2] += 1 / loss - 1 / state.last_loss
        state = replace(state, last_loss=loss, gains=(gains[0], gains[1]))
        if state.rounds <= 2 * self.probe_rounds:
            return state
        ratio = self.ratio_of(gains[0], gains[1], spread(len(scene.examples), scene.cohort))
        step_s, exchange_s = state.paces.of(sorted(scene.examples))
        cohorts = range(1, len(scene.examples) + 1) if self.choose_cohort else [scene.cohort]
        steps, cohort = least_time(ratio, step_s, exchange_s, cohorts, self.max_steps)
        return replace(state, steps=steps, cohort=cohort, ratio=ratio)

    def ratio_of(self, short_gain: float, long_gain: float, spread_: float) -> float:
        """A0 / B0 from what the probes gained; inf where steps are all that counts, least 0.

        long / short = (x/E1 + C E1) / (x/E2 + C E2), solved for x.
        """
        short, long = self.probe_steps
        if long_gain <= 0 or short_gain <= 0:
            return math.inf if long_gain > short_gain else 0.0
        s = long_gain / short_gain
        if s >= long / short:
            return math.inf
        return max(0.0, spread_ * (s * long - short) / (1 / short - s / long))


def spread(nodes: int, cohort: int) -> float:
    """C(K): what sampling K of N adds to the drift of local steps."""
    return 1.0 if nodes <= 1 else 1 + (nodes - cohort) / (cohort * (nodes - 1))


def least_time(
    ratio: float, step_s: F64, exchange_s: F64, cohorts: Sequence[int], max_steps: int
) -> tuple[int, int]:
    """(E, K) of the least rounds times seconds per round; of equal ones the smallest E, then K.

    The slowest of K drawn from N is the one at place i of the times in ascending order (from 0) in
    comb(i, K - 1) of comb(N, K) draws.
    """
    nodes, steps = len(step_s), np.arange(1, max_steps + 1)
    finish_s = np.sort(np.outer(steps, step_s) + exchange_s, axis=1)
    draws = [[math.comb(at, k - 1) / math.comb(nodes, k) for at in range(nodes)] for k in cohorts]
    drift = np.array([spread(nodes, k) for k in cohorts])
    rounds = np.outer(steps, drift) + ratio / steps[:, None]
    if ratio == math.inf:
        rounds = np.repeat(1 / steps[:, None], len(drift), axis=1)
    best = int(np.argmin(rounds * (finish_s @ np.array(draws).T)))
    return int(steps[best // len(drift)]), int(cohorts[best % len(drift)])


Impl = CostEffective
