"""A radio that may send only for a small share of the time."""

from dataclasses import dataclass

from fedsys.rng import rng_for
from netem.link import Link
from netem.links._options import LinkOptions, require, require_positive
from netem.rate import steps


@dataclass(frozen=True, kw_only=True)
class DutyCycle(LinkOptions):
    """Full rates for ``duty_fraction`` of every ``period_s``, nothing in between.

    Each node has its turn at a moment of its own.
    """

    up_bps: float
    down_bps: float
    duty_fraction: float = 0.01
    period_s: float = 100.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "up_bps", "down_bps", "period_s")
        require(self, "duty_fraction", 0 < self.duty_fraction < 1, "in (0, 1)")

    def build(self, seed: int, node: int) -> Link:
        """The link of ``node``."""
        rng = rng_for(seed, "link-duty", node)
        edge_s = [0.0, self.duty_fraction * self.period_s]
        shift_s = float(rng.uniform(0.0, self.period_s))
        up = steps(edge_s, [self.up_bps, 0.0], self.period_s).shifted(shift_s)
        down = steps(edge_s, [self.down_bps, 0.0], self.period_s).shifted(shift_s)
        return self.link(up, down, seed=seed, node=node)


Impl = DutyCycle
