"""What one direction does to each packet: queue, rate, loss, delay and jitter. Pure.

Packets of a direction take numbers from its own stream of chance in the order of their arrival.
"""

import math
from collections import deque
from collections.abc import Iterator

import numpy as np

from netem.kernel.pipe import Pipe
from netem.loss import loss_runs

_BLOCK = 4096
"""Draws made at once; one at a time they would cost more than the rest."""


class Bottleneck:
    """The state of one direction; time is seconds since its first packet, or any other origin."""

    def __init__(self, pipe: Pipe, rng: np.random.Generator) -> None:
        self.sent_packets = 0
        """Handed on so far."""
        self.lost_packets = 0
        self.dropped_packets = 0
        """Refused by the full queue, or by a link that is dead for good."""
        self._curve = pipe.curve
        self._queue_bytes = pipe.queue_bytes
        self._delay_s = pipe.delay_ms / 1000
        self._jitter_s = pipe.jitter_ms / 1000
        self._losses: Iterator[tuple[float, float]] = iter(())
        if pipe.loss_fraction > 0:
            self._losses = loss_runs(rng, pipe.loss_fraction, pipe.loss_burst_packets)
        self._lost_run = next(self._losses, (math.inf, math.inf))
        self._draw = _uniform(rng)
        self._waiting: deque[tuple[float, int]] = deque()
        self._backlog_bytes = 0
        self._free_s = -math.inf
        self._due_s = -math.inf

    def take(self, now_s: float, size_bytes: int) -> float | None:
        """When a packet that arrives at ``now_s`` comes out, or None if it never does.

        Arrivals must not go back in time. A lost packet has used its share of the rate; a packet
        never overtakes another, so jitter of one holds up the next.
        """
        waiting = self._waiting
        while waiting and waiting[0][0] <= now_s:
            self._backlog_bytes -= waiting.popleft()[1]
        if self._backlog_bytes + size_bytes > self._queue_bytes and waiting:
            self.dropped_packets += 1
            return None
        out_s = self._curve.finish_s(max(now_s, self._free_s), 8.0 * size_bytes)
        if out_s == math.inf:
            self.dropped_packets += 1
            return None
        self._free_s = out_s
        self._backlog_bytes += size_bytes
        waiting.append((out_s, size_bytes))
        if self._loses():
            self.lost_packets += 1
            return None
        due_s = out_s + self._delay_s
        if self._jitter_s > 0:
            due_s += self._jitter_s * next(self._draw)
        self._due_s = max(self._due_s, due_s)
        self.sent_packets += 1
        return self._due_s

    def _loses(self) -> bool:
        number = self.sent_packets + self.lost_packets
        while number >= self._lost_run[1]:
            self._lost_run = next(self._losses)
        return number >= self._lost_run[0]


def _uniform(rng: np.random.Generator) -> Iterator[float]:
    while True:
        yield from rng.random(_BLOCK).tolist()
