"""CUBIC with loss or a short queue, simulated one round trip at a time.

Window: RFC 9438 with the constants of Linux; slow start with HyStart (RFC 9406; both exits of
Linux); recovery in one round trip with proportional rate reduction (RFC 6937); lost tails by
RACK-TLP (RFC 8985). A round sends one window, back to back, and lasts the round trip or as long as
the link takes to carry it, whichever is longer. Losses come as runs, so they cost a draw each, and
packets cost nothing.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from netem.rate import RateCurve

FIRST_WINDOW_PACKETS = 10
BETA = 717 / 1024
"""What is left of the window after a loss."""
GROWTH = 0.4
"""C of RFC 9438, packets/s^3."""
RENO_PACKETS = 8 / 15
"""Growth a round of the window that Reno would have: 3 (1 - beta) / (1 + beta), as Linux rounds."""
HYSTART_FROM_PACKETS = 16
HYSTART_ACK_GAP_S = 0.002
HYSTART_DELAY_S = (0.004, 0.016)
"""Bounds of an eighth of the round trip: the delay that says a queue has built."""
HYSTART_SAMPLES = 8
TIMER_S = 0.2
"""Least time by which a time-out exceeds the round trip."""
LONGEST_TIMER_S = 120.0
MAX_ROUNDS = 300
"""Rounds that are simulated of one transfer: a millisecond or two of computing."""
BURST_PACKETS = 3
"""An acknowledgement of two packets lets four go in slow start, of which one leaves at once."""


@dataclass(frozen=True, slots=True)
class Path:
    """What the packets of one transfer meet."""

    curve: RateCurve
    packet_bits: float
    rtt_s: float
    queue_packets: float
    """Packets that find room at the bottleneck, the one under way included; inf for any number."""

    def sent_s(self, now_s: float, packets: float) -> float:
        """When the last of ``packets`` has left that reach the bottleneck at ``now_s``."""
        return self.curve.finish_s(now_s, packets * self.packet_bits)


class Span(NamedTuple):
    """A stretch of rounds: what the link carried from ``begin_s`` to ``end_s``."""

    begin_s: float
    end_s: float
    packets: float


class Flight(NamedTuple):
    """A transfer as it went over its path."""

    spans: list[Span]
    rest_packets: float
    """What was not simulated."""
    rest_packets_per_s: float


class _Window:
    """Congestion window in packets."""

    __slots__ = (
        "_epoch_s",
        "_last_max",
        "_origin",
        "_plateau_s",
        "_reno",
        "size",
        "slow",
        "ssthresh",
    )

    def __init__(self) -> None:
        self.size = float(FIRST_WINDOW_PACKETS)
        self.ssthresh = math.inf
        self.slow = True
        self._last_max = 0.0
        self._epoch_s = math.nan
        self._origin = self._plateau_s = self._reno = 0.0

    def leave_slow_start(self, size: float) -> None:
        self.size = self.ssthresh = size
        self.slow = False
        self._epoch_s = math.nan

    def reduce(self, size: float) -> None:
        """Answer a loss at window ``size``; fast convergence gives room to new flows."""
        self._last_max = size * (1 + BETA) / 2 if size < self._last_max else size
        self.leave_slow_start(max(2.0, float(int(size * BETA))))

    def collapse(self) -> None:
        """A time-out: one packet, then slow start up to the threshold."""
        self.size, self.slow = 1.0, True

    def grow(self, now_s: float, sent: float) -> None:
        """A round of congestion avoidance that ends at ``now_s``."""
        if self._epoch_s != self._epoch_s:
            self._begin_epoch(now_s)
        ahead_s = now_s - self._epoch_s - self._plateau_s
        size = self.size
        target = min(max(self._origin + GROWTH * ahead_s * ahead_s * ahead_s, size), 1.5 * size)
        if self._last_max == 0:  # Linux: at least 5 % a round while no loss has shown the limit
            target = max(target, 1.05 * size)
        self._reno += RENO_PACKETS * sent / size
        self.size = max(target, float(int(self._reno)))

    def _begin_epoch(self, now_s: float) -> None:
        self._epoch_s = now_s
        self._reno = self.size
        self._origin = max(self.size, self._last_max)
        self._plateau_s = ((self._origin - self.size) / GROWTH) ** (1 / 3)


class _Sender:
    """One transfer under way."""

    def __init__(
        self, path: Path, packets: float, begin_s: float, runs: Iterator[tuple[int, int]] | None
    ) -> None:
        self.path = path
        bps = path.curve.constant_bps
        self._packet_s = None if bps is None or bps == 0 else path.packet_bits / bps
        """On a curve that never changes; it saves the look-up."""
        self.left = float(math.ceil(packets))
        self._short = self.left - packets
        """What the packet that is not full lacks; it is taken for the first one."""
        self.now_s = self.last_s = begin_s
        self.rounds = 0
        self.window = _Window()
        self._runs = runs
        self._run: tuple[float, float] = next(runs) if runs is not None else (math.inf, math.inf)
        self._sent = 0.0
        """Packets given to the link so far, lost ones included: the count that runs refer to."""
        self._room: float | None = None
        """What the round after a loss may send, where that is not the window."""
        self._excused = 0.0
        """Packets of this round that were sent before the loss behind them was known."""
        self._known_s = 0.0
        """When a loss of the round before is known, of so many packets as ``_owed``."""
        self._owed = 0.0
        self._pairs = 0.0
        """Those of them that slow start sent two at a time."""
        self._standing_s = 0.0
        """What the queue held when this round began."""
        self._blank_rounds = 0
        self._events = 0
        self._spans: list[Span] = []
        self._span_s = begin_s
        self._span_packets = 0.0
        delay_s = path.rtt_s / 8
        self._hystart_s = min(max(delay_s, HYSTART_DELAY_S[0]), HYSTART_DELAY_S[1])

    def fly(self, max_rounds: int) -> Flight:
        while self.left > 0 and self.rounds < max_rounds and self.last_s < math.inf:
            self._round()
        if self.left <= 0:
            self._end_span(self.last_s)
            return Flight(self._spans, 0.0, math.inf)
        self._end_span(self.now_s)
        return Flight(self._spans, self.left, self._mean_packets_per_s())

    def _mean_packets_per_s(self) -> float:
        """Of the later half of the losses at least: the window of slow start is forgotten."""
        spans = self._spans[max(1, len(self._spans) - 3) :]
        packets = sum(span.packets for span in spans)
        return packets / (spans[-1].end_s - spans[0].begin_s) if packets else math.inf

    def _end_span(self, now_s: float) -> None:
        self._spans.append(Span(self._span_s, now_s, self._span_packets))
        self._span_s, self._span_packets = now_s, 0.0

    def _round(self) -> None:
        self.rounds += 1
        window = self.window
        recovering = self._room is not None
        room = float(int(window.size if self._room is None else self._room + 0.5))
        if self.rounds == 1:
            room -= 1  # the head of an HTTP message leaves in a packet of its own
        send = min(max(room, 1.0), self.left)
        first, lost, last = self._take_losses(send)
        dropped = 0.0
        if self.path.queue_packets < math.inf:
            at, dropped = self._overflow(send, recovering)
            if dropped and at >= self._excused and (first < 0 or at < first):
                first = at
        carried = send - dropped - self._short
        self._short = 0.0
        if self._packet_s is not None:
            self.last_s = self.now_s + carried * self._packet_s
        else:
            self.last_s = self.path.sent_s(self.now_s, carried)
        self._sent += send
        self._span_packets += carried
        gone = lost + dropped
        self.left += gone - send
        if recovering and self.left <= 0:  # what was lost leaves when the sender knows
            again = min(self._owed, carried)
            self.last_s = max(self.last_s, self.path.sent_s(self._known_s, again))
        self._room, self._excused = None, 0.0
        if gone:
            self._answer(send, gone, first, last, recovering)
        else:
            self._advance(send, recovering)

    def _take_losses(self, send: float) -> tuple[float, float, float]:
        """Of the next ``send`` packets: the first loss that is news or -1, how many, and the end
        of the last.
        """
        begin, end = self._sent, self._sent + send
        first, lost, last = -1.0, 0.0, 0.0
        while self._run[0] < end:
            run_first, run_after = self._run
            at, last = max(run_first, begin) - begin, min(run_after, end) - begin
            lost += last - at
            if first < 0 and at >= self._excused:
                first = at
            if run_after > end or self._runs is None:
                break
            self._run = next(self._runs)
        return first, lost, last

    def _overflow(self, send: float, recovering: bool) -> tuple[float, float]:
        """Where the queue is full first, and how many packets of this round it turns away.

        In slow start each acknowledgement releases two packets while one leaves, so the queue
        grows by half of what is sent; the first window arrives all at once.
        """
        path = self.path
        pairs = min(self._pairs, send) if recovering else send if self.window.slow else 0.0
        if pairs:
            step_s = path.sent_s(self.now_s, 1.0) - self.now_s
            standing = self._standing_s / step_s if step_s else 0.0
            burst = 0 if self.rounds == 1 else BURST_PACKETS
            free = max(0.0, path.queue_packets - standing - burst)
            share = 1 if self.rounds == 1 else 2
            at = share * free
            over = math.ceil(max(0.0, pairs - at) / share)
        else:
            carried = path.curve.bits_between(self.now_s, self.now_s + path.rtt_s)
            at = path.queue_packets + carried / path.packet_bits
            over = int(max(0.0, send - at))
        return at, min(float(over), send - 1)

    def _advance(self, send: float, recovering: bool) -> None:
        """End a round in which all packets got through."""
        window, path = self.window, self.path
        sending_s = self.last_s - self.now_s
        length_s = max(path.rtt_s, sending_s)
        if not recovering:
            if window.slow:
                self._slow_start(send, sending_s)
            else:
                window.grow(self.now_s + length_s, send)
        self._blank_rounds = 0
        self._standing_s = max(0.0, sending_s - path.rtt_s)
        self.now_s += length_s

    def _slow_start(self, send: float, sending_s: float) -> None:
        window, rtt_s = self.window, self.path.rtt_s
        gain, leaves = send + (1 if self.rounds == 1 else 0), False
        if window.size >= HYSTART_FROM_PACKETS:
            if self._standing_s > self._hystart_s:
                gain, leaves = min(gain, HYSTART_SAMPLES), True
            elif sending_s >= rtt_s / 2 and sending_s <= HYSTART_ACK_GAP_S * send:
                gain, leaves = min(gain, send * rtt_s / 2 / sending_s), True
        size = window.size + gain
        if leaves or size >= window.ssthresh:
            window.leave_slow_start(min(size, window.ssthresh))
        else:
            window.size = size

    def _answer(self, send: float, gone: float, first: float, last: float, again: bool) -> None:
        """End a round with losses; the retransmissions are among what is left."""
        self._events += 1
        window, rtt_s = self.window, self.path.rtt_s
        sending_s = self.last_s - self.now_s
        news = first >= 0
        if gone >= send:
            self._blackout(sending_s, gone, again)
        elif self.left <= gone:
            self._repair_tail(send, sending_s, first, last)
        else:
            if news:
                through = first / send
                self._known_s = self.now_s + rtt_s + sending_s * (first + 1) / send
                self._owed = gone
                self._pairs = 2 * first if window.slow else 0.0
                self._excused = self._pairs or through * window.size
                self._room = max(1.0, self._excused + BETA * (1 - through) * window.size)
                window.reduce(window.size + first if window.slow else window.size)
            self._blank_rounds = 0
            self._standing_s = max(0.0, sending_s - rtt_s)
            self.now_s += max(rtt_s, sending_s)
        if self._events & (self._events - 1) == 0:
            self._end_span(self.now_s)

    def _blackout(self, sending_s: float, gone: float, again: bool) -> None:
        """Nothing of a window arrived: a probe after two round trips, or a timer that doubles."""
        rtt_s = self.path.rtt_s
        if self._blank_rounds:
            wait_s = 2.0 ** (self._blank_rounds - 1) * (rtt_s + TIMER_S)
        else:
            wait_s = rtt_s + (TIMER_S if again else min(2 * rtt_s, TIMER_S))
        self.now_s += sending_s + min(wait_s, LONGEST_TIMER_S)
        self.window.reduce(self.window.size)
        if self._blank_rounds or gone > 2:
            self.window.collapse()
        self._blank_rounds += 1
        self._standing_s = 0.0

    def _repair_tail(self, send: float, sending_s: float, first: float, last: float) -> None:
        """All is sent but what was lost: it is sent again as soon as the sender can know."""
        rtt_s = self.path.rtt_s
        followers = send - last
        if followers >= 3:
            known_s = rtt_s + sending_s * min(1.0, (max(first, 0.0) + 1) / send)
            self.now_s += max(known_s, sending_s)
        else:
            timer_s = min(2 * rtt_s, TIMER_S) if followers < 1 else rtt_s / 4
            self.now_s += rtt_s + sending_s + timer_s
        self.window.reduce(self.window.size)
        self.window.size = max(self.window.size, self.left)
        self._standing_s = 0.0


def cubic_flight(
    path: Path,
    packets: float,
    begin_s: float,
    runs: Iterator[tuple[int, int]] | None,
    max_rounds: int = MAX_ROUNDS,
) -> Flight:
    """The flight of ``packets`` full packets, begun at ``begin_s`` on a connection at rest.

    ``runs`` are the losses of the link (``netem.loss.loss_runs``), None for none. The spans follow
    each other without a gap; they end at the 1st, 2nd, 4th, 8th ... round with losses. After
    ``max_rounds`` the rest is left to the mean rate since the first loss.
    """
    return _Sender(path, packets, begin_s, runs).fly(max_rounds)
