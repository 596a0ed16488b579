"""What TCP makes of a link: packet overhead, round trips before full speed, rate under loss.

For CUBIC with loss, round by round, see ``netem.cubic``. Formulas: Padhye et al., "Modeling TCP
Reno Performance" (SIGCOMM 1998) for the floor under loss; Ha, Rhee, Xu, "CUBIC" (2008), RFC 9438
for the window of CUBIC; RFC 6928 for the first window.
"""

import math
from collections.abc import Iterator

import numpy as np

from netem.cubic import FIRST_WINDOW_PACKETS, TIMER_S
from netem.link import Direction, Link
from netem.loss import loss_chain
from netem.rate import RateCurve

SEGMENT_BYTES = 1448
"""Payload of a full packet: 1500 less IPv4 and TCP headers with timestamps."""
PACKET_BYTES = 1500
TLS_RECORD_BYTES = 16384
TLS_RECORD_OVERHEAD_BYTES = 22
BBR_SHARE_FRACTION = 0.98
"""Share of the bottleneck that BBR keeps once it probes for the round trip, every 10 s."""
BBR_PROBE_S = 10.0
BBR_LAG_ROUNDS = 0.1
"""Round trips by which BBR's pacing lags behind bursts, for each doubling after the second."""
BBR_MOST_LAG_ROUNDS = 0.25
BBR_HELD_ROUNDS = 2
"""Rounds in a row for which losses keep BBR's window from growing."""


def wire_bits(size_bytes: int, way: Direction, tls: bool) -> float:
    """Bits that the curve of ``way`` is charged for ``size_bytes`` of message."""
    if way.layer == "goodput" or size_bytes == 0:
        return 8.0 * size_bytes
    records = -(-size_bytes // TLS_RECORD_BYTES) if tls else 0
    payload_bytes = size_bytes + TLS_RECORD_OVERHEAD_BYTES * records
    packets = -(-payload_bytes // SEGMENT_BYTES)
    return 8.0 * (payload_bytes + (PACKET_BYTES - SEGMENT_BYTES) * packets)


def packet_bits(way: Direction) -> float:
    """What one full packet costs on the curve of ``way``."""
    return 8.0 * (PACKET_BYTES if way.layer == "ip" else SEGMENT_BYTES)


def handshake_s(link: Link) -> float:
    """Round trips before the first byte of a new connection: TCP one, TLS 1.3 one more."""
    return link.mean_rtt_s * (2 if link.tls else 1)


def growth_stall_s(
    curve: RateCurve,
    start_s: float,
    size_bits: float,
    rtt_s: float,
    packet: float,
    runs: Iterator[tuple[int, int]] | None = None,
) -> tuple[float, int]:
    """Seconds the sender idles for acknowledgements, and how often its window doubled meanwhile.

    Each round sends one window and waits out the round trip, until a window takes longer to send
    than the round trip takes, or the message ends. The first window holds one packet less: the
    head of an HTTP message leaves in a packet of its own. With ``runs`` of losses the window holds
    still after a round with one, as BBR's does, but for no more than ``BBR_HELD_ROUNDS`` in a row.
    """
    stall_s, doublings, now_s = 0.0, 0, start_s
    window = FIRST_WINDOW_PACKETS
    left_bits = size_bits + packet
    lost = next(runs)[0] if runs is not None else math.inf
    sent, held_rounds = 0, 0
    while left_bits > window * packet:
        sending_s = curve.finish_s(now_s, window * packet) - now_s
        if sending_s >= rtt_s:
            return stall_s, doublings
        stall_s += rtt_s - sending_s
        now_s += rtt_s
        left_bits -= window * packet
        sent += window
        held_rounds = held_rounds + 1 if lost < sent and held_rounds < BBR_HELD_ROUNDS else 0
        while lost < sent and runs is not None:
            lost = next(runs)[0]
        if not held_rounds:
            window *= 2
            doublings += 1
    return stall_s, doublings


def bbr_lag_s(doublings: int, rtt_s: float) -> float:
    """What BBR's start takes longer than bursts of doubling windows."""
    rounds = BBR_LAG_ROUNDS * max(0, doublings - 2)
    return min(rounds, BBR_MOST_LAG_ROUNDS) * rtt_s


def tail_repair_s(
    rng: np.random.Generator, way: Direction, rtt_s: float, packet_s: float, packets: int
) -> float:
    """How much later than the last packet the last lost one arrives, for a sender that rushes on.

    A loss is known a round trip after it, or later where fewer than three packets follow it, and
    is sent again at once; what is lost again waits for the timer (RACK-TLP, RFC 8985).
    """
    begins, _ = loss_chain(way.loss_fraction, way.loss_burst_packets)
    followers = int(rng.geometric(begins)) - 1
    if followers >= packets:
        return 0.0
    waits_s = (min(2 * rtt_s, TIMER_S), rtt_s / 4, rtt_s / 4)
    late_s = rtt_s + (waits_s[followers] if followers < 3 else 0.0) - followers * packet_s
    while rng.random() < way.loss_fraction:
        late_s += rtt_s + TIMER_S
    return max(0.0, late_s + packet_s)


def loss_limited_bps(way: Direction, rtt_s: float) -> float:
    """What CUBIC can keep up at this loss, whatever the rate of the link; inf without loss."""
    event_fraction = way.loss_fraction / way.loss_burst_packets
    if event_fraction == 0 or rtt_s == 0:
        return math.inf
    timeout_s = max(0.2 + rtt_s, 2 * rtt_s)
    reno_s = rtt_s * math.sqrt(2 * event_fraction / 3) + timeout_s * min(
        1.0, 3 * math.sqrt(3 * event_fraction / 8)
    ) * event_fraction * (1 + 32 * event_fraction**2)
    cubic_packets = 1.054 * (rtt_s / event_fraction) ** 0.75
    return float(packet_bits(way) * max(1 / reno_s, cubic_packets / rtt_s))
