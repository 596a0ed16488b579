"""Loss in bursts: Gilbert (1960) and Elliott (1963), two states with a loss rate each."""

from dataclasses import dataclass

from netem.link import Link
from netem.links._options import LinkOptions, require
from netem.rate import RateCurve


@dataclass(frozen=True, kw_only=True)
class GilbertElliott(LinkOptions):
    """A constant rate that loses packets in bursts.

    A packet in the good state is followed by the bad state with ``good_to_bad_fraction``, and
    back with ``bad_to_good_fraction``; ``loss_good_fraction`` and ``loss_bad_fraction`` are lost
    in each. TCP answers a burst once, so the same loss hurts less than spread out. The steady
    state of the chain sets the loss, so ``loss_fraction`` must stay 0 and ``loss_burst_packets`` 1.
    """

    up_bps: float
    down_bps: float
    good_to_bad_fraction: float = 0.005
    bad_to_good_fraction: float = 0.25
    loss_good_fraction: float = 0.0
    loss_bad_fraction: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("up_bps", "down_bps"):
            require(self, name, getattr(self, name) > 0, "above 0")
        for name in ("good_to_bad_fraction", "bad_to_good_fraction"):
            require(self, name, 0 < getattr(self, name) <= 1, "in (0, 1]")
        for name in ("loss_good_fraction", "loss_bad_fraction"):
            require(self, name, 0 <= getattr(self, name) < 1, "in [0, 1)")
        require(self, "loss_fraction", self.loss_fraction == 0, "0 here: the states set it")
        require(
            self, "loss_burst_packets", self.loss_burst_packets == 1, "1 here: the states set it"
        )

    @property
    def mean_loss_fraction(self) -> float:
        """Packets lost in the long run."""
        chain = self.good_to_bad_fraction + self.bad_to_good_fraction
        bad = self.good_to_bad_fraction / chain
        return bad * self.loss_bad_fraction + (1 - bad) * self.loss_good_fraction

    @property
    def burst_packets(self) -> float:
        """Packets lost in one visit to the bad state, at least 1."""
        return max(1.0, self.loss_bad_fraction / self.bad_to_good_fraction)

    def build(self, seed: int, node: int) -> Link:
        """The link of ``node``."""
        up, down = RateCurve.constant(self.up_bps), RateCurve.constant(self.down_bps)
        return self.link(
            up,
            down,
            seed=seed,
            node=node,
            loss_fraction=self.mean_loss_fraction,
            loss_burst_packets=self.burst_packets,
        )


Impl = GilbertElliott
