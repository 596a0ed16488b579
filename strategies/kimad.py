"""Kimad (Xin, Ilin, Zhang, Canini and Richtarik, 2023): send what the bandwidth has time for.

With an estimate B of a client's bandwidth and t seconds for the upload of each round, the client
keeps the k largest values for the largest k whose message takes at most B t bytes.
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from fedsys.types import RoundPlan, RoundRecord
from strategies._base import Scene
from strategies._estimate import Estimates
from strategies._options import require_between, require_whole
from strategies._signals import overhead_bytes
from strategies._specs import fraction_within, sparsifier, sparsifier_bits


@dataclass(frozen=True, slots=True)
class State:
    """Links, the seconds of an upload, and the bytes of a message beside its values."""

    estimates: Estimates = field(default_factory=lambda: Estimates({}))
    upload_s: float | None = None
    overhead_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Kimad:
    """Each client's share of values fits the same seconds of upload, whatever its link does.

    B t is what the fitted line floor + slope * bytes of the client's uplink allows in t seconds.
    Values travel as 8 bits with coded indices, and their bytes are reckoned as such (the paper
    sends raw values under EF21; here error feedback is the file's). Its second part, Kimad+, which
    divides the budget among layers, is left out: our top-k ranks the values of all layers together.
    """

    upload_s: float | None = None
    """t. None takes the median upload of the first round (ours; the paper leaves t to the user)."""
    first_fraction: float = 0.1
    """Share of values in the first round (ours)."""
    local_epochs: int = 1
    chooses_codecs: ClassVar[bool] = True
    fednova: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse options that cannot be."""
        require_whole(self, "local_epochs")
        require_between(self, "upload_s", low=0)
        require_between(self, "first_fraction", low=0, high=1)

    def start(self, scene: Scene) -> State:
        """Knows no link."""
        return State(upload_s=self.upload_s)

    def plan(self, scene: Scene, state: State, round_number: int) -> RoundPlan:
        """Each node's largest fraction within the seconds."""
        steps = scene.work(scene.sample(round_number), self.local_epochs)
        kept = self.fractions(scene, state, list(steps))
        limit = "unknown" if state.upload_s is None else f"{state.upload_s:.2f} s"
        return scene.plan(
            round_number,
            steps,
            uplink={node: sparsifier(fraction) for node, fraction in kept.items()},
            reason=f"kimad: top {min(kept.values()):.3g} to {max(kept.values()):.3g}, t = {limit}",
        )

    def observe(self, scene: Scene, state: State, record: RoundRecord) -> State:
        """Learn the links; the first round that was answered sets t where it is not given."""
        sent = self.fractions(scene, state, [c.node_id for c in record.plan.clients])
        estimates, _ = state.estimates.seen(record.reports)
        uploads_s = [r.upload_s for r in record.reports if r.accepted and r.upload_s]
        upload_s = state.upload_s
        if upload_s is None and uploads_s:
            upload_s = float(np.median(uploads_s))
        expected = {n: scene.parameters * sparsifier_bits(kept) / 8 for n, kept in sent.items()}
        return State(estimates, upload_s, overhead_bytes(record, expected, state.overhead_bytes))

    def fractions(self, scene: Scene, state: State, nodes: list[int]) -> dict[int, float]:
        """The share of values of each node."""
        if state.upload_s is None or not state.estimates.nodes:
            return dict.fromkeys(nodes, self.first_fraction)
        lines = [up.fit() for up, _, _ in state.estimates.of(nodes)]
        budgets = [
            (state.upload_s - floor) / slope - state.overhead_bytes if slope else math.inf
            for floor, slope in lines
        ]
        return {
            node: fraction_within(8 * size / scene.parameters)
            for node, size in zip(nodes, budgets, strict=True)
        }


Impl = Kimad
