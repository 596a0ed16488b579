"""How long one transfer takes on a link that it has for itself.

A transfer is a few phases of (wait, then so many bits over a curve) and a tail of propagation.
The phases also serve a shared server link, which runs the same bits at the share they get there.
Pure: the same link, size, start, seed and flow give the same result in any order of events.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np

from fedsys.rng import rng_for
from netem.link import Direction, Link, Way
from netem.rate import RateCurve
from netem.tcp import (
    BBR_DRAIN_FROM_DOUBLINGS,
    BBR_DRAIN_ROUNDS,
    BBR_SHARE_FRACTION,
    growth_stall_s,
    handshake_s,
    loss_limited_bps,
    packet_bits,
    wire_bits,
)


@dataclass(frozen=True, slots=True)
class Phase:
    """``size_bits`` over ``curve``, begun ``wait_s`` after the phase before it ended."""

    wait_s: float
    size_bits: float
    curve: RateCurve


@dataclass(frozen=True, slots=True)
class Transfer:
    """One message in one direction."""

    start_s: float
    phases: tuple[Phase, ...]
    tail_s: float
    """From the last bit leaving to its arrival: delay and jitter."""

    def finish_s(self) -> float:
        """When the last byte arrives if nothing else shares the way; inf if it never does."""
        now_s = self.start_s
        for phase in self.phases:
            now_s = phase.curve.finish_s(now_s + phase.wait_s, phase.size_bits)
        return now_s + self.tail_s

    def dead_from_s(self) -> float:
        """The moment from which the way is dead for good; not before the transfer's start."""
        return max(self.start_s, self.phases[0].curve.dead_from_s())


def plan_transfer(
    link: Link,
    way: Way,
    size_bytes: int,
    start_s: float,
    *,
    seed: int,
    flow: tuple[str | int, ...],
) -> Transfer:
    """The transfer of ``size_bytes`` that begins at ``start_s``.

    ``flow`` names the transfer's own random draws (jitter, first loss) under ``seed``.
    """
    direction = link.way(way)
    size_bits = wire_bits(size_bytes, direction, link.tls)
    chance = direction.jitter_ms > 0 or direction.loss_fraction > 0
    rng = rng_for(seed, "link", *flow, way) if chance else None
    jitter_ms = rng.uniform(0, direction.jitter_ms) if rng is not None else 0.0
    tail_s = (direction.delay_ms + jitter_ms) / 1000
    ready_s = handshake_s(link)
    if link.tcp == "none":
        phases: tuple[Phase, ...] = (Phase(ready_s, size_bits, direction.curve),)
    elif link.tcp == "bbr":
        phases = _bbr_phases(link, direction, size_bits, start_s, ready_s)
    else:
        phases = _cubic_phases(link, direction, size_bits, start_s, ready_s, rng)
    return Transfer(start_s, phases, tail_s)


def _bbr_phases(
    link: Link, way: Direction, size_bits: float, start_s: float, ready_s: float
) -> tuple[Phase, ...]:
    """BBR does not answer loss; it pays for lost packets and for its probing."""
    stall_s, doublings = growth_stall_s(
        way.curve, start_s + ready_s, size_bits, link.rtt_s, packet_bits(way)
    )
    if doublings >= BBR_DRAIN_FROM_DOUBLINGS:
        stall_s += BBR_DRAIN_ROUNDS * link.rtt_s
    loss = way.loss_fraction if way.layer == "ip" else 0.0
    share = BBR_SHARE_FRACTION if way.layer == "ip" else 1.0
    return (Phase(ready_s + stall_s, size_bits, _limited(way.curve, share * (1 - loss))),)


def _cubic_phases(
    link: Link,
    way: Direction,
    size_bits: float,
    start_s: float,
    ready_s: float,
    rng: np.random.Generator | None,
) -> tuple[Phase, ...]:
    """CUBIC runs at full rate up to its first loss, then at the rate that the loss allows."""
    clean_bits = size_bits
    if rng is not None and way.loss_fraction > 0 and way.layer == "ip":
        first_loss = rng.geometric(way.loss_fraction / way.loss_burst_packets)
        clean_bits = min(size_bits, float(first_loss) * packet_bits(way))
    stall_s, _ = growth_stall_s(
        way.curve, start_s + ready_s, clean_bits, link.rtt_s, packet_bits(way)
    )
    clean = Phase(ready_s + stall_s, clean_bits, way.curve)
    if clean_bits == size_bits:
        return (clean,)
    lossy = _limited(way.curve, 1 - way.loss_fraction, loss_limited_bps(way, link.rtt_s))
    return clean, Phase(link.rtt_s, size_bits - clean_bits, lossy)


@functools.lru_cache(maxsize=4096)
def _limited(curve: RateCurve, kept_fraction: float, cap_bps: float = math.inf) -> RateCurve:
    """One limited curve per link and not per transfer: its sums are made once."""
    return (
        curve
        if kept_fraction == 1 and cap_bps == math.inf
        else curve.limited(kept_fraction, cap_bps)
    )
