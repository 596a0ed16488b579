"""Time for the proxy: seconds since it started, and calls at a moment; virtual time in tests."""

import asyncio
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A call that is still to come."""

    def cancel(self) -> None:
        """Do not call."""
        ...


class Timing(Protocol):
    """A clock that can also wake its user."""

    def now_s(self) -> float:
        """Seconds since the proxy started."""
        ...

    def call_at(self, when_s: float, call: Callable[[], None]) -> Timer:
        """Call once at ``when_s`` or shortly after it."""
        ...


class LoopTiming:
    """The clock of the running event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._start_s = self._loop.time()

    def now_s(self) -> float:
        """Seconds since this object was made."""
        return self._loop.time() - self._start_s

    def call_at(self, when_s: float, call: Callable[[], None]) -> Timer:
        """Call once at ``when_s``, up to about a millisecond late."""
        return self._loop.call_at(self._start_s + when_s, call)
