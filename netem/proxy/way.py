"""One direction of a node's link in real time: when each byte that enters it comes out.

A virtual clock, not the timer, says when the link is free, so a late timer delays what it
delivers and nothing after it. All connections of the node share the link, first come first served.
"""

import math
from collections import deque
from collections.abc import Callable

import numpy as np

from netem.proxy.bottleneck import Bottleneck
from netem.proxy.parcel import Parcel, Stream
from netem.proxy.terms import Terms
from netem.proxy.timing import Timer, Timing
from netem.tcp import SEGMENT_BYTES

AHEAD_S = 0.02
"""How far ahead of the clock parcels are put on the link; saves a wake-up for each of them."""
PIECE_S = 0.02
"""Longest piece on the link; shorter ones follow the rate more finely and cost more wake-ups."""
MAX_PIECE_BYTES = 1 << 18
MIN_QUEUE_BYTES = 1 << 15
QUEUE_S = 0.05
"""Waiting bytes that bridge the moments in which the event loop is busy."""
MAX_QUEUE_BYTES = 1 << 22


class Way:
    """The link of one node in one direction.

    ``bottleneck`` is the server's link, which parcels pass first, or None. ``rng`` draws jitter
    and loss, in the order in which parcels leave.
    """

    def __init__(
        self,
        timing: Timing,
        terms: Terms,
        rng: np.random.Generator,
        bottleneck: Bottleneck | None = None,
    ) -> None:
        self.timing = timing
        self.terms = terms
        self.busy_streams = 0
        """Streams with bytes that wait; they share the queue."""
        self._rng = rng
        self._bottleneck = bottleneck
        self._queue: deque[Parcel] = deque()
        self._flying: deque[Parcel] = deque()
        """On the link or behind it, in the order of delivery."""
        self._free_s = 0.0
        self._last_due_s = 0.0
        self._held_s: float | None = None
        self._timer: Timer | None = None
        self._wake_s = math.inf
        self._running = False

    @property
    def held(self) -> bool:
        """Whether the link is cut."""
        return self._held_s is not None

    def rate_bps(self) -> float:
        """What the link allows now, the server's share left aside; 0 while it is cut."""
        return 0.0 if self.held else self.terms.curve.rate_at(self.timing.now_s())

    def window_bytes(self) -> int:
        """How much of one stream may wait: its share of the queue."""
        if self.terms.queue_bytes is not None:
            queue_bytes = self.terms.queue_bytes
        else:
            bits = QUEUE_S * self._speed_bps()
            queue_bytes = int(min(max(MIN_QUEUE_BYTES, bits / 8), MAX_QUEUE_BYTES))
        return max(2 * SEGMENT_BYTES, queue_bytes // max(1, self.busy_streams))

    def send(self, stream: Stream, data: bytes, arrival_s: float) -> None:
        """Put bytes of ``stream`` on their way, cut into pieces that the link passes in ms."""
        size_bytes = len(data)
        bits_per_byte = self.terms.bits(size_bytes) / size_bytes
        piece_bytes = max(SEGMENT_BYTES, int(min(PIECE_S * self._speed_bps() / 8, MAX_PIECE_BYTES)))
        if size_bytes <= piece_bytes:
            self._enter(Parcel(stream, data, self.terms.bits(size_bytes), arrival_s))
        else:
            view = memoryview(data)
            for at in range(0, size_bytes, piece_bytes):
                piece = view[at : at + piece_bytes]
                self._enter(Parcel(stream, piece, bits_per_byte * len(piece), arrival_s))
        self._run()

    def signal(self, stream: Stream, event: Callable[[], None]) -> None:
        """Call ``event`` when a packet without payload, sent now, would arrive."""
        now_s = self.timing.now_s()
        self._enter(Parcel(stream, b"", 8.0 * self.terms.header_bytes, now_s, event))
        self._run()

    def accept(self, parcel: Parcel) -> None:
        """Take a parcel that has passed the server's link."""
        self._queue.append(parcel)
        self._run()

    def change(self, terms: Terms) -> None:
        """Use ``terms`` from now on; what is already on its way arrives as it would have."""
        self._recall(self.timing.now_s())
        self.terms = terms
        self._run()

    def hold(self) -> None:
        """Stop everything where it is."""
        if self._held_s is None:
            now_s = self.timing.now_s()
            self._recall(now_s)
            self._held_s = now_s
            self.close()

    def release(self) -> None:
        """Go on after ``hold``; what was on its way arrives later by the time of the hold."""
        if self._held_s is None:
            return
        now_s = self.timing.now_s()
        for parcel in self._flying:
            parcel.due_s += now_s - self._held_s
        self._last_due_s += now_s - self._held_s
        self._free_s = now_s
        self._held_s = None
        self._run()

    def close(self) -> None:
        """Wake up no more, until something new is sent."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._wake_s = None, math.inf

    def _speed_bps(self) -> float:
        """The rate that sizes are chosen by; not 0 in an outage."""
        bps = self.terms.curve.rate_at(self.timing.now_s())
        return bps if self._bottleneck is None else min(bps, self._bottleneck.rate_bps)

    def _enter(self, parcel: Parcel) -> None:
        if self._bottleneck is None:
            self._queue.append(parcel)
        else:
            self._bottleneck.send(self, parcel)

    def _wake(self) -> None:
        self._timer, self._wake_s = None, math.inf
        self._run()

    def _run(self) -> None:
        """Put on the link what may leave, deliver what is due, and sleep until there is more."""
        if self._running or self._held_s is not None:
            return
        self._running = True
        try:
            now_s = self.timing.now_s()
            self._depart(now_s)
            self._deliver(now_s)
        finally:
            self._running = False
        if self._held_s is None:
            self._sleep()

    def _depart(self, now_s: float) -> None:
        terms, queue = self.terms, self._queue
        while queue and self._free_s <= now_s + AHEAD_S:
            parcel = queue.popleft()
            if parcel.stream.dead:
                parcel.stream.left(len(parcel.data))
                parcel.stream.drop(len(parcel.data))
                continue
            parcel.begin_s = max(self._free_s, parcel.arrival_s)
            parcel.left_s = self._free_s = terms.curve.finish_s(parcel.begin_s, parcel.bits)
            late_s = terms.delay_s + self._chance_s(len(parcel.data))
            parcel.due_s = self._last_due_s = max(self._last_due_s, parcel.left_s + late_s)
            self._flying.append(parcel)
            parcel.stream.left(len(parcel.data))

    def _chance_s(self, size_bytes: int) -> float:
        """Jitter, and the wait for a packet that was lost."""
        terms, late_s = self.terms, 0.0
        if terms.jitter_s > 0:
            late_s = terms.jitter_s * self._rng.random()
        if terms.loss_fraction > 0 and self._rng.random() < terms.loss_in(size_bytes):
            timed_out = self._rng.random() < terms.timeout_fraction
            late_s += terms.timeout_s if timed_out else terms.recovery_s
        return late_s

    def _deliver(self, now_s: float) -> None:
        flying = self._flying
        while flying and flying[0].due_s <= now_s:
            parcel = flying.popleft()
            if parcel.event is not None:
                parcel.event()
                continue
            stream, pieces = parcel.stream, [parcel.data]
            while flying and flying[0].due_s <= now_s and flying[0].stream is stream:
                if flying[0].event is not None:
                    break
                pieces.append(flying.popleft().data)
            stream.deliver(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def _sleep(self) -> None:
        wake_s = self._flying[0].due_s if self._flying else math.inf
        if self._queue:
            wake_s = min(wake_s, self._free_s)
        if wake_s < self._wake_s:
            self.close()
            self._wake_s = wake_s
            self._timer = self.timing.call_at(wake_s, self._wake)

    def _recall(self, now_s: float) -> None:
        """Take back from the link what has not left it by ``now_s``."""
        if self._held_s is not None:
            return
        while self._flying and self._flying[-1].left_s > now_s:
            parcel = self._flying.pop()
            passed_bits = self.terms.curve.bits_between(parcel.begin_s, now_s)
            parcel.bits = max(0.0, parcel.bits - passed_bits)
            self._queue.appendleft(parcel)
            parcel.stream.left(-len(parcel.data))
        self._free_s = min(self._free_s, now_s)
        self._last_due_s = self._flying[-1].due_s if self._flying else 0.0
