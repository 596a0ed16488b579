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
_BISECTIONS = 15
_FINEST_STEP = 2.0**-26
_BUCKETS = 8 * 32


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
        """The quantizer of least error among those that take about ``bits`` per value."""
        trials = [self._at_rate(offset, bits) for offset in _OFFSETS]
        affordable = [trial for trial in trials if trial.bits <= 1.01 * bits] or trials
        return min(affordable, key=lambda trial: trial.error)

    def attempt(self, quantizer: Quantizer) -> Trial:
        """Rate and error of ``quantizer`` on the sample."""
        levels = int(self.top / quantizer.step + quantizer.offset)
        starts = bucket_start(np.arange(_BUCKETS), MANTISSA)
        starts = starts[starts <= levels]
        edges = self._cuts(starts[1:], quantizer)
        counts, sums, squares = (np.diff(t) for t in (edges, self.sums[edges], self.squares[edges]))
        total = self.values.size
        nonzero = total - int(counts[0])
        width = np.maximum((np.arange(starts.size) >> MANTISSA) - 1, 0)
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
        """The coarsest step within ``bits``, by bisection; the largest value is never dropped."""
        low, high = np.log(self.top * _FINEST_STEP), np.log(self.top / (1 - offset) * 0.999)
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            if self.attempt(Quantizer(float(np.exp(middle)), offset)).bits > bits:
                low = middle
            else:
                high = middle
        return self.attempt(Quantizer(float(np.exp(high)), offset))
