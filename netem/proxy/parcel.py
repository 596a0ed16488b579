"""What travels through a link: a piece of one stream, or an event in its order, such as its end."""

from collections.abc import Callable
from typing import Protocol


class Stream(Protocol):
    """Where parcels come from and go to: one direction of one connection."""

    dead: bool
    """Nothing of it is delivered any more."""

    def left(self, size_bytes: int) -> None:
        """So many bytes no longer wait for the link; negative where they wait again."""
        ...

    def drop(self, size_bytes: int) -> None:
        """So many bytes were given up on their way."""
        ...

    def deliver(self, data: bytes | memoryview) -> None:
        """Bytes that have arrived at the other end of the link."""
        ...


class Parcel:
    """A piece of a stream with what the link has decided about it."""

    __slots__ = ("arrival_s", "begin_s", "bits", "data", "due_s", "event", "left_s", "stream")

    def __init__(
        self,
        stream: Stream,
        data: memoryview | bytes,
        bits: float,
        arrival_s: float,
        event: Callable[[], None] | None = None,
    ) -> None:
        self.stream = stream
        self.data = data
        self.bits = bits
        self.arrival_s = arrival_s
        """When it may begin to use the link."""
        self.event = event
        """Called in place of a delivery."""
        self.begin_s = 0.0
        self.left_s = 0.0
        """When its last bit is on the link."""
        self.due_s = 0.0
        """When its last bit is at the other end."""
