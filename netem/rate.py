"""How fast one direction of a link is at each moment, and when a transfer over it ends, exactly.

A curve is piecewise constant, may loop, and may be cut by outages in absolute time.
m = number of steps.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import takewhile

import numpy as np
from numpy.typing import ArrayLike

from fedsys.errors import LinkError
from fedsys.types import F64
from netem.gaps import Gaps, merged

Outages = tuple[tuple[float, float], ...]

BARREN_WINDOWS = 10_000
"""So many outages in a row without a bit between them are taken for the end of the link."""

EDGE_FRACTION = 1e-15
"""An edge that lies ahead by less than this share of the time is taken as reached."""


class _Steps:
    """What all curves that come from the same rates share, checked and summed once."""

    __slots__ = (
        "dead_from_s",
        "edge_s",
        "edges",
        "ends",
        "peak_bps",
        "rate_bps",
        "rates",
        "steps_per_s",
        "sums",
    )

    def __init__(self, edge_s: F64, rate_bps: F64, period_s: float | None) -> None:
        _check_steps(edge_s, rate_bps, period_s)
        bounds = np.append(edge_s, math.inf if period_s is None else period_s)
        whole = edge_s.size - (period_s is None)
        bits = rate_bps[:whole] * np.diff(bounds)[:whole]
        self.edge_s = edge_s
        self.rate_bps = rate_bps
        self.peak_bps = float(rate_bps.max())
        self.dead_from_s = _dead_from_s(edge_s, rate_bps, period_s)
        # Single numbers come out of a memory view ten times faster than out of an array.
        self.edges: Sequence[float] = _floats(bounds[:-1])
        self.ends: Sequence[float] = _floats(bounds[1:])
        """float64 [m]  s: when each step ends, inf for the last of a curve without a period."""
        self.steps_per_s = whole / float(bounds[whole]) if whole else 0.0
        self.rates: Sequence[float] = _floats(rate_bps)
        self.sums: Sequence[float] = _floats(np.concatenate([[0.0], np.cumsum(bits)]))
        """float64 [m] or [m + 1]: bits delivered by each edge, and by the end of the period."""


class RateCurve:
    """Rate over time; integrals and their inverse cost O(log m), not a walk over the steps.

    edge_s     float64 [m]  s, strictly ascending from 0; step i lasts until edge_s[i + 1]
    rate_bps   float64 [m]  bit/s during step i; 0 is an outage
    period_s   the curve starts again after this time; None lets the last step last for ever
    outages    (begin_s, end_s) windows in absolute time, ascending, in which nothing moves
    gaps       more of them, which come again and again; None for none

    Curves do not change, and compare by identity. One that is scaled, shifted or cut shares the
    arrays of the one it was made from, so thousands of nodes may replay one long recording.
    Raises LinkError for steps that are not a curve.
    """

    __slots__ = ("_cuts", "_entry_s", "_factor", "_steps", "gaps", "outages", "period_s")

    def __init__(
        self,
        edge_s: F64,
        rate_bps: F64,
        period_s: float | None = None,
        outages: Outages = (),
        gaps: Gaps | None = None,
    ) -> None:
        edge_s = np.ascontiguousarray(edge_s, np.float64)
        rate_bps = np.ascontiguousarray(rate_bps, np.float64)
        self._fill(_Steps(edge_s, rate_bps, period_s), period_s, outages, gaps=gaps)

    def __reduce__(self) -> tuple[type["RateCurve"], tuple[object, ...]]:
        """Pickled as what it looks like; a memory view cannot travel."""
        return RateCurve, (
            self.edge_s,
            self.rate_bps,
            self.period_s,
            self.outages,
            self.gaps,
        )

    @classmethod
    def constant(cls, bps: float) -> "RateCurve":
        """The same rate for ever; inf is allowed here and only here."""
        return cls(np.zeros(1), np.array([bps], np.float64))

    @property
    def edge_s(self) -> F64:
        """float64 [m]  s, as seen from time 0."""
        return self._unrolled()[0]

    @property
    def rate_bps(self) -> F64:
        """float64 [m]  bit/s, without the outages."""
        return self._unrolled()[1]

    def finish_s(self, start_s: float, size_bits: float) -> float:
        """When the last of ``size_bits`` has left, if they begin to flow at ``start_s``.

        The smallest such time; inf when the curve never delivers them.
        """
        bits = size_bits / self._factor
        barren = 0
        for begin_s, end_s in self._cuts_after(start_s):
            if start_s < begin_s:
                done_s = self._finish_uncut_s(start_s, bits)
                if done_s <= begin_s:
                    return done_s
                flown_bits = self._bits_uncut(start_s, begin_s)
                barren = 0 if flown_bits > 0 else barren + 1
                if done_s == math.inf or barren > BARREN_WINDOWS:
                    return math.inf
                bits -= flown_bits
            start_s = end_s
        return self._finish_uncut_s(start_s, bits) if start_s < math.inf else math.inf

    def bits_between(self, begin_s: float, end_s: float) -> float:
        """Bits that flow from ``begin_s`` to ``end_s``; 0 when that is not forward."""
        bits = 0.0
        for outage_s, back_s in self._cuts_after(begin_s):
            if outage_s >= end_s:
                break
            bits += self._bits_uncut(begin_s, outage_s)
            begin_s = back_s
        return self._factor * (bits + self._bits_uncut(begin_s, end_s))

    def rate_at(self, now_s: float) -> float:
        """Bit/s at ``now_s``; at an edge, what begins there."""
        return self.step_at(now_s)[0]

    def next_change_s(self, now_s: float) -> float:
        """The first moment after ``now_s`` at which the rate may differ; inf if there is none."""
        return self.step_at(now_s)[1]

    def step_at(self, now_s: float) -> tuple[float, float]:
        """Bit/s at ``now_s``, and the first moment after it at which that may differ, or inf."""
        cut_s = math.inf
        if self._cuts:
            passed = bisect_right(self._cuts, now_s)
            if passed < len(self._cuts):
                cut_s = self._cuts[passed]
            if passed % 2:
                return 0.0, self._back_s(now_s) if self.gaps is not None else cut_s
        if self.gaps is not None:
            gap_s, _ = next(self.gaps.after(now_s))
            if gap_s <= now_s:
                return 0.0, self._back_s(now_s)
            cut_s = min(cut_s, gap_s)
        steps = self._steps
        edges, ends, period_s = steps.edges, steps.ends, self.period_s
        if len(edges) == 1:
            return steps.rates[0] * self._factor, cut_s
        lap_s, local_s = self._lap(now_s)
        local_s += EDGE_FRACTION * (now_s + self._entry_s)
        if period_s is not None and local_s >= period_s:
            lap_s, local_s = lap_s + period_s, 0.0
        step = int(local_s * steps.steps_per_s)  # right where all steps are as long
        if step >= len(edges) or not edges[step] <= local_s < ends[step]:
            step = bisect_right(edges, local_s) - 1
        change_s = lap_s + ends[step]
        return steps.rates[step] * self._factor, change_s if change_s < cut_s else cut_s

    @property
    def constant_bps(self) -> float | None:
        """The rate of a curve that never changes and is never cut; None for any other."""
        steady = len(self._steps.edges) == 1 and not self._cuts and self.gaps is None
        return self._steps.rates[0] * self._factor if steady else None

    def next_stop(
        self, begin_s: float, end_s: float, longer_than_s: float
    ) -> tuple[float, float] | None:
        """When nothing moves for longer than this, first, and when it moves again.

        Only the time from ``begin_s`` on counts; the stop begins before ``end_s``. None if there
        is no such stop. Walks over the changes in between.
        """
        stop_s, now_s = math.inf, begin_s
        while now_s < math.inf:
            bps, change_s = self.step_at(now_s)
            if bps == 0:
                stop_s = min(stop_s, now_s)
            elif now_s - stop_s > longer_than_s:
                return stop_s, now_s
            else:
                stop_s = math.inf
            if stop_s == math.inf and change_s >= end_s:
                return None
            now_s = change_s
        return None

    def dead_from_s(self) -> float:
        """The moment after which nothing ever flows again; inf for a link that recovers."""
        if self.outages and self.outages[-1][1] == math.inf:
            return min(self.outages[-1][0], self._steps.dead_from_s)
        return self._steps.dead_from_s

    def limited(self, kept_fraction: float, cap_bps: float = math.inf) -> "RateCurve":
        """This curve with every rate times ``kept_fraction``, and none above ``cap_bps``."""
        factor = self._factor * kept_fraction
        if factor > 0 and cap_bps >= self._steps.peak_bps * factor:
            return self._derived(self._steps, self._entry_s, factor)
        rate_bps = np.minimum(self._steps.rate_bps * factor, cap_bps)
        lower = _Steps(self._steps.edge_s, rate_bps, self.period_s)
        return self._derived(lower, self._entry_s, 1.0)

    def cut(self, outages: Sequence[tuple[float, float]], gaps: Gaps | None = None) -> "RateCurve":
        """This curve with ``outages`` and ``gaps`` in place of its own."""
        curve = RateCurve.__new__(RateCurve)
        curve._fill(
            self._steps, self.period_s, tuple(outages), self._entry_s, self._factor, gaps=gaps
        )
        return curve

    def outages_until(self, end_s: float) -> list[tuple[float, float]]:
        """All windows of outages and gaps that begin before ``end_s``, ascending."""
        return list(takewhile(lambda window: window[0] < end_s, self._cuts_after(0.0)))

    def shifted(self, by_s: float) -> "RateCurve":
        """This looping curve, entered ``by_s`` after its beginning."""
        if self.period_s is None:
            raise LinkError("only a curve with a period can be shifted")
        entry_s = (self._entry_s + by_s) % self.period_s
        return self._derived(self._steps, entry_s, self._factor)

    def _fill(
        self,
        steps: _Steps,
        period_s: float | None,
        outages: Outages,
        entry_s: float = 0.0,
        factor: float = 1.0,
        *,
        gaps: Gaps | None = None,
    ) -> None:
        _check_outages(outages)
        self._steps = steps
        self.outages = outages
        self.gaps = gaps
        # Plain floats: arithmetic with numpy's is several times as slow, and they spread.
        self._cuts = tuple(float(edge_s) for outage in outages for edge_s in outage)
        self.period_s = None if period_s is None else float(period_s)
        self._entry_s = float(entry_s)
        self._factor = float(factor)

    def _derived(self, steps: _Steps, entry_s: float, factor: float) -> "RateCurve":
        curve = RateCurve.__new__(RateCurve)
        curve._fill(steps, self.period_s, self.outages, entry_s, factor, gaps=self.gaps)
        return curve

    def _cuts_after(self, now_s: float) -> Iterable[tuple[float, float]]:
        """Windows of outages and gaps that end after ``now_s``, ascending; endless with gaps."""
        once = self.outages[bisect_right(self._cuts, now_s) // 2 :]
        return once if self.gaps is None else merged(once, self.gaps.after(now_s))

    def _back_s(self, now_s: float) -> float:
        """The end of the outage that ``now_s`` lies in."""
        return next(iter(self._cuts_after(now_s)))[1]

    def _unrolled(self) -> tuple[F64, F64]:
        """Edges and rates as arrays, begun where this curve is entered."""
        edge_s, rate_bps = self._steps.edge_s, self._steps.rate_bps * self._factor
        entry_s, period_s = self._entry_s, self.period_s
        if entry_s == 0 or period_s is None:
            return edge_s, rate_bps
        first = bisect_right(self._steps.edges, entry_s) - 1
        later_s, earlier_s = edge_s[first + 1 :] - entry_s, edge_s[:first] + period_s - entry_s
        rolled_s = np.concatenate([[0.0], later_s, earlier_s])
        rates = np.concatenate([rate_bps[first:], rate_bps[:first]])
        wrapped_s = edge_s[first] + period_s - entry_s
        if wrapped_s < period_s:  # entered inside a step: its beginning comes last
            rolled_s, rates = np.append(rolled_s, wrapped_s), np.append(rates, rates[0])
        return rolled_s, rates

    def _lap(self, now_s: float) -> tuple[float, float]:
        """Start of the loop that ``now_s`` falls in, and the time since then."""
        period_s = self.period_s
        if period_s is None:
            return 0.0, now_s
        entry_s = self._entry_s
        lap_s = (now_s + entry_s) // period_s * period_s - entry_s
        local_s = now_s - lap_s
        if local_s < 0.0:
            return lap_s, 0.0
        return lap_s, local_s if local_s < period_s else period_s

    def _bits_until(self, local_s: float) -> float:
        steps = self._steps
        step = bisect_right(steps.edges, local_s) - 1
        return steps.sums[step] + steps.rates[step] * (local_s - steps.edges[step])

    def _bits_uncut(self, begin_s: float, end_s: float) -> float:
        if begin_s >= end_s:
            return 0.0
        if len(self._steps.edges) == 1:
            return self._steps.rates[0] * (end_s - begin_s)
        begin_lap_s, begin_local_s = self._lap(begin_s)
        end_lap_s, end_local_s = self._lap(end_s)
        bits = self._bits_until(end_local_s) - self._bits_until(begin_local_s)
        if self.period_s is None:
            return bits
        laps = round((end_lap_s - begin_lap_s) / self.period_s)
        return bits + laps * self._steps.sums[-1]

    def _finish_uncut_s(self, start_s: float, bits: float) -> float:
        if bits <= 0:
            return start_s
        steps = self._steps
        lap_s, local_s = self._lap(start_s)
        step = bisect_right(steps.edges, local_s) - 1
        bps = steps.rates[step]
        end_s = steps.ends[step]
        if bps > 0 and bits <= bps * (end_s - local_s):
            return start_s + bits / bps
        if end_s == math.inf:
            return math.inf
        target_bits = steps.sums[step + 1] + (bits - bps * (end_s - local_s))
        return max(start_s, self._reach_s(lap_s, target_bits))

    def _reach_s(self, lap_s: float, target_bits: float) -> float:
        """When the integral since ``lap_s`` reaches ``target_bits`` > 0: the inverse of the sum."""
        steps = self._steps
        total_bits = steps.sums[-1]
        if self.period_s is not None:
            if total_bits == 0:
                return math.inf
            laps = max(0, math.ceil(target_bits / total_bits) - 1)
            lap_s += laps * self.period_s
            target_bits = min(target_bits - laps * total_bits, total_bits)
        elif target_bits > total_bits:
            bps, left_bits = steps.rates[-1], target_bits - total_bits
            return steps.edges[-1] + left_bits / bps if bps > 0 else math.inf
        step = max(0, bisect_left(steps.sums, target_bits) - 1)
        bps = steps.rates[step]
        into_s = (target_bits - steps.sums[step]) / bps if bps > 0 else 0.0
        return lap_s + steps.edges[step] + into_s


def steps(edge_s: ArrayLike, rate_bps: ArrayLike, period_s: float | None = None) -> RateCurve:
    """A curve from plain lists: ``steps([0, 10], [1e6, 0])`` is 1 Mbit/s that dies at 10 s."""
    return RateCurve(np.array(edge_s, np.float64), np.array(rate_bps, np.float64), period_s)


def _floats(values: F64) -> Sequence[float]:
    return memoryview(values)  # type: ignore[arg-type]


def _dead_from_s(edge_s: F64, rate_bps: F64, period_s: float | None) -> float:
    """The moment after which no step has a rate above 0; inf if there is none such."""
    alive = np.flatnonzero(rate_bps > 0)
    if alive.size == 0:
        return 0.0
    if period_s is not None or alive[-1] == rate_bps.size - 1:
        return math.inf
    return float(edge_s[alive[-1] + 1])


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
