"""A link that is good or bad, for random lengths of time."""

from dataclasses import dataclass

import numpy as np

from fedsys.rng import rng_for
from fedsys.types import F64
from netem.link import Link
from netem.links._options import LinkOptions, require, require_positive
from netem.rate import steps


@dataclass(frozen=True, kw_only=True)
class Markov(LinkOptions):
    """Two states: full rates, and ``bad_fraction`` of them; exponential times in each.

    ``bad_fraction = 0`` makes random outages. The drawn pattern of ``horizon_s`` repeats.
    """

    up_bps: float
    down_bps: float
    bad_fraction: float = 0.1
    mean_good_s: float = 30.0
    mean_bad_s: float = 10.0
    horizon_s: float = 3600.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "up_bps", "down_bps", "mean_good_s", "mean_bad_s", "horizon_s")
        require(self, "bad_fraction", 0 <= self.bad_fraction <= 1, "in [0, 1]")

    def build(self, seed: int, node: int) -> Link:
        """The link of ``node``; each node has a pattern of its own."""
        rng = rng_for(seed, "link-markov", node)
        edge_s, good = two_states(rng, self.mean_good_s, self.mean_bad_s, self.horizon_s)
        shape = np.where(good, 1.0, self.bad_fraction)
        up = steps(edge_s, self.up_bps * shape, self.horizon_s)
        down = steps(edge_s, self.down_bps * shape, self.horizon_s)
        return self.link(up, down, seed=seed, node=node)


def two_states(
    rng: np.random.Generator, mean_good_s: float, mean_bad_s: float, horizon_s: float
) -> tuple[F64, F64]:
    """Edges in s and 1 or 0 for good or bad, of a chain that starts in its steady state."""
    good = bool(rng.random() < mean_good_s / (mean_good_s + mean_bad_s))
    now_s, edges, states = 0.0, [], []
    while now_s < horizon_s:
        edges.append(now_s)
        states.append(float(good))
        now_s += float(rng.exponential(mean_good_s if good else mean_bad_s)) + 1e-6
        good = not good
    return np.array(edges), np.array(states)


Impl = Markov
