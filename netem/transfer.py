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
from netem.cubic import Flight, Path, cubic_flight
from netem.link import Direction, Link, Way
from netem.loss import loss_runs
from netem.rate import RateCurve
from netem.tcp import (
    BBR_PROBE_S,
    BBR_SHARE_FRACTION,
    PACKET_BYTES,
    bbr_lag_s,
    growth_stall_s,
    handshake_s,
    packet_bits,
    tail_repair_s,
    wire_bits,
)

MAX_ATTEMPTS = 20
"""Connections in a row that outages may break before a transfer is given up."""
_DEAD = RateCurve.constant(0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What one message puts on a link, heads of requests included."""

    size_bytes: int
    """On its own way."""
    back_bytes: int = 0
    """On the other way: what asks for it, or answers it."""
    round_trips: int = 0
    """That go by before its data flows."""


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
    """From the last bit leaving to the last arrival: delay, jitter, what was lost at the end."""
    gives_up_s: float = math.inf
    """When the last of ``MAX_ATTEMPTS`` connections broke."""

    def finish_s(self) -> float:
        """When the last byte arrives if nothing else shares the way; inf if it never does."""
        now_s = self.start_s
        for phase in self.phases:
            now_s = phase.curve.finish_s(now_s + phase.wait_s, phase.size_bits)
        return now_s + self.tail_s

    def dead_from_s(self) -> float:
        """From when on the transfer cannot end any more; not before its start, inf if it can."""
        return max(self.start_s, min(self.phases[0].curve.dead_from_s(), self.gives_up_s))


def plan_transfer(
    link: Link,
    way: Way,
    size_bytes: int,
    start_s: float,
    *,
    seed: int,
    flow: tuple[str | int, ...],
    round_trips: int = 0,
) -> Transfer:
    """The transfer of ``size_bytes`` that begins at ``start_s``, after so many ``round_trips``.

    ``flow`` names the transfer's own random draws (jitter, losses) under ``seed``.
    """
    direction = link.way(way)
    size_bits = wire_bits(size_bytes, direction, link.tls)
    chance = direction.jitter_ms > 0 or direction.loss_fraction > 0
    rng = rng_for(seed, "link", *flow, way) if chance else None
    jitter_ms = rng.uniform(0, direction.jitter_ms) if rng is not None else 0.0
    tail_s = (direction.delay_ms + jitter_ms) / 1000
    asking_s = round_trips * link.mean_rtt_s
    ready_s = asking_s if link.reuse_connection else asking_s + handshake_s(link)
    transfer = _once(link, direction, size_bits, start_s, ready_s, tail_s, rng)
    if link.on_outage == "resume":
        return transfer
    again_s = asking_s + handshake_s(link)
    return _with_restarts(transfer, link, direction, size_bits, tail_s, rng, again_s)


def _once(
    link: Link,
    way: Direction,
    size_bits: float,
    start_s: float,
    ready_s: float,
    tail_s: float,
    rng: np.random.Generator | None,
) -> Transfer:
    """The transfer over one connection, whatever outages it meets."""
    loses = rng is not None and way.loss_fraction > 0 and way.layer == "ip" and size_bits > 0
    losses = rng if loses else None
    phases: tuple[Phase, ...] = (Phase(ready_s, size_bits, way.curve),)
    late_s = 0.0
    if link.tcp == "bbr":
        phases, late_s = _bbr(link, way, size_bits, start_s, ready_s, losses)
    elif link.tcp == "cubic":
        phases, late_s = _cubic(link, way, size_bits, start_s, ready_s, losses)
    return Transfer(start_s, phases, late_s + tail_s)


def _bbr(
    link: Link,
    way: Direction,
    size_bits: float,
    start_s: float,
    ready_s: float,
    losses: np.random.Generator | None,
) -> tuple[tuple[Phase, ...], float]:
    """BBR does not answer loss; it pays for it at the start, by the packet, and at the end.

    From the second 10 s on it keeps ``BBR_SHARE_FRACTION``.
    """
    rtt_s, packet, begin_s = link.mean_rtt_s, packet_bits(way), start_s + ready_s
    runs = loss_runs(losses, way.loss_fraction, way.loss_burst_packets) if losses else None
    stall_s, doublings = growth_stall_s(way.curve, begin_s, size_bits, rtt_s, packet, runs)
    wait_s = ready_s + stall_s + bbr_lag_s(doublings, rtt_s)
    kept = 1 - way.loss_fraction if losses is not None else 1.0
    curve, late_s = _limited(way.curve, kept), 0.0
    first_bits = curve.bits_between(start_s + wait_s, start_s + wait_s + BBR_PROBE_S)
    phases: tuple[Phase, ...] = (Phase(wait_s, size_bits, curve),)
    if size_bits > first_bits and way.layer == "ip":
        probing = _limited(way.curve, kept * BBR_SHARE_FRACTION)
        phases = (
            Phase(wait_s, first_bits, curve),
            Phase(0.0, size_bits - first_bits, probing),
        )
    if losses is not None:
        end_s = start_s
        for phase in phases:
            end_s = phase.curve.finish_s(end_s + phase.wait_s, phase.size_bits)
        if end_s < math.inf:
            packet_s = way.curve.finish_s(end_s, packet) - end_s
            packets = math.ceil(size_bits / packet)
            late_s = tail_repair_s(losses, way, rtt_s, packet_s, packets)
    return phases, late_s


def _cubic(
    link: Link,
    way: Direction,
    size_bits: float,
    start_s: float,
    ready_s: float,
    losses: np.random.Generator | None,
) -> tuple[tuple[Phase, ...], float]:
    """Round by round where packets may be lost; else all rounds in one sum.

    Without loss the path stays full once it is, so only the start has to be counted.
    """
    rtt_s, packet = link.mean_rtt_s, packet_bits(way)
    short_queue = way.queue_bytes is not None and way.layer == "ip"
    if rtt_s > 0 and size_bits > 0 and (losses is not None or short_queue):
        queue = math.inf if way.queue_bytes is None else way.queue_bytes / PACKET_BYTES
        runs = None
        if losses is not None:
            runs = loss_runs(losses, way.loss_fraction, way.loss_burst_packets)
        path = Path(way.curve, packet, rtt_s, queue)
        flight = cubic_flight(path, size_bits / packet, start_s + ready_s, runs)
        if flight.spans[-1].end_s < math.inf:
            return _phases(flight, way, path, ready_s)
    stall_s, _ = growth_stall_s(way.curve, start_s + ready_s, size_bits, rtt_s, packet)
    kept = 1 - way.loss_fraction if losses is not None else 1.0
    return (Phase(ready_s + stall_s, size_bits, _limited(way.curve, kept)),), 0.0


def _phases(
    flight: Flight, way: Direction, path: Path, ready_s: float
) -> tuple[tuple[Phase, ...], float]:
    """The spans of a flight as phases, and what is left to wait after the last.

    After the first loss the window limits the rate. On a constant curve that is a cap, which a
    shared link can tell from a share; elsewhere it is a wait, so that the end stays exact.
    """
    phases: list[Phase] = []
    wait_s = ready_s
    constant_bps = way.curve.constant_bps
    for span in flight.spans:
        size_bits, curve = span.packets * path.packet_bits, way.curve
        taken_s = span.end_s - span.begin_s
        if phases and constant_bps is not None and taken_s > 0:
            curve = curve.limited(1.0, size_bits / taken_s)
        phases.append(Phase(wait_s, size_bits, curve))
        wait_s = max(0.0, span.end_s - curve.finish_s(span.begin_s, size_bits))
    if flight.rest_packets > 0:
        cap_bps = flight.rest_packets_per_s * path.packet_bits
        rest_bits = flight.rest_packets * path.packet_bits / (1 - way.loss_fraction)
        phases.append(Phase(wait_s, rest_bits, way.curve.limited(1.0, cap_bps)))
        wait_s = 0.0
    return tuple(phases), wait_s


def _with_restarts(
    transfer: Transfer,
    link: Link,
    way: Direction,
    size_bits: float,
    tail_s: float,
    rng: np.random.Generator | None,
    ready_s: float,
) -> Transfer:
    """``transfer``, begun anew with a handshake after each outage that breaks its connection.

    Planned for the link alone: where a shared link slows the transfer down, an outage that it
    meets only then is a pause.
    """
    resumed_s = transfer.finish_s()
    attempt, done_s = transfer, resumed_s
    wasted: tuple[Phase, ...] = ()
    through_s = transfer.start_s
    for turn in range(MAX_ATTEMPTS):
        if done_s == math.inf:
            break
        last_bit_s = done_s - attempt.tail_s
        stop = way.curve.next_stop(attempt.start_s, last_bit_s, link.idle_timeout_s)
        if stop is None:
            break
        stop_s, back_s = stop
        parts, idle_s = _until(attempt, stop_s)
        if parts:  # their first one waits from the start of its attempt on
            first = parts[0]
            wait_s = attempt.start_s - through_s + first.wait_s
            wasted = (*wasted, Phase(wait_s, first.size_bits, first.curve), *parts[1:])
            through_s = stop_s - idle_s
        if turn == MAX_ATTEMPTS - 1:
            never = Phase(0.0, size_bits, _DEAD)
            return Transfer(transfer.start_s, (*wasted, never), tail_s, gives_up_s=stop_s)
        attempt = _once(link, way, size_bits, back_s, ready_s, tail_s, rng)
        done_s = attempt.finish_s()
    if attempt is transfer:
        return transfer
    first = attempt.phases[0]
    held = Phase(attempt.start_s - through_s + first.wait_s, first.size_bits, first.curve)
    # Luckier losses at the second attempt must not make it worth breaking the connection.
    late_s = max(0.0, resumed_s - done_s) if done_s < math.inf else 0.0
    return Transfer(transfer.start_s, (*wasted, held, *attempt.phases[1:]), attempt.tail_s + late_s)


def _until(attempt: Transfer, stop_s: float) -> tuple[list[Phase], float]:
    """What ``attempt`` has sent by ``stop_s``, and for how long it has been idle by then."""
    parts: list[Phase] = []
    now_s = attempt.start_s
    for phase in attempt.phases:
        begin_s = now_s + phase.wait_s
        if begin_s >= stop_s:
            break
        end_s = phase.curve.finish_s(begin_s, phase.size_bits)
        if end_s > stop_s:
            bits = min(phase.size_bits, phase.curve.bits_between(begin_s, stop_s))
            return [*parts, Phase(phase.wait_s, bits, phase.curve)], 0.0
        parts.append(phase)
        now_s = end_s
    return parts, stop_s - now_s


@functools.lru_cache(maxsize=4096)
def _limited(curve: RateCurve, kept_fraction: float) -> RateCurve:
    """One limited curve per link and not per transfer: its sums are made once."""
    return curve if kept_fraction == 1 else curve.limited(kept_fraction)
