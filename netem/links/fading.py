"""A radio link whose rate wanders, as mobile measurements show it."""

import math
from dataclasses import dataclass

import numpy as np

from fedsys.rng import rng_for
from fedsys.types import F64
from netem.link import Link
from netem.links._options import LinkOptions, require, require_positive
from netem.links.markov import two_states
from netem.rate import steps


@dataclass(frozen=True, kw_only=True)
class Fading(LinkOptions):
    """Log-normal rates that wander: a first-order autoregression of the logarithm.

    ``up_bps`` and ``down_bps`` are medians; ``sigma`` is the deviation of the natural logarithm
    (0.7 puts the 10th percentile at 0.4 of the median), ``correlation_s`` the time it remembers.
    ``outage_fraction`` of the time nothing moves, in gaps of ``mean_outage_s``; the other way to
    say it is ``mean_up_s``. Both directions fade together. The drawn pattern of ``horizon_s``
    repeats.
    """

    up_bps: float
    down_bps: float
    sigma: float = 0.5
    correlation_s: float = 10.0
    outage_fraction: float = 0.0
    step_s: float = 1.0
    horizon_s: float = 900.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "up_bps", "down_bps", "correlation_s", "mean_outage_s", "step_s")
        require(self, "sigma", self.sigma >= 0, "0 or more")
        require(self, "outage_fraction", 0 <= self.outage_fraction < 1, "in [0, 1)")
        both = self.outage_fraction > 0 and self.mean_up_s > 0
        require(self, "mean_up_s", not both, "0 where outage_fraction sets the outages")
        require(self, "horizon_s", self.horizon_s > self.step_s, "longer than step_s")

    def build(self, seed: int, node: int) -> Link:
        """The link of ``node``; each node has a pattern of its own."""
        rng = rng_for(seed, "link-fading", node)
        edge_s = np.arange(0.0, self.horizon_s, self.step_s)
        shape = np.exp(self._wander(rng, edge_s.size))
        if self.outage_fraction > 0:
            mean_up_s = self.mean_outage_s * (1 / self.outage_fraction - 1)
            gap_s, alive = two_states(rng, mean_up_s, self.mean_outage_s, self.horizon_s)
            edges = np.union1d(edge_s, gap_s)
            shape = (
                shape[np.searchsorted(edge_s, edges, side="right") - 1]
                * alive[np.searchsorted(gap_s, edges, side="right") - 1]
            )
            edge_s = edges
        up = steps(edge_s, self.up_bps * shape, self.horizon_s)
        down = steps(edge_s, self.down_bps * shape, self.horizon_s)
        return self.link(up, down, seed=seed, node=node)

    def _wander(self, rng: np.random.Generator, m: int) -> F64:
        """float64 [m]: a stationary autoregression with deviation ``sigma``."""
        keep = math.exp(-self.step_s / self.correlation_s)
        noise = rng.normal(0.0, self.sigma * math.sqrt(1 - keep**2), m).tolist()
        level, levels = float(rng.normal(0.0, self.sigma)), []
        for shock in noise:
            levels.append(level)
            level = keep * level + shock
        return np.array(levels)


Impl = Fading
