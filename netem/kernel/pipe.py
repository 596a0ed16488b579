"""What one direction of a link asks of packets, and which mechanism of the kernel can give it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

from fedsys.errors import ConfigError
from netem.link import Direction
from netem.rate import RateCurve
from netem.tcp import PACKET_BYTES, SEGMENT_BYTES

Mechanism = Literal["tbf", "htb", "netem", "tun"]
UNLIMITED_BYTES = 64 << 20
"""What stands for a queue without a limit: more than a window of TCP ever fills."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipe:
    """One direction, in IP packets."""

    curve: RateCurve
    """Bits of IP packets, headers of IP and above included."""
    delay_ms: float
    jitter_ms: float
    loss_fraction: float
    loss_burst_packets: float
    queue_bytes: int

    @property
    def constant_bps(self) -> float | None:
        """The rate if it never changes and is not 0."""
        curve = self.curve
        bps = float(curve.rate_bps[0])
        same = bool((curve.rate_bps == bps).all()) and not curve.outages and curve.gaps is None
        return bps if same and bps > 0 else None

    def asks(self) -> list[str]:
        """What a plain queue with one rate cannot do."""
        found = {
            "a rate that changes": self.constant_bps is None,
            "delay": self.delay_ms > 0,
            "jitter": self.jitter_ms > 0,
            "loss": self.loss_fraction > 0,
        }
        return [name for name, asked in found.items() if asked]


def pipe_of(direction: Direction) -> Pipe:
    """``direction`` as packets see it.

    A curve of goodput has headers and loss already paid, so here the headers come back and the
    loss does not.
    """
    paid = direction.layer == "goodput"
    curve = direction.curve.limited(PACKET_BYTES / SEGMENT_BYTES) if paid else direction.curve
    return Pipe(
        curve=curve,
        delay_ms=direction.delay_ms,
        jitter_ms=direction.jitter_ms,
        loss_fraction=0.0 if paid else direction.loss_fraction,
        loss_burst_packets=direction.loss_burst_packets,
        queue_bytes=UNLIMITED_BYTES if direction.queue_bytes is None else direction.queue_bytes,
    )


def rate_only(pipe: Pipe) -> Pipe:
    """The mean rate of ``pipe`` over one loop, or what it ends with, and nothing else."""
    curve = pipe.curve
    if curve.period_s is not None:
        bps = curve.bits_between(0.0, curve.period_s) / curve.period_s
    else:
        bps = float(curve.rate_bps[-1])
    return replace(
        pipe, curve=RateCurve.constant(bps), delay_ms=0.0, jitter_ms=0.0, loss_fraction=0.0
    )


def mechanism_for(
    pipes: Iterable[Pipe], why_not: Callable[[str], str | None], force_tun: bool = False
) -> Mechanism:
    """The simplest mechanism that gives all of ``pipes``, of those that this kernel has.

    ``why_not`` says of a mechanism why it is missing, or None. Raises ConfigError, naming what
    the link asks and what is missing.
    """
    asked = list(dict.fromkeys(what for pipe in pipes for what in pipe.asks()))
    usable: list[Mechanism] = ["tbf", "htb", "netem", "tun"]
    if force_tun:
        usable = ["tun"]
    elif asked:
        # netem lets packets overtake where it jitters, and knows one rate
        usable = ["netem", "tun"] if set(asked) <= {"delay", "loss"} else ["tun"]
    reasons = {}
    for name in usable:
        reason = why_not(name)
        if reason is None:
            return name
        reasons[name] = reason
    needs = "the TUN box" if force_tun else f"{_listed(asked)} on the link" if asked else "a rate"
    missing = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    raise ConfigError(f"this kernel cannot give {needs} ({missing})")


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
