"""A rate that never changes."""

from dataclasses import dataclass

from netem.link import Link
from netem.links._options import LinkOptions, require
from netem.rate import RateCurve


@dataclass(frozen=True, kw_only=True)
class Constant(LinkOptions):
    """The same rate at all times.

    With ``spread`` the rates differ between nodes, not over time.
    """

    up_bps: float
    down_bps: float

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("up_bps", "down_bps"):
            require(self, name, getattr(self, name) > 0, "above 0")

    def build(self, seed: int, node: int) -> Link:
        """The link of ``node``."""
        up, down = RateCurve.constant(self.up_bps), RateCurve.constant(self.down_bps)
        return self.link(up, down, seed=seed, node=node)


Impl = Constant
