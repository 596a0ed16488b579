"""What one direction of a link asks of real traffic: a rate, and what TCP would make of its loss.

A proxy sees no packets. Headers are charged by the byte, and a lost packet is what the receiver
would see of it: everything behind it arrives late, a round trip or a retransmission time-out.
"""

import math
from dataclasses import dataclass

from netem.link import Link, Way
from netem.rate import RateCurve
from netem.tcp import BBR_SHARE_FRACTION, PACKET_BYTES, SEGMENT_BYTES, loss_limited_bps

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

    Loss lowers the rate to what ``netem.transfer`` allows a long transfer, so that both levels
    agree; with ``tcp = "none"`` and on curves of goodput it does nothing, as there.
    """
    direction = link.way(way)
    plain = Terms(
        curve=direction.curve,
        delay_s=direction.delay_ms / 1000,
        jitter_s=direction.jitter_ms / 1000,
        header_bytes=HEADER_BYTES if direction.layer == "ip" else 0,
        queue_bytes=direction.queue_bytes,
    )
    if link.tcp == "none" or direction.layer == "goodput":
        return plain
    kept_fraction = 1 - direction.loss_fraction
    if link.tcp == "bbr":
        curve = direction.curve.limited(BBR_SHARE_FRACTION * kept_fraction)
    elif direction.loss_fraction > 0:
        curve = direction.curve.limited(kept_fraction, loss_limited_bps(direction, link.rtt_s))
    else:
        return plain
    event_fraction = direction.loss_fraction / direction.loss_burst_packets
    return Terms(
        curve=curve,
        delay_s=plain.delay_s,
        jitter_s=plain.jitter_s,
        header_bytes=plain.header_bytes,
        queue_bytes=plain.queue_bytes,
        loss_fraction=event_fraction,
        recovery_s=link.rtt_s,
        timeout_s=max(0.2 + link.rtt_s, 2 * link.rtt_s),
        # Padhye et al. (1998), eq. 24; BBR keeps its window open, so its timer seldom runs out.
        timeout_fraction=min(1.0, 3 * math.sqrt(3 * event_fraction / 8))
        if link.tcp == "cubic"
        else 0.0,
    )
