"""How flows share one direction of the server's link: max-min fair, exact between events.

Every flow gets its own access rate or the water level, whichever is lower, and the levels add up
to the capacity (Bertsekas and Gallager, "Data Networks", 6.5.2). Rates change only at events: a
flow begins, a flow ends, an access rate or the capacity changes.

An event costs O(log n), not a look at all n flows. *Capped* flows run at their access rate, so
their ends are known. *Level* flows all run at the water level, so one clock of work serves them:
it counts the bits that each of them has had, and a flow ends when the clock reaches a fixed value.
The clock of work is the virtual time of fair queueing (Demers, Keshav, Shenker, SIGCOMM 1989).
"""

import math
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any

from netem.rate import RateCurve

UNITS = 2.0**60
"""Bits and rates are whole numbers of this many units a bit.

Their sums are exact, so the order of simultaneous events leaves no trace, and a clock of work
that has run for years still resolves a flow of one bit.
"""

WIDEST_BPS = 2.0**100
"""What an infinite rate counts as."""

ROUNDING_FRACTION = 1e-10
"""Share of a flow that rounding may leave over; it must not have to wait out an outage."""

_Queue = list[tuple[int, int]]
"""Heap of (value, key of a flow). An entry that no longer holds is passed over at the top."""


class SharedLink:
    """The server's link in one direction, and the flows on it.

    ``capacity`` is a rate or a curve. The owner moves the link from event to event:
    ``next_event_s`` says when the next one is due, and ``advance_to`` goes there and names the
    flows that ended. Nothing is stored between events that depends on when the owner looked, so a
    restored link continues to the same last bit.
    """

    def __init__(self, capacity: RateCurve | float, now_s: float = 0.0) -> None:
        self._curve = capacity if isinstance(capacity, RateCurve) else RateCurve.constant(capacity)
        self._now_s = now_s
        capacity_bps, self._capacity_change_s = self._curve.step_at(now_s)
        self._capacity = _units(capacity_bps)
        self._flows: dict[int, tuple[RateCurve, int]] = {}
        """key -> access curve, and how little may be left of it at its end."""
        self._access: dict[int, int] = {}
        self._change_s: dict[int, float] = {}
        """When ``_access`` has to be looked up again."""
        self._capped: dict[int, tuple[int, float]] = {}
        """key -> what was left, and when that was; since then it runs at its access rate."""
        self._capped_sum = 0
        self._level: dict[int, int] = {}
        """key -> the work at which it ends."""
        self._work = 0
        """What a flow at the water level has had until ``_now_s``."""
        self._level_rate = 0.0
        """Units a second."""
        self._parked: dict[int, tuple[int, float]] = {}
        """``_capped`` of those that became level flows at ``_now_s``, in case they come back."""
        self._due_s: dict[int, float] = {}
        """When to look at a flow: a capped one may end, or an access rate change."""
        self._due_queue: list[tuple[float, int]] = []
        self._end_queue: _Queue = []
        self._level_queue: _Queue = []
        """Level flows, by access rate: the slowest is the first that the level may pass."""
        self._capped_queue: _Queue = []
        """Capped flows, by access rate, negative: the fastest is the first to meet the level."""
        self._most_queued = 0
        self._end_s = math.inf
        """When the first level flow ends, if nothing happens before."""
        self._next_s: float | None = None
        """None until the rates since the last event are known, and ``_end_s`` with them."""

    def add(self, key: int, size_bits: float, curve: RateCurve, now_s: float) -> None:
        """Begin a flow at ``now_s``, which may not lie after the next event."""
        self._move_to(now_s)
        access_bps, self._change_s[key] = curve.step_at(now_s)
        size = int(size_bits * UNITS)
        self._flows[key] = (curve, int(size * ROUNDING_FRACTION))
        self._access[key] = _units(access_bps)
        self._set_due(key, self._join(key, size))
        self._next_s = None

    def discard(self, key: int, now_s: float) -> None:
        """End a flow at ``now_s`` without its bits; nothing happens if there is none."""
        if key in self._flows:
            self._move_to(now_s)
            self._forget(key)
            self._next_s = None

    def next_event_s(self) -> float:
        """When the next flow ends or the next rate changes; inf when nothing will."""
        if self._next_s is None:
            self._share()
            self._end_s = self._first_end_s()
            queue, due_s = self._due_queue, self._due_s
            while queue and due_s.get(queue[0][1]) != queue[0][0]:
                heappop(queue)
            first_s = queue[0][0] if queue else math.inf
            self._next_s = min(first_s, self._end_s, self._capacity_change_s)
        return self._next_s

    def advance_to(self, now_s: float) -> list[int]:
        """Go to ``now_s``, at most ``next_event_s()``; the keys of the flows that ended there."""
        if now_s < self.next_event_s():
            return []
        ended: list[int] = []
        while self._end_s <= now_s:
            ended.append(heappop(self._end_queue)[1])
            self._forget(ended[-1])
            self._end_s = self._first_end_s()
        self._move_to(now_s)
        queue, due_s_of, change_s_of = self._due_queue, self._due_s, self._change_s
        while queue and queue[0][0] <= now_s:
            due_s, key = queue[0]
            if due_s_of.get(key) != due_s:
                heappop(queue)
            elif change_s_of[key] > now_s:
                heappop(queue)
                ended.append(key)
                self._forget(key)
            else:
                due_s_of[key] = due_s = self._look_up(key)
                heapreplace(queue, (due_s, key))
        if self._capacity_change_s <= now_s:
            ended += self._change_capacity()
        self._next_s = None
        return sorted(ended) if ended else ended

    def rates_bps(self) -> dict[int, float]:
        """What every flow gets now."""
        self.next_event_s()
        return {
            key: (self._level_rate if key in self._level else float(access)) / UNITS
            for key, access in self._access.items()
        }

    def copy(self) -> "SharedLink":
        """A link that goes its own way from here; costs a copy of some lists, not of flows."""
        twin = SharedLink.__new__(SharedLink)
        for name, value in self.__dict__.items():
            setattr(twin, name, value.copy() if isinstance(value, dict | list) else value)
        return twin

    def state(self) -> dict[str, Any]:
        """JSON-able; the curves are the owner's to give back."""
        self.next_event_s()
        flows = []
        for key, (_, dregs) in self._flows.items():
            left, since_s = self._capped.get(key) or self._parked.get(key) or (None, None)
            rate = self._access[key], _or_none(self._change_s[key])
            flows.append([key, dregs, *rate, self._level.get(key), left, since_s])
        return {
            "now_s": self._now_s,
            "work": self._work,
            "capacity": [self._capacity, _or_none(self._capacity_change_s)],
            "flows": flows,
        }

    def restore(self, state: dict[str, Any], curves: dict[int, RateCurve]) -> None:
        """Continue from ``state``; ``curves`` holds the access curve of each flow in it."""
        self.__dict__.update(SharedLink(self._curve, state["now_s"]).__dict__)
        self._work = state["work"]
        self._capacity, change_s = state["capacity"]
        self._capacity_change_s = _or_inf(change_s)
        for key, dregs, access, access_change_s, end, left, since_s in state["flows"]:
            self._flows[key] = (curves[key], dregs)
            self._access[key], self._change_s[key] = access, _or_inf(access_change_s)
            if end is None:
                self._set_due(key, self._join_capped(key, left, since_s))
                continue
            self._set_due(key, self._join_level(key, end - self._work))
            if left is not None:
                self._parked[key] = (left, since_s)
        self._next_s = None

    def _move_to(self, now_s: float) -> None:
        if now_s > self._now_s:
            self.next_event_s()
            if self._level:
                self._work += int(self._level_rate * (now_s - self._now_s))
            self._now_s = now_s
            if self._parked:
                self._parked.clear()

    def _share(self) -> None:
        """Move flows between the groups until the water level lies between them.

        The level is never divided out to compare: whole numbers know a tie for sure.
        """
        free, level = self._capacity - self._capped_sum, len(self._level)
        fastest, slowest = self._capped_queue, self._level_queue
        while fastest:
            access, key = -fastest[0][0], fastest[0][1]
            if key not in self._capped or self._access[key] != access:
                heappop(fastest)
            elif access * level > free:
                heappop(fastest)
                self._leave_capped(key)
                free, level = free + access, level + 1
            else:
                break
        while slowest:
            access, key = slowest[0]
            if key not in self._level or self._access[key] != access:
                heappop(slowest)
            elif access * level <= free:
                heappop(slowest)
                self._leave_level(key)
                free, level = free - access, level - 1
            else:
                break
        self._level_rate = free / level if level else 0.0
        queued = len(self._due_queue) + len(self._end_queue) + len(fastest) + len(slowest)
        if queued > self._most_queued:
            self._compact()

    def _leave_capped(self, key: int) -> None:
        """From now on the water level holds this flow back."""
        left, since_s = self._capped.pop(key)
        self._parked[key] = (left, since_s)
        self._capped_sum -= self._access[key]
        self._set_due(key, self._join_level(key, self._left(left, since_s, self._access[key])))

    def _leave_level(self, key: int) -> None:
        """From now on its access rate holds this flow back, if it did not do so all the time."""
        end = self._level.pop(key)
        left, since_s = self._parked.pop(key, (max(0, end - self._work), self._now_s))
        self._set_due(key, self._join_capped(key, left, since_s))

    def _join(self, key: int, left: int) -> float:
        """Join the group that a flow with so much left belongs to, as far as is known now."""
        if self._access[key] * len(self._level) > self._capacity - self._capped_sum:
            return self._join_level(key, left)
        return self._join_capped(key, left, self._now_s)

    def _join_level(self, key: int, left: int) -> float:
        """When to look at the flow, its end apart."""
        end = self._level[key] = self._work + left
        heappush(self._end_queue, (end, key))
        heappush(self._level_queue, (self._access[key], key))
        return self._change_s[key]

    def _join_capped(self, key: int, left: int, since_s: float) -> float:
        """When to look at the flow."""
        access = self._access[key]
        self._capped[key] = (left, since_s)
        self._capped_sum += access
        heappush(self._capped_queue, (-access, key))
        return self._capped_due_s(key)

    def _look_up(self, key: int) -> float:
        """Take over the access rate that begins now; when to look at the flow again."""
        access_bps, change_s = self._flows[key][0].step_at(self._now_s)
        access, before = _units(access_bps), self._access[key]
        self._change_s[key] = change_s
        if access == before:
            return change_s if key in self._level else self._capped_due_s(key)
        self._access[key] = access
        end = self._level.pop(key, None)
        if end is not None:
            self._parked.pop(key, None)
            return self._join(key, max(0, end - self._work))
        left, since_s = self._capped.pop(key)
        self._capped_sum -= before
        return self._join(key, self._left(left, since_s, before))

    def _change_capacity(self) -> list[int]:
        """Take over the capacity that begins now; the flows that may not wait for more of it."""
        before = self._capacity
        capacity_bps, self._capacity_change_s = self._curve.step_at(self._now_s)
        self._capacity = _units(capacity_bps)
        ended = []
        if self._capacity < before:
            for key, (_, dregs) in self._flows.items():
                if key in self._level:
                    left = self._level[key] - self._work
                else:
                    left = self._left(*self._capped[key], self._access[key])
                if left <= dregs:
                    ended.append(key)
        for key in ended:
            self._forget(key)
        return ended

    def _forget(self, key: int) -> None:
        if self._level.pop(key, None) is None:
            del self._capped[key]
            self._capped_sum -= self._access[key]
        self._parked.pop(key, None)
        self._due_s.pop(key, None)
        del self._flows[key], self._access[key], self._change_s[key]

    def _left(self, left: int, since_s: float, access: int) -> int:
        """What is left now of a capped flow."""
        left -= int(access * (self._now_s - since_s))
        return left if left > 0 else 0

    def _capped_due_s(self, key: int) -> float:
        """When a capped flow ends at its present access rate, or when that changes."""
        left, since_s = self._capped[key]
        access, change_s = self._access[key], self._change_s[key]
        if left <= self._flows[key][1]:
            return since_s
        if access == 0:
            return change_s
        finish_s = since_s + float(left) / float(access)
        return finish_s if finish_s < change_s else change_s

    def _set_due(self, key: int, due_s: float) -> None:
        if self._due_s.get(key) != due_s:
            self._due_s[key] = due_s
            if due_s < math.inf:
                heappush(self._due_queue, (due_s, key))

    def _first_end_s(self) -> float:
        """When the first level flow ends if nothing happens before."""
        queue, level = self._end_queue, self._level
        while queue and level.get(queue[0][1]) != queue[0][0]:
            heappop(queue)
        if not queue:
            return math.inf
        left = queue[0][0] - self._work
        if left <= 0:
            return self._now_s
        return self._now_s + left / self._level_rate if self._level_rate else math.inf

    def _compact(self) -> None:
        """Drop the entries that no longer hold, so that memory follows the flows.

        Not before the queues have tripled, so that an event pays for it once.
        """
        self._due_queue = [(s, key) for key, s in self._due_s.items() if s < math.inf]
        self._end_queue = [(end, key) for key, end in self._level.items()]
        self._level_queue = [(self._access[key], key) for key in self._level]
        self._capped_queue = [(-self._access[key], key) for key in self._capped]
        heapify(self._due_queue)
        heapify(self._end_queue)
        heapify(self._level_queue)
        heapify(self._capped_queue)
        self._most_queued = (
            3 * (len(self._due_queue) + 2 * len(self._level) + len(self._capped)) + 64
        )


def _units(bits: float) -> int:
    return int((bits if bits < WIDEST_BPS else WIDEST_BPS) * UNITS)


def _or_none(time_s: float) -> float | None:
    return time_s if time_s < math.inf else None


def _or_inf(time_s: float | None) -> float:
    return math.inf if time_s is None else time_s
