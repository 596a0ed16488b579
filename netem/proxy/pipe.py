"""One direction of one connection: from the sender's socket through the link to the receiver's.

Reads no more than its window, so that the sender's own TCP feels the link.
"""

import array
import asyncio
import contextlib
import fcntl
import socket
import termios
from collections.abc import Callable
from typing import Protocol

from netem.proxy.counters import Passed
from netem.proxy.way import Way

READ_BYTES = 1 << 18
MIN_KERNEL_BYTES = 1 << 16
MAX_KERNEL_BYTES = 1 << 20
"""For what the proxy has not read. With more, a sender believes itself done early; with less, the
link runs dry while sender or proxy wait for a core."""


class Owner(Protocol):
    """The connection that a pipe is one half of."""

    def ended(self) -> None:
        """The receiver has been told that no more comes."""
        ...

    def reset(self) -> None:
        """Break the connection."""
        ...


class Pipe:
    """Bytes from ``source`` to ``sink``, both None until both sides are connected."""

    def __init__(self, way: Way, passed: Passed, owner: Owner) -> None:
        self.way = way
        self.source: asyncio.Transport | None = None
        self.sink: asyncio.Transport | None = None
        self.dead = False
        self.waiting_bytes = 0
        self.ended = False
        """The receiver has been told that no more comes."""
        self.reset_after_bytes: int | None = None
        """Deliver so many more bytes, then reset the connection; None does not."""
        self._passed = passed
        self._owner = owner
        self._reading = False
        self._sink_full = False
        self._kernel_bytes = 0
        self._paused_s = 0.0
        self._ready_bytes = 0
        """Bytes that the sender had already sent when reading was paused."""

    @property
    def struck(self) -> bool:
        """Whether the byte has passed at which the connection was to be reset."""
        return self.reset_after_bytes is not None and self.reset_after_bytes <= 0

    def start(self, source: asyncio.Transport, sink: asyncio.Transport) -> None:
        """Both sides are connected: begin to read."""
        self.source, self.sink = source, sink
        self._fit_kernel(source)
        self._reading = True
        source.resume_reading()

    def room_bytes(self) -> int:
        """How much to read at once."""
        return max(1, min(self.way.window_bytes() - self.waiting_bytes, READ_BYTES))

    def received(self, data: bytes) -> None:
        """Bytes came from the sender."""
        self._passed.in_bytes += len(data)
        if self.dead:
            self.drop(len(data))
            return
        arrival_s = self._paused_s if self._ready_bytes > 0 else self.way.timing.now_s()
        self._ready_bytes = max(0, self._ready_bytes - len(data))
        self.left(-len(data))
        self.way.send(self, data, arrival_s)
        if self._reading and self.waiting_bytes >= self.way.window_bytes():
            self._pause()

    def end(self) -> None:
        """The sender will send no more; tell the receiver in its turn."""
        self.signal(self._end_arrived)

    def signal(self, event: Callable[[], None]) -> None:
        """Call ``event`` after everything that was received has been delivered."""
        self.way.signal(self, event)

    def kill(self) -> None:
        """Deliver nothing more."""
        self.dead = True

    def fill(self, full: bool) -> None:
        """The receiver's socket takes no more, or does again."""
        self._sink_full = full
        if full and self._reading:
            self._pause()
        elif not full:
            self._resume()

    def left(self, size_bytes: int) -> None:
        """So many bytes no longer wait for the link; negative where they wait (again)."""
        before = self.waiting_bytes
        self.waiting_bytes = before - size_bytes
        if before == 0 and self.waiting_bytes > 0:
            self.way.busy_streams += 1
        elif before > 0 and self.waiting_bytes == 0:
            self.way.busy_streams -= 1
        if not self._reading and size_bytes > 0:
            self._resume()

    def drop(self, size_bytes: int) -> None:
        """So many bytes were given up on their way."""
        self._passed.dropped_bytes += size_bytes

    def deliver(self, data: bytes | memoryview) -> None:
        """Write what has come through the link."""
        sink, limit_bytes = self.sink, self.reset_after_bytes
        if self.dead or sink is None or sink.is_closing():
            self.drop(len(data))
            return
        if limit_bytes is not None:
            self.reset_after_bytes = limit_bytes - len(data)
            if len(data) >= limit_bytes:
                self.drop(len(data) - limit_bytes)
                data = data[:limit_bytes]
        self._passed.out_bytes += len(data)
        sink.write(data)
        if self.struck:
            self._owner.reset()

    def freeze(self) -> None:
        """Read and write no more, and do not tell anyone."""
        self.dead = True
        if self._reading and self.source is not None:
            self._reading = False
            self.source.pause_reading()

    def _end_arrived(self) -> None:
        if self.dead or self.sink is None or self.sink.is_closing():
            return
        self.ended = True
        # Whoever was to read it may have broken the connection meanwhile.
        with contextlib.suppress(OSError):
            self.sink.write_eof()
        self._owner.ended()

    def _pause(self) -> None:
        if self.source is None or self.source.is_closing():
            return
        self._reading = False
        self._paused_s = self.way.timing.now_s()
        self.source.pause_reading()

    def _resume(self) -> None:
        """Read on once half of the window is free.

        What the sender had sent by then would have gone on without a gap over a real link, so it
        counts as received when reading was paused. Not so if it was the receiver that paused.
        """
        source = self.source
        if self._reading or self.dead or self._sink_full or source is None or source.is_closing():
            return
        if self.waiting_bytes > self.way.window_bytes() // 2:
            return
        self._reading = True
        self._fit_kernel(source)
        self._ready_bytes = _readable_bytes(source) if self.waiting_bytes > 0 else 0
        source.resume_reading()

    def _fit_kernel(self, source: asyncio.Transport) -> None:
        """Let the kernel hold half a window; more of it once the link has become faster.

        Only after connecting: a size set before would bound the TCP window for good.
        """
        window_bytes = self.way.window_bytes()
        wanted_bytes = min(max(MIN_KERNEL_BYTES, window_bytes // 2), MAX_KERNEL_BYTES)
        if self._kernel_bytes == 0 or wanted_bytes > 2 * self._kernel_bytes:
            sock = source.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, wanted_bytes)
            self._kernel_bytes = wanted_bytes


def _readable_bytes(transport: asyncio.Transport) -> int:
    """Bytes that wait in the kernel."""
    found = array.array("i", [0])
    fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.FIONREAD, found)
    return found[0]
