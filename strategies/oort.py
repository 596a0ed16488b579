"""Oort (Lai, Zhu, Madhyastha and Chowdhury, OSDI 2021): ask the clients that teach most in time.

A client's utility, as last seen in round L, is in round R

    U = |B| sqrt(mean of squared losses), clipped and scaled to [0, 1], + sqrt(0.1 ln R / L),
    times (T / t)^alpha where its round took t > T seconds.

Of K clients, (1 - eps) K are drawn by utility among those at or above 95 % of the utility at that
rank, the others from those never tried. eps starts at 0.9 and falls by 2 % a round to 0.2. The
pacer sets T: where the utility won over a window no longer rises, longer rounds are allowed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from fedsys.rng import rng_for
from fedsys.types import RoundPlan, RoundRecord
from strategies._base import Scene, whole
from strategies._options import require_between, require_whole


@dataclass(frozen=True, slots=True)
class Tried:
    """A client as it was last seen."""

    utility: float
    """Statistical: examples times loss."""
    round_s: float
    round: int
    times: int


@dataclass(frozen=True, slots=True)
class State:
    """Who was tried, and the pacer."""

    tried: Mapping[int, Tried] = field(default_factory=dict)
    won: tuple[float, ...] = ()
    """Utility of each round's clients, of two windows."""
    percentile: float = 0.0
    """Of clients' round times; T is the time there."""
    held_rounds: int = 0
    """Since the pacer last judged."""


@dataclass(frozen=True, slots=True)
class Oort:
    """Choose the cohort by utility and speed; local work and codecs are the experiment file's.

    A server knows the mean loss, so |B| times it stands for the paper's root of the mean square
    (our reading: a lower bound, equal for equal losses). T is a percentile of the clients' round
    times, as in the authors' program, which the pacer raises by ``pacer_delta`` when the last
    ``pacer_rounds`` won less than those before them. Clients never tried are drawn by their number
    of examples. The paper asks for 1.3 K clients and takes the first K; we ask for K.
    """

    local_epochs: int = 1
    exploration: float = 0.9
    exploration_decay: float = 0.98
    min_exploration: float = 0.2
    penalty: float = 2.0
    """alpha, as published."""
    pacer_rounds: int = 20
    pacer_percentile: float = 30.0
    """Where T starts, as in the authors' program."""
    pacer_delta: float = 5.0
    cutoff: float = 0.95
    clip_percentile: float = 95.0
    max_times: int | None = None
    """A client asked this often is asked no more while there are others; None sets no limit (ours:
    the paper's 10 is for thousands of clients)."""
    chooses_codecs: ClassVar[bool] = False
    fednova: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse options that cannot be."""
        require_whole(self, "local_epochs", "pacer_rounds", "max_times")
        require_between(
            self, "exploration", "exploration_decay", "min_exploration", "cutoff", low=0, high=1
        )
        require_between(self, "pacer_percentile", "clip_percentile", low=0, high=100)
        require_between(self, "penalty", "pacer_delta", low=-1e-9)

    def start(self, scene: Scene) -> State:
        """Nobody tried."""
        return State(percentile=self.pacer_percentile)

    def plan(self, scene: Scene, state: State, round_number: int) -> RoundPlan:
        """A cohort of the experiment's size."""
        known, new = self.choose(scene, state, round_number)
        limit_s = self.limit_s(state)
        return scene.plan(
            round_number,
            scene.work(sorted(known + new), self.local_epochs),
            reason=f"oort: {len(known)} by utility, {len(new)} to explore, T = {limit_s:.1f} s",
            reasons=dict.fromkeys(new, "to explore"),
        )

    def observe(self, scene: Scene, state: State, record: RoundRecord) -> State:
        """Utilities of who answered; who did not is tried, and worth nothing until it answers."""
        tried, won = dict(state.tried), 0.0
        round_s = record.end_s - record.start_s
        for r in record.reports:
            old = tried.get(r.node_id)
            utility = r.examples * (r.train_loss or 0.0) if r.accepted else 0.0
            took_s = round_s if r.arrival_s is None else r.arrival_s
            times = 1 + (old.times if old else 0)
            tried[r.node_id] = Tried(utility, took_s, record.round, times)
            won += utility
        state = replace(state, tried=tried, won=(*state.won, won)[-2 * self.pacer_rounds :])
        return self._paced(state)

    def _paced(self, state: State) -> State:
        """The pacer's judgement, once in a window."""
        held = state.held_rounds + 1
        if held < self.pacer_rounds or len(state.won) < 2 * self.pacer_rounds:
            return replace(state, held_rounds=held)
        before, after = state.won[: self.pacer_rounds], state.won[self.pacer_rounds :]
        raised = state.percentile + (self.pacer_delta if sum(after) < sum(before) else 0.0)
        return replace(state, held_rounds=0, percentile=min(100.0, raised))

    def exploration_at(self, round_number: int) -> float:
        """eps of a round."""
        return max(self.min_exploration, self.exploration * self.exploration_decay**round_number)

    def limit_s(self, state: State) -> float:
        """T: clients slower than this are worth less."""
        times_s = [one.round_s for one in state.tried.values()]
        if not times_s or state.percentile >= 100:
            return math.inf
        return float(np.percentile(times_s, state.percentile))

    def utilities(self, state: State, round_number: int) -> dict[int, float]:
        """U of every client that was tried and may be asked again."""
        allowed = {
            node: one
            for node, one in state.tried.items()
            if self.max_times is None or one.times < self.max_times
        } or state.tried
        if not allowed:
            return {}
        raw = np.array([one.utility for one in allowed.values()])
        low, high = float(raw.min()), float(np.percentile(raw, self.clip_percentile))
        scale, limit_s = (high - low) or 1.0, self.limit_s(state)
        found = {}
        for node, one in allowed.items():
            utility = (min(one.utility, high) - low) / scale
            utility += math.sqrt(0.1 * math.log(round_number) / one.round)
            slow = one.round_s > limit_s
            found[node] = utility * ((limit_s / one.round_s) ** self.penalty if slow else 1.0)
        return found

    def choose(self, scene: Scene, state: State, round_number: int) -> tuple[list[int], list[int]]:
        """Nodes to ask again and nodes to explore, together as many as the cohort."""
        count = min(scene.cohort, len(scene.examples))
        utilities = self.utilities(state, round_number)
        untried = sorted(set(scene.examples) - set(state.tried))
        wanted = whole(count * self.exploration_at(round_number))
        explored = min(len(untried), max(wanted, count - len(utilities)))
        rng = rng_for(scene.seed, "oort", round_number)
        new = _draw(rng, {node: float(scene.examples[node]) for node in untried}, explored)
        again = count - len(new)
        ranked = sorted(utilities, key=lambda node: (-utilities[node], node))
        if again and len(ranked) > again:
            least = self.cutoff * utilities[ranked[again - 1]]
            ranked = [node for node in ranked if utilities[node] >= least]
        known = _draw(rng, {node: utilities[node] for node in ranked}, again)
        # A limit on how often a client is asked may leave too few: they are then asked again.
        spare = sorted(set(state.tried) - set(known))
        return known + spare[: again - len(known)], new


def _draw(rng: np.random.Generator, weights: Mapping[int, float], count: int) -> list[int]:
    """At most ``count`` distinct keys, likelier the larger their weight."""
    nodes = list(weights)
    values = np.array([weights[node] for node in nodes]) + 1e-12
    count = min(count, len(nodes))
    if not count:
        return []
    drawn = rng.choice(len(nodes), count, replace=False, p=values / values.sum())
    return sorted(nodes[int(at)] for at in drawn)


Impl = Oort
