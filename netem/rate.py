"""How fast one direction of a link is at each moment, and when a transfer over it ends, exactly.

A curve is piecewise constant, may loop, and may be cut by outages in absolute time.
m = number of steps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from fedsys.errors import LinkError
from fedsys.types import F64

Outages = tuple[tuple[float, float], ...]


@dataclass(frozen=True, eq=False, slots=True)
class RateCurve:
    """Rate over time; integrals and their inverse cost O(log m), not a walk over the steps.

    edge_s     float64 [m]  s, strictly ascending from 0; step i lasts until edge_s[i + 1]
    rate_bps   float64 [m]  bit/s during step i; 0 is an outage
    period_s   the curve starts again after this time; None lets the last step last for ever
    outages    (begin_s, end_s) windows in absolute time, ascending, in which nothing moves

    Curves compare by identity. Raises LinkError for steps that are not a curve.
    """

    edge_s: F64
    rate_bps: F64
    period_s: float | None = None
    outages: Outages = ()
    _edge_bits: F64 = field(init=False, repr=False)
    """float64 [m] or [m + 1]: bits delivered by each edge, and by the end of the period."""

    def __post_init__(self) -> None:
        edge_s = np.asarray(self.edge_s, np.float64)
        rate_bps = np.asarray(self.rate_bps, np.float64)
        _check_steps(edge_s, rate_bps, self.period_s)
        _check_outages(self.outages)
        ends = edge_s if self.period_s is None else np.append(edge_s, self.period_s)
        steps = rate_bps[: ends.size - 1] * np.diff(ends) if ends.size > 1 else np.empty(0)
        edge_bits = np.concatenate([[0.0], np.cumsum(steps)])
        object.__setattr__(self, "edge_s", edge_s)
        object.__setattr__(self, "rate_bps", rate_bps)
        object.__setattr__(self, "_edge_bits", edge_bits)

    @classmethod
    def constant(cls, bps: float) -> "RateCurve":
        """The same rate for ever; inf is allowed here and only here."""
        return cls(np.zeros(1), np.array([bps], np.float64))

    def finish_s(self, start_s: float, size_bits: float) -> float:
        """When the last of ``size_bits`` has left, if they begin to flow at ``start_s``.

        The smallest such time; inf when the curve never delivers them.
        """
        for begin_s, end_s in self.outages:
            if end_s <= start_s:
                continue
            if start_s < begin_s:
                done_s = self._finish_uncut_s(start_s, size_bits)
                if done_s <= begin_s:
                    return done_s
                size_bits -= self._bits_uncut(start_s, begin_s)
            start_s = end_s
        return self._finish_uncut_s(start_s, size_bits) if start_s < math.inf else math.inf

    def bits_between(self, begin_s: float, end_s: float) -> float:
        """Bits that flow from ``begin_s`` to ``end_s``; 0 when that is not forward."""
        bits = 0.0
        for outage_s, back_s in self.outages:
            if begin_s >= end_s:
                return bits
            if outage_s < end_s and back_s > begin_s:
                bits += self._bits_uncut(begin_s, max(begin_s, outage_s))
                begin_s = back_s
        return bits + (self._bits_uncut(begin_s, end_s) if begin_s < end_s else 0.0)

    def rate_at(self, now_s: float) -> float:
        """Bit/s at ``now_s``; at an edge, what begins there."""
        if any(begin_s <= now_s < end_s for begin_s, end_s in self.outages):
            return 0.0
        _, local_s = self._lap(now_s)
        return float(self.rate_bps[self._step(local_s)])

    def next_change_s(self, now_s: float) -> float:
        """The first moment after ``now_s`` at which the rate may differ; inf if there is none."""
        lap_s, local_s = self._lap(now_s)
        step = self._step(local_s) + 1
        if step < self.edge_s.size:
            change_s = lap_s + float(self.edge_s[step])
        elif self.period_s is not None and self.edge_s.size > 1:
            change_s = lap_s + self.period_s
        else:
            change_s = math.inf
        if change_s <= now_s:  # the edge is closer to now_s than a float can tell
            change_s = math.nextafter(now_s, math.inf)
        cuts = [edge_s for outage in self.outages for edge_s in outage if edge_s > now_s]
        return min([change_s, *cuts])

    def dead_from_s(self) -> float:
        """The moment after which nothing ever flows again; inf for a link that recovers."""
        if self.outages and self.outages[-1][1] == math.inf:
            return min(self.outages[-1][0], self._uncut_dead_from_s())
        return self._uncut_dead_from_s()

    def limited(self, kept_fraction: float, cap_bps: float = math.inf) -> "RateCurve":
        """This curve with every rate times ``kept_fraction``, and none above ``cap_bps``."""
        rate_bps = np.minimum(self.rate_bps * kept_fraction, cap_bps)
        return RateCurve(self.edge_s, rate_bps, self.period_s, self.outages)

    def cut(self, outages: Sequence[tuple[float, float]]) -> "RateCurve":
        """This curve with ``outages`` in place of its own."""
        return RateCurve(self.edge_s, self.rate_bps, self.period_s, tuple(outages))

    def shifted(self, by_s: float) -> "RateCurve":
        """This looping curve, entered ``by_s`` after its beginning."""
        if self.period_s is None:
            raise LinkError("only a curve with a period can be shifted")
        local_s = by_s % self.period_s
        first = self._step(local_s)
        edge_s = np.concatenate(
            [
                [0.0],
                self.edge_s[first + 1 :] - local_s,
                self.edge_s[:first] + self.period_s - local_s,
            ]
        )
        rate_bps = np.concatenate([self.rate_bps[first:], self.rate_bps[:first]])
        wrapped_s = self.edge_s[first] + self.period_s - local_s
        if wrapped_s < self.period_s:  # entered inside a step: its beginning comes last
            edge_s, rate_bps = np.append(edge_s, wrapped_s), np.append(rate_bps, rate_bps[0])
        return RateCurve(edge_s, rate_bps, self.period_s, self.outages)

    def _uncut_dead_from_s(self) -> float:
        alive = np.flatnonzero(self.rate_bps > 0)
        if alive.size == 0:
            return 0.0
        if self.period_s is not None or alive[-1] == self.rate_bps.size - 1:
            return math.inf
        return float(self.edge_s[alive[-1] + 1])

    def _lap(self, now_s: float) -> tuple[float, float]:
        """Start of the loop that ``now_s`` falls in, and the time since then."""
        if self.period_s is None:
            return 0.0, now_s
        lap_s = math.floor(now_s / self.period_s) * self.period_s
        return lap_s, min(max(now_s - lap_s, 0.0), self.period_s)

    def _step(self, local_s: float) -> int:
        if self.edge_s.size == 1:
            return 0
        return int(np.searchsorted(self.edge_s, local_s, side="right")) - 1

    def _bits_until(self, local_s: float) -> float:
        step = self._step(local_s)
        return float(
            self._edge_bits[step] + self.rate_bps[step] * (local_s - float(self.edge_s[step]))
        )

    def _bits_uncut(self, begin_s: float, end_s: float) -> float:
        if begin_s >= end_s:
            return 0.0
        if self.edge_s.size == 1:
            return float(self.rate_bps[0]) * (end_s - begin_s)
        begin_lap_s, begin_local_s = self._lap(begin_s)
        end_lap_s, end_local_s = self._lap(end_s)
        bits = self._bits_until(end_local_s) - self._bits_until(begin_local_s)
        if self.period_s is None:
            return bits
        laps = round((end_lap_s - begin_lap_s) / self.period_s)
        return bits + laps * float(self._edge_bits[-1])

    def _finish_uncut_s(self, start_s: float, size_bits: float) -> float:
        if size_bits <= 0:
            return start_s
        lap_s, local_s = self._lap(start_s)
        step = self._step(local_s)
        bps = float(self.rate_bps[step])
        end_s = self._step_end_s(step)
        if bps > 0 and size_bits <= bps * (end_s - local_s):
            return start_s + size_bits / bps
        if end_s == math.inf:
            return math.inf
        target_bits = float(self._edge_bits[step + 1]) + (size_bits - bps * (end_s - local_s))
        return max(start_s, self._reach_s(lap_s, target_bits))

    def _step_end_s(self, step: int) -> float:
        if step + 1 < self.edge_s.size:
            return float(self.edge_s[step + 1])
        return math.inf if self.period_s is None else self.period_s

    def _reach_s(self, lap_s: float, target_bits: float) -> float:
        """When the integral since ``lap_s`` reaches ``target_bits`` > 0: the inverse of the sum."""
        total_bits = float(self._edge_bits[-1])
        if self.period_s is not None:
            if total_bits == 0:
                return math.inf
            laps = max(0, math.ceil(target_bits / total_bits) - 1)
            lap_s += laps * self.period_s
            target_bits = min(target_bits - laps * total_bits, total_bits)
        elif target_bits > total_bits:
            last_bps = float(self.rate_bps[-1])
            left_bits = target_bits - total_bits
            return float(self.edge_s[-1]) + left_bits / last_bps if last_bps > 0 else math.inf
        step = max(0, int(np.searchsorted(self._edge_bits, target_bits, side="left")) - 1)
        bps = float(self.rate_bps[step])
        into_s = (target_bits - float(self._edge_bits[step])) / bps if bps > 0 else 0.0
        return lap_s + float(self.edge_s[step]) + into_s


def steps(edge_s: ArrayLike, rate_bps: ArrayLike, period_s: float | None = None) -> RateCurve:
    """A curve from plain lists: ``steps([0, 10], [1e6, 0])`` is 1 Mbit/s that dies at 10 s."""
    return RateCurve(np.array(edge_s, np.float64), np.array(rate_bps, np.float64), period_s)


def _check_steps(edge_s: F64, rate_bps: F64, period_s: float | None) -> None:
    if edge_s.ndim != 1 or edge_s.shape != rate_bps.shape or edge_s.size == 0:
        raise LinkError(
            f"a rate curve needs as many edges as rates, and at least one; "
            f"got shapes {edge_s.shape} and {rate_bps.shape}"
        )
    if edge_s[0] != 0 or not np.isfinite(edge_s).all() or (np.diff(edge_s) <= 0).any():
        raise LinkError("edges of a rate curve must start at 0 s and ascend strictly")
    if np.isnan(rate_bps).any() or (rate_bps < 0).any():
        raise LinkError(f"rates must be 0 or more bit/s, got {float(np.min(rate_bps))}")
    if not np.isfinite(rate_bps).all() and (rate_bps.size > 1 or period_s is not None):
        raise LinkError("an infinite rate is allowed only as a constant")
    if period_s is not None and not edge_s[-1] < period_s < math.inf:
        raise LinkError(f"period_s must lie after the last edge ({edge_s[-1]} s), got {period_s}")


def _check_outages(outages: Outages) -> None:
    last_s = 0.0
    for begin_s, end_s in outages:
        if not last_s <= begin_s < end_s:
            raise LinkError(
                f"outages must be (begin_s, end_s) windows in ascending order, got {outages}"
            )
        last_s = end_s
