"""Options that every link model has, and how a model's curves become the link of one node."""

import math
from dataclasses import dataclass
from typing import Any

from fedsys.errors import ConfigError
from fedsys.rng import rng_for
from netem.link import Direction, Layer, Link, Tcp
from netem.rate import RateCurve


@dataclass(frozen=True, kw_only=True)
class LinkOptions:
    """Everything about a link but its rates."""

    delay_ms: float = 0.0
    """One way, the same in both directions."""
    jitter_ms: float = 0.0
    loss_fraction: float = 0.0
    spread: float = 0.0
    """Sigma of a log-normal factor on both rates of a node; 0 makes all nodes alike."""
    delay_spread: float = 0.0
    """Sigma of a log-normal factor on a node's delay."""
    outages: tuple[tuple[float, float], ...] = ()
    """(begin_s, end_s) windows in which nothing moves in either direction."""
    tcp: Tcp = "cubic"
    reuse_connection: bool = True
    tls: bool = True

    def __post_init__(self) -> None:
        for name in ("spread", "delay_spread"):
            require(self, name, getattr(self, name) >= 0, "0 or more")

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
        loss_burst_packets: float = 1.0,
    ) -> Link:
        """The link of ``node``: these curves, scaled by what the node drew from ``seed``.

        ``down_layer`` and ``loss_fraction`` are None where ``layer`` and the option hold.
        """
        rng = rng_for(seed, "link-spread", node)
        rate_factor, delay_factor = (
            float(rng.lognormal(0.0, sigma)) if sigma > 0 else 1.0
            for sigma in (self.spread, self.delay_spread)
        )
        directions = [
            Direction(
                curve=(curve.limited(rate_factor) if rate_factor != 1 else curve).cut(self.outages),
                delay_ms=self.delay_ms * delay_factor,
                jitter_ms=self.jitter_ms,
                loss_fraction=self.loss_fraction if loss_fraction is None else loss_fraction,
                loss_burst_packets=loss_burst_packets,
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
        )


def require(options: Any, name: str, holds: bool, allowed: str) -> None:
    """Raise ConfigError unless the option ``name`` holds what it may."""
    if not holds:
        value = getattr(options, name)
        raise ConfigError(f"{name} must be {allowed}, got {value}")


def require_positive(options: Any, *names: str) -> None:
    """Raise ConfigError unless these options are finite and above 0."""
    for name in names:
        require(options, name, 0 < getattr(options, name) < math.inf, "above 0")
