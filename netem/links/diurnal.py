"""A link that shares its cell or street with people who are awake at the same hours."""

import math
from dataclasses import dataclass

import numpy as np

from fedsys.rng import rng_for
from netem.link import Link
from netem.links._options import LinkOptions, require, require_positive
from netem.rate import steps

DAY_S = 86400.0


@dataclass(frozen=True, kw_only=True)
class Diurnal(LinkOptions):
    """Rates that dip once a day by ``depth_fraction``, lowest at ``busiest_h``, in a cosine.

    ``zone_spread_h`` shifts each node's day by up to that many hours either way. Time 0 is
    midnight. ``depth_fraction = 1`` stops the link at the busiest hour.
    """

    up_bps: float
    down_bps: float
    depth_fraction: float = 0.6
    busiest_h: float = 21.0
    zone_spread_h: float = 0.0
    step_s: float = 900.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "up_bps", "down_bps")
        require(self, "depth_fraction", 0 <= self.depth_fraction <= 1, "in [0, 1]")
        require(self, "busiest_h", 0 <= self.busiest_h <= 24, "in [0, 24]")
        require(self, "zone_spread_h", 0 <= self.zone_spread_h <= 12, "in [0, 12]")
        require(self, "step_s", 1 <= self.step_s <= DAY_S / 2, "from 1 to 43200")

    def build(self, seed: int, node: int) -> Link:
        """The link of ``node``."""
        rng = rng_for(seed, "link-diurnal", node)
        busiest_h = self.busiest_h + rng.uniform(-1.0, 1.0) * self.zone_spread_h
        edge_s = np.arange(0.0, DAY_S, self.step_s)
        angle = 2 * math.pi * ((edge_s + self.step_s / 2) / DAY_S - busiest_h / 24)
        shape = 1 - self.depth_fraction * (1 + np.cos(angle)) / 2
        up = steps(edge_s, self.up_bps * shape, DAY_S)
        down = steps(edge_s, self.down_bps * shape, DAY_S)
        return self.link(up, down, seed=seed, node=node)


Impl = Diurnal
