"""A rate that changes once, to see whether a controller notices."""

from dataclasses import dataclass

from netem.link import Link
from netem.links._options import LinkOptions, require, require_positive
from netem.rate import steps


@dataclass(frozen=True, kw_only=True)
class Step(LinkOptions):
    """Both rates are multiplied by ``factor`` from ``at_s`` on, and from ``until_s`` on restored.

    ``until_s = 0`` never restores them; ``factor = 0`` is an outage.
    """

    up_bps: float
    down_bps: float
    at_s: float
    factor: float = 0.1
    until_s: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "up_bps", "down_bps", "at_s")
        require(self, "factor", self.factor >= 0, "0 or more")
        require(self, "until_s", self.until_s == 0 or self.until_s > self.at_s, "after at_s, or 0")

    def build(self, seed: int, node: int) -> Link:
        """The link of ``node``."""
        edge_s = [0.0, self.at_s, *([self.until_s] if self.until_s else [])]
        shape = [1.0, self.factor, 1.0][: len(edge_s)]
        up = steps(edge_s, [self.up_bps * part for part in shape])
        down = steps(edge_s, [self.down_bps * part for part in shape])
        return self.link(up, down, seed=seed, node=node)


Impl = Step
