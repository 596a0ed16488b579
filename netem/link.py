"""What a link is: two directions with rate, delay, jitter and loss, and the TCP that runs on it.

One description for every way of enforcing it. Uplink is client to server, always.
"""

from dataclasses import dataclass
from typing import Literal

from fedsys.errors import LinkError
from netem.rate import RateCurve

Tcp = Literal["cubic", "bbr", "none"]
Layer = Literal["ip", "goodput"]
Way = Literal["up", "down"]


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
    """Extra delay of a transfer's last byte, uniform from 0 to this."""
    loss_fraction: float = 0.0
    """Packets that the link loses."""
    loss_burst_packets: float = 1.0
    """Mean number of packets lost in a row; TCP answers a burst once."""
    layer: Layer = "ip"

    def __post_init__(self) -> None:
        for name in ("delay_ms", "jitter_ms"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise LinkError(f"{name} must be 0 or more, got {getattr(self, name)}")
        if not 0 <= self.loss_fraction < 1:
            raise LinkError(f"loss_fraction must be in [0, 1), got {self.loss_fraction}")
        if not self.loss_burst_packets >= 1:
            raise LinkError(f"loss_burst_packets must be >= 1, got {self.loss_burst_packets}")
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

    def __post_init__(self) -> None:
        if self.tcp not in ("cubic", "bbr", "none"):
            raise LinkError(f"tcp must be cubic, bbr or none, got {self.tcp!r}")

    @property
    def rtt_s(self) -> float:
        """Round-trip time of an empty packet, in seconds."""
        return (self.up.delay_ms + self.down.delay_ms) / 1000

    def way(self, way: Way) -> Direction:
        """The direction that a transfer takes."""
        return self.up if way == "up" else self.down
