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

from netem.fair_flow import ROUNDING_FRACTION, UNITS, Flow, units
from netem.rate import RateCurve

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
        self._capacity = units(capacity_bps)
        self._flows: dict[int, Flow] = {}
        self._capped_sum = 0
        """Of the access rates of all capped flows."""
        self._level_flows = 0
        self._level_rate = 0.0
        """Units a second that each of them gets."""
        self._work = 0
        """What a flow at the water level has had until ``_now_s``."""
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
        access_bps, change_s = curve.step_at(now_s)
        size = int(size_bits * UNITS)
        flow = Flow(curve, int(size * ROUNDING_FRACTION), units(access_bps), change_s)
        self._flows[key] = flow
        self._set_due(key, flow, self._join(key, flow, size))
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
            self._next_s = min(self._first_due_s(), self._end_s, self._capacity_change_s)
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
        flows, queue = self._flows, self._due_queue
        while queue and queue[0][0] <= now_s:
            due_s, key = queue[0]
            flow = flows.get(key)
            if flow is None or flow.due_s != due_s:
                heappop(queue)
            elif flow.change_s > now_s:
                heappop(queue)
                ended.append(key)
                self._forget(key)
            else:
                flow.due_s = due_s = self._look_up(key, flow)
                heapreplace(queue, (due_s, key))
        if self._capacity_change_s <= now_s:
            ended += self._change_capacity()
        self._next_s = None
        return sorted(ended) if ended else ended

    def rates_bps(self) -> dict[int, float]:
        """What every flow gets now."""
        self.next_event_s()
        return {
            key: (float(flow.access) if flow.end is None else self._level_rate) / UNITS
            for key, flow in self._flows.items()
        }

    def copy(self) -> "SharedLink":
        """A link that goes its own way from here."""
        twin = SharedLink.__new__(SharedLink)
        for name, value in self.__dict__.items():
            setattr(twin, name, value.copy() if isinstance(value, list) else value)
        twin._flows = {key: flow.copy() for key, flow in self._flows.items()}
        return twin

    def state(self) -> dict[str, Any]:
        """JSON-able; the curves are the owner's to give back."""
        self.next_event_s()
        flows = []
        for key, flow in self._flows.items():
            rate = flow.access, _or_none(flow.change_s)
            known = flow.end is None or flow.parked_s == self._now_s
            since = (flow.left, flow.since_s) if known else (None, None)
            flows.append([key, flow.dregs, *rate, flow.end, *since])
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
            flow = Flow(curves[key], dregs, access, _or_inf(access_change_s))
            self._flows[key] = flow
            if left is not None:
                flow.left, flow.since_s = left, since_s
            if end is None:
                self._set_due(key, flow, self._join_capped(key, flow))
                continue
            self._set_due(key, flow, self._join_level(key, flow, end - self._work))
            flow.parked_s = -math.inf if left is None else self._now_s

    def _move_to(self, now_s: float) -> None:
        if now_s > self._now_s:
            self.next_event_s()
            if self._level_flows:
                self._work += int(self._level_rate * (now_s - self._now_s))
            self._now_s = now_s

    def _share(self) -> None:
        """Move flows between the groups until the water level lies between them.

        The level is never divided out to compare: whole numbers know a tie for sure.
        """
        flows, fastest, slowest = self._flows, self._capped_queue, self._level_queue
        while fastest:
            negative, key = fastest[0]
            flow = flows.get(key)
            if flow is None or flow.end is not None or flow.access != -negative:
                heappop(fastest)
            elif flow.access * self._level_flows > self._capacity - self._capped_sum:
                heappop(fastest)
                self._leave_capped(key, flow)
            else:
                break
        while slowest:
            access, key = slowest[0]
            flow = flows.get(key)
            if flow is None or flow.end is None or flow.access != access:
                heappop(slowest)
            elif access * self._level_flows <= self._capacity - self._capped_sum:
                heappop(slowest)
                self._leave_level(key, flow)
            else:
                break
        level = self._level_flows
        self._level_rate = (self._capacity - self._capped_sum) / level if level else 0.0
        queued = len(self._due_queue) + len(self._end_queue) + len(fastest) + len(slowest)
        if queued > self._most_queued:
            self._compact()

    def _leave_capped(self, key: int, flow: Flow) -> None:
        """From now on the water level holds this flow back."""
        self._capped_sum -= flow.access
        self._set_due(key, flow, self._join_level(key, flow, flow.left_at(self._now_s)))
        flow.parked_s = self._now_s

    def _leave_level(self, key: int, flow: Flow) -> None:
        """From now on its access rate holds this flow back, if it did not do so all the time."""
        if flow.parked_s != self._now_s:
            flow.left, flow.since_s = self._left_at_level(flow), self._now_s
        self._level_flows -= 1
        self._set_due(key, flow, self._join_capped(key, flow))

    def _join(self, key: int, flow: Flow, left: int) -> float:
        """Join the group that a flow with so much left belongs to, as far as is known now."""
        if flow.access * self._level_flows > self._capacity - self._capped_sum:
            return self._join_level(key, flow, left)
        flow.left, flow.since_s = left, self._now_s
        return self._join_capped(key, flow)

    def _join_level(self, key: int, flow: Flow, left: int) -> float:
        """When to look at the flow, its end apart."""
        flow.end = end = self._work + left
        flow.parked_s = -math.inf
        self._level_flows += 1
        heappush(self._end_queue, (end, key))
        heappush(self._level_queue, (flow.access, key))
        return flow.change_s

    def _join_capped(self, key: int, flow: Flow) -> float:
        """When to look at the flow."""
        flow.end = None
        self._capped_sum += flow.access
        heappush(self._capped_queue, (-flow.access, key))
        return flow.capped_due_s()

    def _look_up(self, key: int, flow: Flow) -> float:
        """Take over the access rate that begins now; when to look at the flow again."""
        access_bps, flow.change_s = flow.curve.step_at(self._now_s)
        access = units(access_bps)
        if access == flow.access:
            return flow.capped_due_s() if flow.end is None else flow.change_s
        if flow.end is None:
            left = flow.left_at(self._now_s)
            self._capped_sum -= flow.access
        else:
            left = self._left_at_level(flow)
            self._level_flows -= 1
        flow.access = access
        return self._join(key, flow, left)

    def _change_capacity(self) -> list[int]:
        """Take over the capacity that begins now; the flows that may not wait for more of it."""
        before = self._capacity
        capacity_bps, self._capacity_change_s = self._curve.step_at(self._now_s)
        self._capacity = units(capacity_bps)
        ended = []
        if self._capacity < before:
            for key, flow in self._flows.items():
                capped = flow.end is None
                left = flow.left_at(self._now_s) if capped else self._left_at_level(flow)
                if left <= flow.dregs:
                    ended.append(key)
        for key in ended:
            self._forget(key)
        return ended

    def _forget(self, key: int) -> None:
        flow = self._flows.pop(key)
        if flow.end is None:
            self._capped_sum -= flow.access
        else:
            self._level_flows -= 1

    def _left_at_level(self, flow: Flow) -> int:
        """What is left now of a level flow."""
        return max(0, (flow.end or 0) - self._work)

    def _set_due(self, key: int, flow: Flow, due_s: float) -> None:
        if flow.due_s != due_s:
            flow.due_s = due_s
            if due_s < math.inf:
                heappush(self._due_queue, (due_s, key))

    def _first_due_s(self) -> float:
        queue, flows = self._due_queue, self._flows
        while queue:
            due_s, key = queue[0]
            flow = flows.get(key)
            if flow is not None and flow.due_s == due_s:
                return due_s
            heappop(queue)
        return math.inf

    def _first_end_s(self) -> float:
        """When the first level flow ends if nothing happens before."""
        queue, flows = self._end_queue, self._flows
        while queue:
            end, key = queue[0]
            flow = flows.get(key)
            if flow is not None and flow.end == end:
                break
            heappop(queue)
        else:
            return math.inf
        if end <= self._work:
            return self._now_s
        return self._now_s + (end - self._work) / self._level_rate if self._level_rate else math.inf

    def _compact(self) -> None:
        """Drop the entries that no longer hold, so that memory follows the flows.

        Not before the queues have tripled, so that an event pays for it once.
        """
        flows = self._flows.items()
        level = [(key, flow) for key, flow in flows if flow.end is not None]
        self._due_queue = [(flow.due_s, key) for key, flow in flows if flow.due_s < math.inf]
        self._end_queue = [(flow.end, key) for key, flow in level if flow.end is not None]
        self._level_queue = [(flow.access, key) for key, flow in level]
        self._capped_queue = [(-flow.access, key) for key, flow in flows if flow.end is None]
        heapify(self._due_queue)
        heapify(self._end_queue)
        heapify(self._level_queue)
        heapify(self._capped_queue)
        self._most_queued = 3 * (len(self._due_queue) + len(flows) + len(level)) + 64


def _or_none(time_s: float) -> float | None:
    return time_s if time_s < math.inf else None


def _or_inf(time_s: float | None) -> float:
    return math.inf if time_s is None else time_s
