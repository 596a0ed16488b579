"""Options that every link model has, and how a model's curves become the link of one node."""

import math
from dataclasses import dataclass
from typing import Any

from fedsys.errors import ConfigError
from fedsys.rng import rng_for
from netem.gaps import Availability, Gaps
from netem.link import Direction, Layer, Link, OnOutage, Tcp
from netem.rate import RateCurve


@dataclass(frozen=True, kw_only=True)
class LinkOptions:
    """Everything about a link but its rates."""

    delay_ms: float = 0.0
    """One way, the same in both directions."""
    jitter_ms: float = 0.0
    loss_fraction: float = 0.0
    loss_burst_packets: float = 1.0
    """Mean number of packets lost in a row."""
    queue_bytes: int = 0
    """What may wait at the bottleneck of each direction; 0 sets no limit."""
    spread: float = 0.0
    """Sigma of a log-normal factor on both rates of a node; 0 makes all nodes alike."""
    delay_spread: float = 0.0
    """Sigma of a log-normal factor on a node's delay."""
    outages: tuple[tuple[float, float], ...] = ()
    """(begin_s, end_s) windows in which nothing moves in either direction."""
    mean_up_s: float = 0.0
    """Mean time between random outages of both directions; 0 makes none."""
    mean_outage_s: float = 2.0
    """Mean length of random outages."""
    on_outage: OnOutage = "resume"
    idle_timeout_s: float = 60.0
    """With ``on_outage = "restart"``: how long an outage has to be to break a connection."""
    available_fraction: float = 1.0
    """Share of ``available_period_s`` in which a device takes part."""
    available_period_s: float = 86400.0
    available_spread: float = 1.0
    """Share of the period over which the nodes' hours are spread; 0 makes them the same."""
    poll_s: float = 0.0
    """How often an idle device asks for messages; 0 tells it at once."""
    tcp: Tcp = "cubic"
    reuse_connection: bool = True
    tls: bool = True

    def __post_init__(self) -> None:
        for name in ("spread", "delay_spread", "mean_up_s", "mean_outage_s"):
            require(self, name, 0 <= getattr(self, name) < math.inf, "0 or more")
        require(self, "available_fraction", 0 < self.available_fraction <= 1, "in (0, 1]")
        require(self, "available_spread", 0 <= self.available_spread <= 1, "in [0, 1]")
        require_positive(self, "available_period_s")

    def link(
        self,
        up: RateCurve,
        down: RateCurve,
        *,
        seed: int,
        node: int,
        layer: Layer = "ip",
        down_layer: Layer | None = None,
        loss_fraction: float | None = None,
        loss_burst_packets: float | None = None,
    ) -> Link:
        """The link of ``node``: these curves, scaled by what the node drew from ``seed``.

        ``down_layer`` and the losses are None where ``layer`` and the options hold.
        """
        rng = rng_for(seed, "link-spread", node)
        rate_factor, delay_factor = (
            float(rng.lognormal(0.0, sigma)) if sigma > 0 else 1.0
            for sigma in (self.spread, self.delay_spread)
        )
        gaps = self._gaps(seed, node)
        if loss_burst_packets is None:
            loss_burst_packets = self.loss_burst_packets
        directions = [
            Direction(
                curve=(curve.limited(rate_factor) if rate_factor != 1 else curve).cut(
                    self.outages, gaps
                ),
                delay_ms=self.delay_ms * delay_factor,
                jitter_ms=self.jitter_ms,
                loss_fraction=self.loss_fraction if loss_fraction is None else loss_fraction,
                loss_burst_packets=loss_burst_packets,
                queue_bytes=self.queue_bytes or None,
                layer=counted,
            )
            for curve, counted in ((up, layer), (down, down_layer or layer))
        ]
        return Link(
            up=directions[0],
            down=directions[1],
            tcp=self.tcp,
            reuse_connection=self.reuse_connection,
            tls=self.tls,
            on_outage=self.on_outage,
            idle_timeout_s=self.idle_timeout_s,
            poll_s=self.poll_s,
            availability=self._availability(seed, node),
        )

    def _gaps(self, seed: int, node: int) -> Gaps | None:
        """The node's random outages; they come in both directions at once."""
        if self.mean_up_s == 0 or self.mean_outage_s == 0:
            return None
        rng = rng_for(seed, "link-outages", node)
        return Gaps.drawn(rng, self.mean_up_s, self.mean_outage_s)

    def _availability(self, seed: int, node: int) -> Availability | None:
        if self.available_fraction == 1:
            return None
        place = float(rng_for(seed, "link-availability", node).random()) * self.available_spread
        period_s = self.available_period_s
        return Availability(period_s, self.available_fraction * period_s, place * period_s)


def require(options: Any, name: str, holds: bool, allowed: str) -> None:
    """Raise ConfigError unless the option ``name`` holds what it may."""
    if not holds:
        value = getattr(options, name)
        raise ConfigError(f"{name} must be {allowed}, got {value}")


def require_positive(options: Any, *names: str) -> None:
    """Raise ConfigError unless these options are finite and above 0."""
    for name in names:
        require(options, name, 0 < getattr(options, name) < math.inf, "above 0")
