"""Time as an object: the only place that asks the machine what time it is."""

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds since some fixed moment; virtual or real."""

    def now_s(self) -> float:
        """The current time in seconds; never decreases."""
        ...


class WallClock:
    """The machine's monotonic clock."""

    def now_s(self) -> float:
        """Seconds since an arbitrary moment of this process."""
        return time.perf_counter()

    def sleep_s(self, seconds: float) -> None:
        """Let ``seconds`` of real time pass."""
        time.sleep(seconds)
