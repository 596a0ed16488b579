"""FedLuck (Song, Luo, Lu, Xie, Chen and Wang, Euro-Par 2024): local steps and top-k jointly.

With a seconds a local step, b seconds an upload of the whole update, k steps, a share delta of the
values kept and an aggregation every p seconds, the convergence bound is governed by

    phi(k, delta) = ((2 - delta) (k a + delta b)^2 / p^2 + 1) / (k delta)

which each device minimises for itself. Multiplied out, phi = A k + B / k + const with
A = (2 - delta) a^2 / (delta p^2) and B = (2 - delta) delta b^2 / p^2 + 1 / delta, so that

    k*(delta) = sqrt(B / A) = sqrt(delta^2 b^2 + p^2 / (2 - delta)) / a

and only delta is left to search. At k*(delta) every term of phi falls with delta: the bound asks
for compression only where k is held below k*, here by ``max_steps``.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedsys.types import RoundPlan, RoundRecord
from strategies._base import Scene
from strategies._options import require_between, require_whole
from strategies._specs import sparsifier

FRACTIONS = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0)
MIN_STEP_S = 1e-6


@dataclass(frozen=True, slots=True)
class Speed:
    """What a device measures once: seconds of a local step, and of an upload of the whole model."""

    step_s: float
    upload_s: float


@dataclass(frozen=True, slots=True)
class State:
    """The speeds measured so far, and the period."""

    speeds: Mapping[int, Speed] = field(default_factory=dict)
    period_s: float | None = None


@dataclass(frozen=True, slots=True)
class FedLuck:
    """Each client's local steps and share of values minimise the paper's bound, for good.

    Measured once and never again, as published: the first round trains one epoch and uploads
    everything; a client first met later gets the mean of those measured, and its own speed counts
    from then on. The paper aggregates asynchronously every p seconds; here rounds are synchronous
    and a round lasts until the slowest client is done (our reading). Values travel as 8 bits.
    """

    period_s: float | None = None
    """p. None takes the median time to train and upload in the first round (ours)."""
    max_steps: int = 100
    """Largest k (ours)."""
    fednova: bool = False
    """Divide updates by their local steps, which differ; the paper does not."""

    def __post_init__(self) -> None:
        """Refuse options that cannot be."""
        require_whole(self, "max_steps")
        require_between(self, "period_s", low=0)

    @property
    def chooses_codecs(self) -> bool:
        """Yes, the share of values."""
        return True

    def start(self, scene: Scene) -> State:
        """Nothing measured."""
        return State(period_s=self.period_s)

    def plan(self, scene: Scene, state: State, round_number: int) -> RoundPlan:
        """The measuring round, or each node's k and delta."""
        nodes = scene.sample(round_number)
        if not state.speeds or state.period_s is None:
            return scene.plan(
                round_number,
                scene.work(nodes, 1),
                uplink="none",
                reason="fedluck: measures a step and a whole upload",
            )
        mean = Speed(
            float(np.mean([s.step_s for s in state.speeds.values()])),
            float(np.mean([s.upload_s for s in state.speeds.values()])),
        )
        speeds = [state.speeds.get(node, mean) for node in nodes]
        chosen = [best_of(s, state.period_s, FRACTIONS, self.max_steps) for s in speeds]
        return scene.plan(
            round_number,
            {node: steps for node, (steps, _) in zip(nodes, chosen, strict=True)},
            uplink={n: sparsifier(part) for n, (_, part) in zip(nodes, chosen, strict=True)},
            reason=f"fedluck: least bound for aggregation every {state.period_s:.2f} s",
        )

    def observe(self, scene: Scene, state: State, record: RoundRecord) -> State:
        """Measure who was not measured before."""
        speeds, times_s = dict(state.speeds), []
        for r in record.reports:
            if not r.accepted or r.train_s is None or r.upload_s is None or not r.local_steps:
                continue
            times_s.append(r.train_s + r.upload_s)
            whole_s = r.upload_s * max(1.0, scene.model_bytes / max(1, r.uplink_bytes))
            speed = Speed(max(MIN_STEP_S, r.train_s / r.local_steps), whole_s)
            speeds.setdefault(r.node_id, speed)
        period_s = state.period_s
        if period_s is None and times_s:
            period_s = max(MIN_STEP_S, float(np.median(times_s)))
        return State(speeds, period_s)


def phi(steps: float, fraction: float, speed: Speed, period_s: float) -> float:
    """The factor of the bound that a device can choose."""
    busy = (steps * speed.step_s + fraction * speed.upload_s) / period_s
    return ((2 - fraction) * busy**2 + 1) / (steps * fraction)


def best_steps(fraction: float, speed: Speed, period_s: float) -> float:
    """k*(delta), not rounded."""
    upload_s = fraction * speed.upload_s
    return math.sqrt(upload_s**2 + period_s**2 / (2 - fraction)) / speed.step_s


def best_of(
    speed: Speed, period_s: float, fractions: Sequence[float], max_steps: int
) -> tuple[int, float]:
    """The whole number of steps and the fraction of least phi."""
    choices = []
    for fraction in fractions:
        at = best_steps(fraction, speed, period_s)
        for steps in (math.floor(at), math.ceil(at)):
            kept = min(max_steps, max(1, steps))
            choices.append((phi(kept, fraction, speed, period_s), kept, fraction))
    _, steps, fraction = min(choices)
    return steps, fraction


Impl = FedLuck
