"""What passed a node's port: counted while it runs, and as values that can be kept."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(slots=True)
class Passed:
    """Running totals of one direction; payload bytes, as the sockets carried them."""

    in_bytes: int = 0
    out_bytes: int = 0
    dropped_bytes: int = 0


@dataclass(frozen=True, slots=True)
class WayCount:
    """One direction of a node: ``in = out + queued + dropped``, to the byte."""

    in_bytes: int
    """Read from the sender."""
    out_bytes: int
    """Written to the receiver."""
    queued_bytes: int
    """Waiting for the link, or on it."""
    dropped_bytes: int
    """Lost with a connection that was reset or went half-open."""
    rate_bps: float
    """What the link allows at this moment, inf where it has no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCount:
    """One node's port."""

    up: WayCount
    down: WayCount
    open: int
    """Connections from clients, half-open ones included."""
    total: int
    """Connections ever accepted."""
    refused: int
    """Connections reset because the server could not be reached."""
    reset: int
    """Connections reset on purpose."""
    half_open: int
    listening: bool
    cut: bool

    def as_json(self) -> dict[str, Any]:
        """For JSON, which knows no infinite rate: None there."""
        found = asdict(self)
        for way in ("up", "down"):
            if found[way]["rate_bps"] == float("inf"):
                found[way]["rate_bps"] = None
        return found
