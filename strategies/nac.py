"""NAC-FL (Hegde, de Veciana and Mokhtari, INFOCOM 2023): compress as the network is just now.

The time to converge is rounds times seconds per round, E[h(q)] E[d(q, c)], over network states c.
A small change of the policy changes that product by E[d] dE[h] + E[h] dE[d], so that at the best
policy each round's compression minimises, for the present state,

    q = argmin_q  r d(q, c) + D h(q)

where r and D are the running means of h(q) and of the duration d. h is proportional to the rounds
needed: sqrt(1 + q) for a quantizer that adds q times the energy of an update as variance.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from fedsys.types import F64, RoundPlan, RoundRecord
from strategies._base import Scene
from strategies._estimate import Estimates
from strategies._offers import Offer
from strategies._options import require_whole
from strategies._search import Cohort
from strategies._signals import overhead_bytes
from strategies._specs import QUANTIZERS, quantizer


@dataclass(frozen=True, slots=True)
class State:
    """Links, running means, and the bytes of a message beside its coded values."""

    estimates: Estimates = field(default_factory=lambda: Estimates({}))
    rounds_factor: float = 1.0
    """Running mean of h."""
    duration_s: float = 0.0
    """Running mean of d; 0 before the first round."""
    rounds: int = 0
    overhead_bytes: float = 0.0
    down_bytes: float = 0.0
    """Mean bytes that a node was sent in the last round."""


@dataclass(frozen=True, slots=True)
class Nac:
    """Bits per value of each client's update, chosen anew each round for the links as last seen.

    A client's seconds are floor + slope * bytes of its uplink (fitted to its replies), its step
    time and its download; d is the slowest client's. q of a cohort is the mean of its quantizers'
    errors (our reading), and the durations that enter D are the measured ones. Quantizers are ours,
    as in ``adaquant``. Local work is the file's.
    """

    first_bits: int = 4
    """Bits of the first round, before any link was seen (ours)."""
    local_epochs: int = 1
    chooses_codecs: ClassVar[bool] = True
    fednova: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse options that cannot be."""
        require_whole(self, "first_bits", "local_epochs")

    def start(self, scene: Scene) -> State:
        """Knows no link."""
        return State()

    def plan(self, scene: Scene, state: State, round_number: int) -> RoundPlan:
        """The least of r d + D h over the quantizers of every client."""
        steps = scene.work(scene.sample(round_number), self.local_epochs)
        chosen = self.choose(scene, state, steps)
        spread = sorted(offer.bits for offer in chosen.values())
        return scene.plan(
            round_number,
            steps,
            uplink={node: offer.spec for node, offer in chosen.items()},
            reason=(
                f"nac: {spread[0]:.0f} to {spread[-1]:.0f} bits at r = {state.rounds_factor:.3f}, "
                f"d = {state.duration_s:.1f} s"
            ),
        )

    def observe(self, scene: Scene, state: State, record: RoundRecord) -> State:
        """Learn the links, and take the round into both running means."""
        estimates, _ = state.estimates.seen(record.reports)
        offers = {offer.spec: offer for offer in QUANTIZERS[scene.feedback]}
        sent = {client.node_id: offers[client.uplink] for client in record.plan.clients}
        expected = {n: offer.size_bytes(scene.parameters, 0.0) for n, offer in sent.items()}
        count = state.rounds + 1
        h = rounds_of([offer.nmse for offer in sent.values()])
        d = record.end_s - record.start_s
        return State(
            estimates=estimates,
            rounds_factor=state.rounds_factor + (h - state.rounds_factor) / count,
            duration_s=state.duration_s + (d - state.duration_s) / count,
            rounds=count,
            overhead_bytes=overhead_bytes(record, expected, state.overhead_bytes),
            down_bytes=record.downlink_bytes / len(sent),
        )

    def choose(self, scene: Scene, state: State, steps: Mapping[int, int]) -> dict[int, Offer]:
        """The best offer for each node."""
        if not state.rounds:
            return dict.fromkeys(steps, quantizer(self.first_bits, scene.feedback))
        offers = QUANTIZERS[scene.feedback]
        cohort = Cohort.of(state.estimates.of(list(steps)))
        up = [
            cohort.upload_s(offer.size_bytes(scene.parameters, state.overhead_bytes))
            for offer in offers
        ]
        before_s = np.array(list(steps.values())) * cohort.step_s
        before_s += cohort.download_s(state.down_bytes)
        best = best_of(
            np.array(up) + before_s, [o.nmse for o in offers], state.rounds_factor, state.duration_s
        )
        return {node: offers[at] for node, at in zip(steps, best, strict=True)}


def rounds_of(nmse: Sequence[float]) -> float:
    """h of a cohort: the rounds needed, relative to no compression."""
    return math.sqrt(1 + sum(nmse) / len(nmse))


def best_of(
    finish_s: F64, nmse: Sequence[float], rounds_factor: float, duration_s: float
) -> list[int]:
    """Offer of each client that together give the least r d + D h.

    finish_s float64 [offers, c] s, offers from hard to light; nmse falls along them. For a given d,
    the lightest offer of each client that is done by then has the least h; and only times at which
    some client is done can be the best d, so trying each of them finds the least.
    """
    index = np.arange(len(nmse))[:, None]
    choices = []
    for d in np.unique(np.maximum(finish_s, finish_s.min(axis=0).max())):
        light = np.where(finish_s <= d, index, -1).max(axis=0)
        h = rounds_of([nmse[at] for at in light])
        choices.append((rounds_factor * float(d) + duration_s * h, [int(at) for at in light]))
    return min(choices)[1]


Impl = Nac
