"""A satellite link that moves to another satellite at fixed times."""

import math
from dataclasses import dataclass

import numpy as np

from fedsys.rng import rng_for
from fedsys.types import F64
from netem.link import Link
from netem.links._options import LinkOptions, require, require_positive
from netem.rate import RateCurve, steps


@dataclass(frozen=True, kw_only=True)
class Handover(LinkOptions):
    """A new rate every ``slot_s`` seconds, after a gap of ``gap_s`` in which nothing moves.

    Rates are log-normal around ``up_bps`` and ``down_bps`` with ``sigma`` of the natural
    logarithm; all nodes change at the same moments, to rates of their own. The drawn pattern of
    ``horizon_s`` repeats.
    """

    up_bps: float
    down_bps: float
    slot_s: float = 15.0
    gap_s: float = 0.1
    sigma: float = 0.3
    horizon_s: float = 1800.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "up_bps", "down_bps", "slot_s")
        require(self, "gap_s", 0 <= self.gap_s < self.slot_s, "0 or more and below slot_s")
        require(self, "sigma", self.sigma >= 0, "0 or more")
        require(self, "horizon_s", self.slot_s < self.horizon_s < math.inf, "longer than slot_s")

    def build(self, seed: int, node: int) -> Link:
        """The link of ``node``."""
        rng = rng_for(seed, "link-handover", node)
        slots = round(self.horizon_s / self.slot_s)
        shape = np.exp(rng.normal(0.0, self.sigma, slots))
        up, down = (self._curve(bps * shape) for bps in (self.up_bps, self.down_bps))
        return self.link(up, down, seed=seed, node=node)

    def _curve(self, slot_bps: F64) -> RateCurve:
        start_s = self.slot_s * np.arange(slot_bps.size)
        period_s = self.slot_s * slot_bps.size
        if self.gap_s == 0:
            return steps(start_s, slot_bps, period_s)
        edge_s = np.column_stack([start_s, start_s + self.gap_s]).ravel()
        rate_bps = np.column_stack([np.zeros(slot_bps.size), slot_bps]).ravel()
        return steps(edge_s, rate_bps, period_s)


Impl = Handover
