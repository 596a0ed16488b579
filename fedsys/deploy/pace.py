"""How a device talks to the server so that every piece gets through its link in time.

Flower sends an array in chunks, each in a request that is repeated from its beginning when it has
not been answered in 30 s. A chunk that needs longer is sent again for ever; so chunks are so small
that those under way at once pass the link's slow direction in ``CHUNK_S``.
"""

from dataclasses import dataclass

CHUNK_S = 10.0
CONNECTIONS = 2
SLOW_BPS = 64e3
"""Below this, two connections only keep each other waiting."""
MIN_CHUNK_BYTES = 2048
MAX_CHUNK_BYTES = 1 << 19
"""Costs 0.3 % in heads of requests. Flower's 5 MB would be in the server's memory several times
over for each device that sends at the moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Sizes for one link."""

    chunk_bytes: int = MAX_CHUNK_BYTES
    connections: int = CONNECTIONS
    """Chunks under way at once."""
    up_bps: float = 1e9
    down_bps: float = 1e9
    """What the link is expected to do."""

    def exchange_s(self, model_bytes: int) -> float:
        """Seconds to bring a model of that size to the device and back."""
        return 8 * model_bytes * (1 / self.up_bps + 1 / self.down_bps)


def pace_for(up_bps: float, down_bps: float) -> Pace:
    """The sizes for a link of these mean rates in bit/s, as payload is counted."""
    slow_bps = min(up_bps, down_bps)
    connections = 1 if slow_bps < SLOW_BPS else CONNECTIONS
    chunk_bytes = int(CHUNK_S * slow_bps / 8 / connections)
    return Pace(
        chunk_bytes=min(max(chunk_bytes, MIN_CHUNK_BYTES), MAX_CHUNK_BYTES),
        connections=connections,
        up_bps=up_bps,
        down_bps=down_bps,
    )
