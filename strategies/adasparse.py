"""Adaptive gradient sparsification (Han, Wang and Leung, ICDCS 2020): learn k online.

The cost of a round is its seconds for the loss decrease of one round at k. In its m-th update, a
share of values k is compared with a smaller one k', and moves by the sign of the derivative alone:

    k <- clip(k - eta_m sign((cost(k) - cost(k')) / (k - k'))),  eta_m = (k_max - k_min) / sqrt(2 m)

and k' = k - eta_m / 2. Where a loss did not fall there is no comparison: k stays, or after ten such
misses grows by eta_m. After a window of updates the interval shrinks to what k visited, widened by
alpha at both ends, if the steps would become smaller for it; then m starts anew.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from fedsys.types import RoundPlan, RoundRecord
from strategies._base import Scene
from strategies._options import require_between, require_whole
from strategies._signals import received_loss
from strategies._specs import MIN_FRACTION, sparsifier

PATIENCE = 10
"""Comparisons that may fail before k grows, as in the authors' program."""
LEAST_SHARE = 0.1
"""k' is at least this part of k_min, as in the authors' program."""
CYCLE = 3


@dataclass(frozen=True, slots=True)
class State:
    """The interval, k and k', and what the rounds of this comparison showed so far."""

    low: float
    high: float
    kept: float
    probe: float
    updates: int = 0
    """Since the interval was last set."""
    last_updates: int = 0
    """Updates that the interval before this one lasted."""
    misses: int = 0
    visited: tuple[float, ...] = ()
    rounds: int = 0
    seen: tuple[tuple[float, float | None], ...] = ()
    """(seconds, loss of the received model) of the rounds of this comparison."""


@dataclass(frozen=True, slots=True)
class AdaSparse:
    """The share of values that a client sends follows the sign of cost's derivative.

    The paper's server knows the loss that k' would have led to. One that would have to send a model
    to learn its loss compares rounds instead (our reading): of three rounds the first sends k, the
    second k', the third k again, and the three models' training losses give the decrease of the
    first two. Seconds per decrease of log loss are compared, because these two start from different
    losses. Values travel as 8 bits under error feedback.
    """

    first_fraction: float = 0.5
    """k of the first rounds, as in the authors' program."""
    min_fraction: float = 0.002
    """k_min, as in the authors' program."""
    window_updates: int = 20
    """As published."""
    alpha: float = 1.5
    """As published."""
    local_epochs: int = 1
    chooses_codecs: ClassVar[bool] = True
    fednova: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse options that cannot be."""
        require_whole(self, "local_epochs", "window_updates")
        require_between(self, "min_fraction", low=0, high=0.5)
        require_between(self, "first_fraction", low=0, high=1)
        require_between(self, "alpha", low=1)

    def start(self, scene: Scene) -> State:
        """The whole interval, and a probe one tenth below k, as in the authors' program."""
        first = max(self.min_fraction, self.first_fraction)
        return State(self.min_fraction, 1.0, first, 0.9 * first)

    def plan(self, scene: Scene, state: State, round_number: int) -> RoundPlan:
        """k, or k' in the second round of three."""
        is_probe = state.rounds % CYCLE == 1
        spec = sparsifier(state.probe if is_probe else state.kept)
        return scene.plan(
            round_number,
            scene.work(scene.sample(round_number), self.local_epochs),
            uplink=spec,
            reason=f"adasparse: {'probes' if is_probe else 'keeps'} {spec}",
        )

    def observe(self, scene: Scene, state: State, record: RoundRecord) -> State:
        """After the third round, compare and move."""
        seen = (*state.seen, (record.end_s - record.start_s, received_loss(record)))
        state = replace(state, rounds=state.rounds + 1, seen=seen)
        if len(seen) < CYCLE:
            return state
        (seconds, first), (probe_seconds, second), (_, third) = seen
        cost, probe_cost = cost_of(seconds, first, second), cost_of(probe_seconds, second, third)
        return self.moved(replace(state, seen=()), cost, probe_cost)

    def moved(self, state: State, cost: float | None, probe_cost: float | None) -> State:
        """The state after a comparison; a cost is None where the loss did not fall."""
        updates = state.updates + 1
        eta = (state.high - state.low) / math.sqrt(2 * updates)
        if cost is None or probe_cost is None:
            if state.misses < PATIENCE:
                return replace(state, updates=updates, misses=state.misses + 1)
            wanted = state.kept + eta
        else:
            # k > k', so the sign of the derivative is that of the difference of costs.
            wanted = state.kept - eta * ((cost > probe_cost) - (cost < probe_cost))
        kept = min(state.high, max(state.low, wanted))
        least = max(MIN_FRACTION, LEAST_SHARE * state.low)
        probe = min(max(least, kept - eta / 2), 0.9 * kept)
        visited = (*state.visited, kept)
        state = replace(state, updates=updates, kept=kept, probe=probe, misses=0, visited=visited)
        return self._shrunk(state) if len(visited) >= self.window_updates else state

    def _shrunk(self, state: State) -> State:
        """The interval that the window's values span, where it is small enough to pay."""
        low = max(self.min_fraction, min(state.visited) / self.alpha)
        high = min(1.0, max(state.visited) * self.alpha)
        old, new = state.high - state.low, high - low
        pays = 0 < new <= (math.sqrt(2) - 1) * old and state.updates >= state.last_updates
        if not pays:
            return replace(state, visited=())
        return replace(state, low=low, high=high, updates=0, last_updates=state.updates, visited=())


def cost_of(seconds: float, before: float | None, after: float | None) -> float | None:
    """Seconds for each unit of decrease of the log loss; None where it did not fall."""
    if before is None or after is None or not 0 < after < before:
        return None
    return seconds / math.log(before / after)


Impl = AdaSparse
