"""Rate control: which step and rounding of a quantizer meet a bit budget with least error.

Everything is computed from one sorted sample of magnitudes with running sums, so that trying a
step costs a few binary searches instead of a pass over the data.
"""

from dataclasses import dataclass

import numpy as np

from fedsys.codecs._entropy import bucket_start
from fedsys.codecs._levels import MANTISSA, Quantizer
from fedsys.types import F32, I64

_OFFSETS = (0.5, 0.44, 0.38, 0.32, 0.26, 0.2, 0.14)
_TRIES = 16
_CLOSE_FRACTION = 5e-4
"""A step whose rate falls short of the budget by no more than this is not improved upon."""

_FINEST_STEP = 2.0**-26
_BUCKETS = np.arange(8 * 32)
_STARTS = bucket_start(_BUCKETS, MANTISSA)
_WIDTHS = np.maximum((_BUCKETS >> MANTISSA) - 1, 0)


@dataclass(frozen=True, slots=True)
class Trial:
    """What one quantizer does to the sample."""

    quantizer: Quantizer
    bits: float
    """Bits per value: entropy of the buckets, signs and low bits."""
    error: float
    """Mean squared error with reconstruction at the centroids."""
    nonzero_fraction: float
    buckets: int
    """Magnitude buckets that a code table must name."""


class SortedSample:
    """Magnitudes in ascending order with running sums of themselves and of their squares."""

    def __init__(self, magnitudes: F32) -> None:
        """Sort a copy of ``magnitudes``, which holds at least one value."""
        self.values = np.sort(magnitudes)
        wide = self.values.astype(np.float64)
        self.sums = np.concatenate([[0.0], np.cumsum(wide)])
        self.squares = np.concatenate([[0.0], np.cumsum(wide**2)])
        self.top = float(wide[-1])

    def fit(self, bits: float) -> Trial:
        """The quantizer of least error among those that take about ``bits`` per value.

        The error falls, then rises as the zero bin widens, so the first rise ends the search.
        """
        best = self._at_rate(_OFFSETS[0], bits)
        for offset in _OFFSETS[1:]:
            trial = self._at_rate(offset, bits)
            too_many = trial.bits > 1.01 * bits >= best.bits
            if trial.error >= best.error or too_many:
                break
            best = trial
        return best

    def attempt(self, quantizer: Quantizer) -> Trial:
        """Rate and error of ``quantizer`` on the sample."""
        levels = int(self.top / quantizer.step + quantizer.offset)
        starts = _STARTS[: np.searchsorted(_STARTS, levels, side="right")]
        edges = self._cuts(starts[1:], quantizer)
        counts, sums, squares = (np.diff(t) for t in (edges, self.sums[edges], self.squares[edges]))
        total = self.values.size
        nonzero = total - int(counts[0])
        width = _WIDTHS[: starts.size]
        share = counts[counts > 0] / total
        entropy = float(-(share * np.log2(share)).sum())
        bits = entropy + (nonzero + float((counts * width).sum())) / total
        spread = squares - sums**2 / np.maximum(counts, 1)
        fine = np.minimum(spread, counts * quantizer.step**2 / 12)
        error = float(np.where(width > 0, fine, spread)[1:].sum() + squares[0]) / total
        return Trial(quantizer, bits, error, nonzero / total, starts.size)

    def _cuts(self, levels: I64, quantizer: Quantizer) -> I64:
        """Positions in the sample at which each of ``levels`` starts, between 0 and its end."""
        thresholds = (levels - quantizer.offset) * quantizer.step
        inner = np.searchsorted(self.values, thresholds.astype(np.float32))
        return np.concatenate([[0], inner, [self.values.size]])

    def _at_rate(self, offset: float, bits: float) -> Trial:
        """The coarsest step within ``bits``; the largest value is never dropped.

        Regula falsi (Illinois) on the logarithms of step and rate, which are nearly a line.
        """
        low, high = np.log(self.top * _FINEST_STEP), np.log(self.top / (1 - offset) * 0.999)
        best = self.attempt(Quantizer(float(np.exp(high)), offset))
        over, under = np.log(26 / bits), np.log(best.bits / bits)
        moved = 0
        for _ in range(_TRIES):
            if best.bits > (1 - _CLOSE_FRACTION) * bits:
                break
            middle = low + (high - low) * over / (over - under)
            trial = self.attempt(Quantizer(float(np.exp(middle)), offset))
            excess = np.log(trial.bits / bits)
            if excess > 0:
                under = under / 2 if moved > 0 else under
                low, over, moved = middle, excess, 1
            else:
                over = over / 2 if moved < 0 else over
                high, under, best, moved = middle, excess, trial, -1
        return best
