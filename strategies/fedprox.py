"""FedProx (Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith, MLSys 2020): partial work, pulled back.

Each client approximately minimises F_i(w) + mu/2 |w - w_received|^2, as exactly as the clock
allows: a slow one does fewer steps in place of being dropped. mu may follow the loss: up by 0.1
where it rose, down by 0.1 after it fell five times in a row.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from fedsys.types import RoundPlan, RoundRecord
from strategies._base import Scene
from strategies._options import require_between, require_whole
from strategies._signals import Paces, received_loss

MU_STEP = 0.1
WAIT_QUANTILE = 0.8
"""Without a deadline, the node at this quantile of finishing times is the one waited for."""
FALLS = 5


@dataclass(frozen=True, slots=True)
class State:
    """Paces of the clients, and what mu follows."""

    mu: float
    paces: Paces = field(default_factory=Paces)
    last_loss: float | None = None
    falls: int = 0


@dataclass(frozen=True, slots=True)
class FedProx:
    """FedAvg with a proximal term, where slow clients do what there is time for.

    A client's steps are those that its measured pace allows until the experiment's deadline, at
    least one and at most ``local_epochs``. Without a deadline the paper's "global clock cycle" is
    the time that the node at the 80 % quantile needs for all of its work (our reading).
    """

    local_epochs: int = 1
    mu: float = 0.01
    """Published: the best of 0.001, 0.01, 0.1 and 1, for each task."""
    adapt_mu: bool = False
    """Let mu follow the training loss."""
    fednova: bool = False
    """Divide updates by their local steps, which differ; the paper does not."""
    chooses_codecs: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse options that cannot be."""
        require_whole(self, "local_epochs")
        require_between(self, "mu", low=-1e-9)

    def start(self, scene: Scene) -> State:
        """No pace known."""
        return State(self.mu)

    def plan(self, scene: Scene, state: State, round_number: int) -> RoundPlan:
        """Full work for whoever is in time, less for the others."""
        full = scene.work(scene.sample(round_number), self.local_epochs)
        steps, clock_s = self._partial(scene, state, full)
        slow = [node for node in steps if steps[node] < full[node]]
        return scene.plan(
            round_number,
            steps,
            reason=f"fedprox: mu = {state.mu:g}, {len(slow)} clients with less work",
            reasons={node: f"{steps[node]} of {full[node]} in {clock_s:.1f} s" for node in slow},
            proximal_mu=state.mu,
        )

    def observe(self, scene: Scene, state: State, record: RoundRecord) -> State:
        """Learn paces; move mu."""
        paces, loss = state.paces.seen(record.reports), received_loss(record)
        if loss is None:
            return State(state.mu, paces, state.last_loss, state.falls)
        mu, falls = state.mu, state.falls
        if state.last_loss is not None:
            falls = falls + 1 if loss < state.last_loss else 0
            if self.adapt_mu and loss > state.last_loss:
                mu += MU_STEP
            elif self.adapt_mu and falls == FALLS:
                mu, falls = max(0.0, mu - MU_STEP), 0
        return State(round(mu, 9), paces, loss, falls)

    def _partial(
        self, scene: Scene, state: State, full: dict[int, int]
    ) -> tuple[dict[int, int], float]:
        """Steps of each node and the seconds that they are cut to."""
        if not state.paces.nodes:
            return full, 0.0
        step_s, exchange_s = state.paces.of(list(full))
        finish_s = exchange_s + step_s * list(full.values())
        clock_s = scene.deadline_s or float(np.quantile(finish_s, WAIT_QUANTILE))
        fits = (clock_s - exchange_s) / step_s.clip(min=1e-9)
        # A node that is in time to a rounding error keeps all of its work.
        kept = {
            node: min(steps, max(1, int(least + 1e-6)))
            for (node, steps), least in zip(full.items(), fits, strict=True)
        }
        return kept, float(clock_s)


Impl = FedProx
