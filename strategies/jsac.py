"""Adaptive federated learning in resource-constrained edge systems (Wang et al., JSAC 2019).

With tau local steps between aggregations, step size eta, a loss that is rho-Lipschitz and
beta-smooth, and gradients that differ from their mean by delta, the gap to the best loss is at most

    G(tau) = (1 + sqrt(1 + 4 T^2 phi rho eta h(tau) / tau)) / (2 T eta phi) + rho h(tau)
    h(tau) = (delta / beta) ((eta beta + 1)^tau - 1) - eta delta tau
    T(tau) = R tau / (c tau + b)

where T is the number of local steps that a budget of R seconds allows at c seconds a step and b
seconds an aggregation. Each round takes the tau of least G among 1 ... 10 times the last one (as
in the authors' program).

The paper's clients send gradients, and their own rho and beta. A server that only sees updates u_i
of agreement A, the training losses F and F' of two models and its step D between them has (our
reading), from g_i = -u_i / (eta tau), g = -D / (eta tau) and F' = F + g D + beta/2 |D|^2,

    rho = |F' - F| / |D|,  beta = 2 (F' - F) / |D|^2 + 2 / (eta tau),
    delta = sqrt((1 - A) mean |u_i|^2) / (eta tau)
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from fedsys.types import RoundPlan, RoundRecord
from strategies._base import Scene
from strategies._options import require_between, require_whole
from strategies._signals import Pace, mean_energy, received_loss, slowest

LEAST_BETA = 1e-5
"""As in the authors' program."""
LARGEST = 1e12
"""A larger rho, beta or delta comes of a report that is no use, and is passed over."""
LARGEST_GROWTH = 60.0
"""Of a logarithm: keeps a hopeless tau's bound finite."""
GROWTH = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Terrain:
    """What the bound needs to know of the loss."""

    rho: float
    beta: float
    delta: float

    def mixed(self, new: "Terrain", keep: float) -> "Terrain":
        """Moving averages, with weight ``keep`` of what was known."""
        return Terrain(
            rho=keep * self.rho + (1 - keep) * new.rho,
            beta=keep * self.beta + (1 - keep) * new.beta,
            delta=keep * self.delta + (1 - keep) * new.delta,
        )


@dataclass(frozen=True, slots=True)
class State:
    """Steps in force, what is known, and what the last round left to be compared with."""

    steps: int
    terrain: Terrain | None = None
    pace: Pace | None = None
    budget_s: float | None = None
    last_loss: float | None = None
    last_step_norm: float | None = None
    last_steps: int = 1


@dataclass(frozen=True, slots=True)
class Jsac:
    """Local steps of the least bound on the loss that the run's budget of seconds can reach.

    What the paper has clients compute is measured from losses, norms and the agreement of updates
    (our reading). What minibatches add to updates then counts as difference between clients, which
    makes tau smaller than the paper's gradients would. A step's and an exchange's seconds are those
    of the client that the round waited for. Codecs are the experiment file's.
    """

    phi: float = 0.025
    """Control parameter, as published."""
    initial_steps: int = 1
    """tau of the first two rounds, as published. What minibatches add to an update's difference
    from the mean falls with its steps, so that after a larger one less of it is taken for delta."""
    max_steps: int = 100
    """Largest tau, as in the authors' program."""
    budget_s: float | None = None
    """R. None takes the experiment's seconds, or else its rounds at the length of the first."""
    smoothing: float = 0.5
    """Weight of the past in rho, beta and delta (ours: minibatch losses are noisy)."""
    chooses_codecs: ClassVar[bool] = False
    fednova: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse options that cannot be."""
        require_whole(self, "max_steps", "initial_steps")
        require_between(self, "phi", "budget_s", low=0)
        require_between(self, "smoothing", low=-1e-9, high=0.99)

    def start(self, scene: Scene) -> State:
        """``initial_steps`` between aggregations."""
        return State(self.initial_steps, budget_s=self.budget_s or scene.budget_s)

    def plan(self, scene: Scene, state: State, round_number: int) -> RoundPlan:
        """The same steps for everyone."""
        known = state.terrain
        why = "" if known is None else f" ({known.rho:.2g}, {known.beta:.2g}, {known.delta:.2g})"
        return scene.plan(
            round_number,
            dict.fromkeys(scene.sample(round_number), state.steps),
            reason=f"jsac: {state.steps} steps of least bound{why}",
        )

    def observe(self, scene: Scene, state: State, record: RoundRecord) -> State:
        """Measure the terrain between this model and the last, then choose the next tau."""
        loss, pace = received_loss(record), slowest(record) or state.pace
        seen = self._terrain(scene, state, record, loss)
        terrain = seen if state.terrain is None else state.terrain
        if seen is not None and state.terrain is not None:
            terrain = state.terrain.mixed(seen, self.smoothing)
        budget_s = state.budget_s or scene.rounds * (record.end_s - record.start_s) or None
        steps = state.steps
        if terrain is not None and pace is not None and budget_s is not None:
            steps = self.best_steps(scene.lr, terrain, pace, budget_s, state.steps)
        return replace(
            state,
            steps=steps,
            terrain=terrain,
            pace=pace,
            budget_s=budget_s,
            last_loss=loss,
            last_step_norm=record.step_norm,
            last_steps=record.plan.clients[0].local_steps,
        )

    def _terrain(
        self, scene: Scene, state: State, record: RoundRecord, loss: float | None
    ) -> Terrain | None:
        """What this round shows of the loss, None where a figure is missing."""
        before, moved, energy = state.last_loss, state.last_step_norm, mean_energy(record)
        if loss is None or before is None or energy is None or not moved or not (moved**2):
            return None
        agreement = 1.0 if record.agreement is None else record.agreement
        steps, last_steps = record.plan.clients[0].local_steps, state.last_steps
        beta = 2 * (loss - before) / moved**2 + 2 / (scene.lr * last_steps)
        rho = abs(loss - before) / moved
        delta = math.sqrt(max(0.0, 1 - agreement) * energy) / (scene.lr * steps)
        if not max(rho, beta, delta) <= LARGEST:
            return None
        # The bound holds up to eta beta = 1; more is noise, because a run would fall apart at 2.
        return Terrain(rho=rho, beta=min(1 / scene.lr, max(LEAST_BETA, beta)), delta=delta)

    def best_steps(
        self, lr: float, terrain: Terrain, pace: Pace, budget_s: float, last: int
    ) -> int:
        """The tau of least G; of equal ones the smallest."""
        most = min(self.max_steps, GROWTH * last)
        return min(
            range(1, most + 1), key=lambda tau: gap(tau, lr, terrain, pace, budget_s, self.phi)
        )


def gap(tau: int, lr: float, terrain: Terrain, pace: Pace, budget_s: float, phi: float) -> float:
    """G(tau)."""
    growth = math.expm1(min(LARGEST_GROWTH, tau * math.log1p(lr * terrain.beta)))
    drift = max(0.0, terrain.delta / terrain.beta * growth - lr * terrain.delta * tau)
    total = budget_s * tau / max(1e-9, pace.step_s * tau + pace.exchange_s)
    root = math.sqrt(1 + 4 * total**2 * phi * terrain.rho * lr * drift / tau)
    return (1 + root) / (2 * total * lr * phi) + terrain.rho * drift


Impl = Jsac
