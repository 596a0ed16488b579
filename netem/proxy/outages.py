"""When an outage has lasted so long that connections do not survive it."""

import math
from collections.abc import Callable

from netem.link import Link, Way
from netem.proxy.timing import Timer, Timing


class OutageWatch:
    """Calls ``on_break`` once in every outage that outlasts the link's ``idle_timeout_s``.

    A link whose ``on_outage`` is ``resume`` has none such. An outage is a rate of 0, whether from
    the link's outages or from a recording; one direction is enough.
    """

    def __init__(self, timing: Timing, on_break: Callable[[], None]) -> None:
        self._timing = timing
        self._on_break = on_break
        self._timers: dict[Way, Timer] = {}

    def watch(self, link: Link) -> None:
        """Watch ``link`` from now on, and no other."""
        self.close()
        if link.on_outage == "restart":
            self._look(link, "up", None)
            self._look(link, "down", None)

    def close(self) -> None:
        """Watch no more."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _look(self, link: Link, way: Way, dead_s: float | None) -> None:
        """Look at the rate of one direction now, and again when it may differ.

        ``dead_s`` is when the outage began that goes on, inf once it has broken connections.
        """
        curve, now_s = link.way(way).curve, self._timing.now_s()
        if curve.rate_at(now_s) > 0:
            dead_s = None
        elif dead_s is None:
            dead_s = now_s
        if dead_s is not None and dead_s + link.idle_timeout_s <= now_s:
            dead_s = math.inf
            self._on_break()
        next_s = curve.next_change_s(now_s)
        if dead_s is not None:
            next_s = min(next_s, dead_s + link.idle_timeout_s)
        if next_s < math.inf:
            self._timers[way] = self._timing.call_at(next_s, lambda: self._look(link, way, dead_s))
