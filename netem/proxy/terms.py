"""What one direction of a link asks of real traffic: a rate, and what TCP would make of its loss.

A proxy sees no packets. Headers are charged by the byte, and a lost packet is what the receiver
would see of it: everything behind it arrives late, a round trip or a retransmission time-out.
"""

import math
from dataclasses import dataclass, replace

from netem.cubic import TIMER_S
from netem.link import Link, Way
from netem.rate import RateCurve
from netem.tcp import PACKET_BYTES, SEGMENT_BYTES, loss_limited_bps

HEADER_BYTES = PACKET_BYTES - SEGMENT_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """One direction of a link, as the proxy enforces it."""

    curve: RateCurve
    """What TCP gets of the link: loss is taken off."""
    delay_s: float = 0.0
    jitter_s: float = 0.0
    header_bytes: int = HEADER_BYTES
    """Charged for each full packet; 0 where the curve counts payload."""
    queue_bytes: int | None = None
    """What may wait for the link; None leaves it to the proxy."""
    loss_fraction: float = 0.0
    """Packets, or bursts of them, that TCP has to send again."""
    recovery_s: float = 0.0
    """How late a packet is that TCP sends again at once."""
    timeout_s: float = 0.0
    """How late it is when TCP has to wait for its timer."""
    timeout_fraction: float = 0.0
    """Losses that end in a time-out."""

    def bits(self, size_bytes: int) -> float:
        """What the curve is charged for ``size_bytes`` of a stream; as ``netem.tcp.wire_bits``."""
        return 8 * (size_bytes + self.header_bytes * max(1.0, size_bytes / SEGMENT_BYTES))

    def loss_in(self, size_bytes: int) -> float:
        """The probability that a piece of ``size_bytes`` holds a packet that is lost."""
        return float(1 - (1 - self.loss_fraction) ** max(1.0, size_bytes / SEGMENT_BYTES))


def terms_of(link: Link, way: Way) -> Terms:
    """How the proxy enforces one direction of ``link``.

    Loss lowers the rate: to what is not lost under BBR, which does not answer it, and under CUBIC
    to what a long transfer keeps up. With ``tcp = "none"`` and on curves of goodput it does
    nothing, as in ``netem.transfer``.
    """
    direction = link.way(way)
    plain = Terms(
        curve=direction.curve,
        delay_s=direction.delay_ms / 1000,
        jitter_s=direction.jitter_ms / 1000,
        header_bytes=HEADER_BYTES if direction.layer == "ip" else 0,
        queue_bytes=direction.queue_bytes,
    )
    if link.tcp == "none" or direction.layer == "goodput" or direction.loss_fraction == 0:
        return plain
    rtt_s = link.mean_rtt_s
    event_fraction = direction.loss_fraction / direction.loss_burst_packets
    cap_bps = loss_limited_bps(direction, rtt_s) if link.tcp == "cubic" else math.inf
    # Padhye et al. (1998), eq. 24; BBR keeps its window open, so its timer seldom runs out.
    timeout_fraction = min(1.0, 3 * math.sqrt(3 * event_fraction / 8))
    return replace(
        plain,
        curve=direction.curve.limited(1 - direction.loss_fraction, cap_bps),
        loss_fraction=event_fraction,
        recovery_s=rtt_s,
        timeout_s=max(TIMER_S + rtt_s, 2 * rtt_s),
        timeout_fraction=timeout_fraction if link.tcp == "cubic" else 0.0,
    )
