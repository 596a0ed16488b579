"""What a link is: two directions with rate, delay, jitter, loss and queue, and the TCP on it.

One description for every way of enforcing it. Uplink is client to server, always.
"""

from dataclasses import dataclass
from typing import Literal

from fedsys.errors import LinkError
from netem.gaps import Availability
from netem.rate import RateCurve

Tcp = Literal["cubic", "bbr", "none"]
Layer = Literal["ip", "goodput"]
Way = Literal["up", "down"]
OnOutage = Literal["resume", "restart"]

MIN_QUEUE_BYTES = 3000


@dataclass(frozen=True, slots=True, kw_only=True)
class Direction:
    """One direction of a link.

    ``layer`` says what the curve counts: ``ip`` is packets on the link, so headers and loss come
    on top of the payload; ``goodput`` is what an application measured, with both already paid.
    """

    curve: RateCurve
    delay_ms: float = 0.0
    """One way, without the time that the bits themselves take."""
    jitter_ms: float = 0.0
    """Extra delay of a packet, uniform from 0 to this; packets keep their order."""
    loss_fraction: float = 0.0
    """Packets that the link loses."""
    loss_burst_packets: float = 1.0
    """Mean number of packets lost in a row; TCP answers a burst once. See ``netem.loss``."""
    queue_bytes: int | None = None
    """What may wait at the bottleneck, the packet under way included; more is dropped.

    None is a queue that TCP never fills.
    """
    layer: Layer = "ip"

    def __post_init__(self) -> None:
        for name in ("delay_ms", "jitter_ms"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise LinkError(f"{name} must be 0 or more, got {getattr(self, name)}")
        if not 0 <= self.loss_fraction < 1:
            raise LinkError(f"loss_fraction must be in [0, 1), got {self.loss_fraction}")
        if not 1 <= self.loss_burst_packets < float("inf"):
            raise LinkError(f"loss_burst_packets must be >= 1, got {self.loss_burst_packets}")
        if self.queue_bytes is not None and self.queue_bytes < MIN_QUEUE_BYTES:
            raise LinkError(
                f"queue_bytes must be {MIN_QUEUE_BYTES} (two packets) or more, or None for a "
                f"queue without a limit; got {self.queue_bytes}"
            )
        if self.layer not in ("ip", "goodput"):
            raise LinkError(f"layer must be ip or goodput, got {self.layer!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Both directions between one client and the server.

    ``tcp = "none"`` leaves out window growth and the answer to loss: rate, delay and jitter only.
    """

    up: Direction
    down: Direction
    tcp: Tcp = "cubic"
    reuse_connection: bool = True
    """False pays the round trips of a TCP (and TLS) handshake before every transfer."""
    tls: bool = True
    on_outage: OnOutage = "resume"
    """After an outage of more than ``idle_timeout_s`` a transfer goes on, or begins anew."""
    idle_timeout_s: float = 60.0
    poll_s: float = 0.0
    """How often an idle device asks for messages; 0 tells it at once."""
    availability: Availability | None = None
    """When the device takes part at all; None is always."""

    def __post_init__(self) -> None:
        if self.tcp not in ("cubic", "bbr", "none"):
            raise LinkError(f"tcp must be cubic, bbr or none, got {self.tcp!r}")
        if self.on_outage not in ("resume", "restart"):
            raise LinkError(f"on_outage must be resume or restart, got {self.on_outage!r}")
        if not 0 < self.idle_timeout_s < float("inf"):
            raise LinkError(f"idle_timeout_s must be above 0, got {self.idle_timeout_s}")
        if not 0 <= self.poll_s < float("inf"):
            raise LinkError(f"poll_s must be 0 or more, got {self.poll_s}")

    @property
    def rtt_s(self) -> float:
        """Round-trip time of an empty packet, in seconds, without jitter."""
        return (self.up.delay_ms + self.down.delay_ms) / 1000

    @property
    def mean_rtt_s(self) -> float:
        """Round-trip time of an empty packet, in seconds, with the mean of the jitter."""
        return self.rtt_s + (self.up.jitter_ms + self.down.jitter_ms) / 2000

    def way(self, way: Way) -> Direction:
        """The direction that a transfer takes."""
        return self.up if way == "up" else self.down
