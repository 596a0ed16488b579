"""How flows share one direction of the server's link: max-min fair, exact between events.

Every flow gets its own access rate or the water level, whichever is lower, and the levels add up
to the capacity (Bertsekas and Gallager, "Data Networks", 6.5.2). Rates change only at events: a
flow begins, a flow ends, an access rate changes.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from netem.rate import RateCurve


def fair_rates(access_bps: Sequence[float], capacity_bps: float) -> list[float]:
    """Max-min fair rates, in the order given, of flows that are limited to ``access_bps`` each."""
    rates = list(access_bps)
    left_bps = capacity_bps
    by_rate = sorted(range(len(rates)), key=rates.__getitem__)
    for done, index in enumerate(by_rate):
        level_bps = left_bps / (len(rates) - done)
        if rates[index] > level_bps:
            for above in by_rate[done:]:
                rates[above] = level_bps
            break
        left_bps = max(0.0, left_bps - rates[index])
    return rates


ROUNDING_FRACTION = 1e-10
"""Share of a flow that rounding may leave over; it must not have to wait out an outage."""


@dataclass(slots=True)
class _Flow:
    curve: RateCurve
    size_bits: float
    left_bits: float
    """At the time of the last event."""
    access_bps: float = 0.0
    change_s: float = -math.inf
    """When ``access_bps`` has to be looked up again."""
    rate_bps: float = 0.0
    finish_s: float = math.inf
    """If nothing happens before."""


class SharedLink:
    """The server's link in one direction, and the flows on it.

    The owner moves it from event to event: ``next_event_s`` says when the next one is due, and
    ``advance_to`` goes there and names the flows that ended. Nothing is stored between events
    that depends on when the owner looked, so a restored link continues to the same last bit.
    """

    def __init__(self, capacity_bps: float, now_s: float = 0.0) -> None:
        self.capacity_bps = capacity_bps
        self._now_s = now_s
        self._flows: dict[int, _Flow] = {}

    def add(self, key: int, size_bits: float, curve: RateCurve, now_s: float) -> None:
        """Begin a flow at ``now_s``, which may not lie after the next event."""
        self._deliver(now_s)
        self._flows[key] = _Flow(curve, size_bits, size_bits)
        self._share()

    def discard(self, key: int, now_s: float) -> None:
        """End a flow at ``now_s`` without its bits; nothing happens if there is none."""
        if key in self._flows:
            self._deliver(now_s)
            del self._flows[key]
            self._share()

    def next_event_s(self) -> float:
        """When the next flow ends or the next access rate changes; inf when nothing will."""
        return min(
            (min(flow.finish_s, flow.change_s) for flow in self._flows.values()), default=math.inf
        )

    def advance_to(self, now_s: float) -> list[int]:
        """Go to ``now_s``, at most ``next_event_s()``; the keys of the flows that ended there."""
        if now_s < self.next_event_s():
            return []
        self._deliver(now_s)
        ended = sorted(key for key, flow in self._flows.items() if flow.finish_s <= now_s)
        for key in ended:
            del self._flows[key]
        self._share()
        return ended

    def copy(self) -> "SharedLink":
        """A link that goes its own way from here."""
        twin = SharedLink(self.capacity_bps, self._now_s)
        twin._flows = {key: replace(flow) for key, flow in self._flows.items()}
        return twin

    def state(self) -> dict[str, Any]:
        """JSON-able; the curves are the owner's to give back."""
        flows = [[key, flow.size_bits, flow.left_bits] for key, flow in self._flows.items()]
        return {"now_s": self._now_s, "flows": flows}

    def restore(self, state: dict[str, Any], curves: dict[int, RateCurve]) -> None:
        """Continue from ``state``; ``curves`` holds the access curve of each flow in it."""
        self._now_s = state["now_s"]
        self._flows = {key: _Flow(curves[key], size, left) for key, size, left in state["flows"]}
        self._share()

    def _deliver(self, now_s: float) -> None:
        for flow in self._flows.values():
            flow.left_bits = max(0.0, flow.left_bits - flow.rate_bps * (now_s - self._now_s))
        self._now_s = now_s

    def _share(self) -> None:
        flows: Iterable[_Flow] = self._flows.values()
        for flow in flows:
            if flow.change_s <= self._now_s:
                flow.access_bps = flow.curve.rate_at(self._now_s)
                flow.change_s = flow.curve.next_change_s(self._now_s)
        rates = fair_rates([flow.access_bps for flow in flows], self.capacity_bps)
        for flow, rate_bps in zip(flows, rates, strict=True):
            flow.rate_bps = rate_bps
            if flow.left_bits <= ROUNDING_FRACTION * flow.size_bits:
                flow.finish_s = self._now_s
            else:
                flow.finish_s = self._now_s + flow.left_bits / rate_bps if rate_bps else math.inf
