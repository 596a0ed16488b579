"""The server's link in one direction, in real time: shared by all nodes, fair between them.

Start-time fair queueing (Goyal, Vin, Cheng, SIGCOMM 1996): the parcel goes first that a fluid
link, which serves all nodes at once, would begin first. A node whose own link is slower never
has a backlog here, so the rates are max-min fair, as in ``netem.fair``.
"""

import heapq
import math
from collections import deque
from typing import Protocol

from netem.proxy.parcel import Parcel
from netem.proxy.timing import Timer, Timing

AHEAD_S = 0.002


class Behind(Protocol):
    """The node's own link, which a parcel enters next."""

    def accept(self, parcel: Parcel) -> None:
        """Take a parcel that has passed the server's link."""
        ...


class _Flow:
    """What waits for one node."""

    __slots__ = ("finish_tag", "queue", "way")

    def __init__(self, way: Behind) -> None:
        self.way = way
        self.queue: deque[tuple[float, Parcel]] = deque()
        """With its start tag, in bits of virtual work."""
        self.finish_tag = 0.0


class Bottleneck:
    """A link of ``rate_bps`` that every node's traffic in one direction has to pass."""

    def __init__(self, timing: Timing, rate_bps: float) -> None:
        self.rate_bps = rate_bps
        self._timing = timing
        self._flows: dict[Behind, _Flow] = {}
        self._heads: list[tuple[float, int, _Flow]] = []
        """Heap of (start tag, arrival number, flow), one entry for each flow with a queue."""
        self._arrivals = 0
        self._work = 0.0
        """Start tag of the parcel served last: the virtual time of the fair schedule."""
        self._free_s = 0.0
        self._timer: Timer | None = None

    def send(self, way: Behind, parcel: Parcel) -> None:
        """Serve ``parcel`` when it is its turn, then hand it to ``way``."""
        flow = self._flows.get(way)
        if flow is None:
            flow = self._flows[way] = _Flow(way)
        tag = max(self._work, flow.finish_tag)
        flow.finish_tag = tag + parcel.bits
        flow.queue.append((tag, parcel))
        if len(flow.queue) == 1:
            self._push(flow)
        if self._timer is None:
            self._serve()

    def close(self) -> None:
        """Serve no more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._heads.clear()
        self._flows.clear()

    def _push(self, flow: _Flow) -> None:
        self._arrivals += 1
        heapq.heappush(self._heads, (flow.queue[0][0], self._arrivals, flow))

    def _wake(self) -> None:
        self._timer = None
        self._serve()

    def _serve(self) -> None:
        horizon_s = self._timing.now_s() + AHEAD_S
        while self._heads and self._free_s <= horizon_s:
            tag, _, flow = heapq.heappop(self._heads)
            _, parcel = flow.queue.popleft()
            if flow.queue:
                self._push(flow)
            self._work = tag
            if not parcel.stream.dead:
                begin_s = max(self._free_s, parcel.arrival_s)
                self._free_s = parcel.arrival_s = begin_s + parcel.bits / self.rate_bps
            flow.way.accept(parcel)
        if self._heads and self._timer is None and self._free_s < math.inf:
            self._timer = self._timing.call_at(self._free_s, self._wake)
