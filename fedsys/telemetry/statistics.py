"""What several seeds allow us to say: spreads, paired ratios and their intervals.

Runs are paired by seed, because split and links of a seed are the same for every strategy. A run
that never met its target is censored: its figure is a lower bound and may never turn into a win.
Where another budget than the horizon's ended it, its figure is the horizon all the same, so that
nobody gains by giving up early; what it would have taken may then be more or less.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedsys.rng import rng_for
from fedsys.types import F64

MIN_PAIRS = 3
"""With fewer pairs no difference is called significant."""
_RESAMPLES = 10_000
_STUDENT_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Student's 97.5 % quantiles for 1 to 9 degrees of freedom."""
_NORMAL_975 = 1.959964
_TINY = 1e-9
_MAX_LOG = 700.0
"""Still finite after ``exp``."""

Bound = Literal["", "<", ">", "~"]


@dataclass(frozen=True, slots=True)
class Score:
    """One run's cost to the target, or its horizon where it did not get there."""

    value: float
    censored: bool = False
    assumed: bool = False
    """It ended sooner than at the horizon, by another budget: the value is a rule and no bound."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and extremes over seeds."""

    median: float
    low: float
    high: float
    median_censored: bool = False
    """The median run did not get there."""
    high_censored: bool = False
    low_censored: bool = False
    assumed: bool = False
    """A censored run counts with more than it spent."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over pairs with its 95 % interval."""

    mean: float
    low: float
    high: float
    pairs: int
    significant: bool
    """It is not zero (a difference) or not one (a ratio), as far as these pairs can tell."""
    bound: Bound = ""
    """Censored runs make the mean a bound: the truth is smaller (<), larger (>) or either (~)."""
    identical: bool = False
    """No pair differed at all."""

    @property
    def unknown(self) -> bool:
        """Neither side of any pair met the target: the tie is by rule, not by measurement."""
        return self.identical and self.bound == "~"


def spread(scores: Sequence[Score]) -> Spread:
    """Median and extremes; a censored run counts as no faster than any run that got there."""
    slowest = max((score.value for score in scores if not score.censored), default=0.0)
    ranked = sorted(
        (score.censored, max(score.value, slowest) if score.censored else score.value)
        for score in scores
    )
    (_, left), (censored, right) = ranked[(len(ranked) - 1) // 2], ranked[len(ranked) // 2]
    return Spread(
        median=(left + right) / 2,
        low=ranked[0][1],
        high=ranked[-1][1],
        median_censored=censored,
        high_censored=ranked[-1][0],
        low_censored=ranked[0][0],
        assumed=any(score.assumed for score in scores),
    )


def geometric_mean(values: Sequence[float]) -> float:
    """The mean for ratios: twice as fast and twice as slow cancel out."""
    return math.exp(math.fsum(math.log(value) for value in values) / len(values))


def paired_ratio(ours: Sequence[Score], base: Sequence[Score], seed: int = 0) -> Interval:
    """Geometric mean of ours over base, pair by pair, with its interval."""
    logs = [_log_ratio(a, b) for a, b in zip(ours, base, strict=True)]
    return replace(_ratio_of(logs, seed), bound=_bound(ours, base))


def student_975(freedom: int) -> float:
    """Student's 97.5 % quantile; from 10 degrees of freedom on by its expansion, to 0.002."""
    if freedom <= len(_STUDENT_975):
        return _STUDENT_975[freedom - 1]
    z = _NORMAL_975
    first, second = z**3 + z, 5 * z**5 + 16 * z**3 + 3 * z
    return z + first / (4 * freedom) + second / (96 * freedom**2)


def pooled_ratio(ratios: Sequence[float], seed: int = 0) -> Interval:
    """Geometric mean of ratios, one a scene, with its interval over scenes.

    Scenes are what is resampled: seeds within a scene tell nothing of the next scene.
    """
    return _ratio_of([math.log(max(ratio, _TINY)) for ratio in ratios], seed)


def paired_difference(differences: Sequence[float], seed: int = 0) -> Interval:
    """Mean of the differences, one pair or more, with its interval.

    Over ten pairs or fewer a bootstrap is too sure of itself, so there the interval is at least
    Student's. One pair has no interval: its ends are the mean.
    """
    values = np.asarray(differences, np.float64)
    mean = math.fsum(differences) / len(differences)
    low, high = _bootstrap(values, seed)
    if 2 <= len(values) <= len(_STUDENT_975) + 1:
        margin = student_975(len(values) - 1) * float(values.std(ddof=1)) / math.sqrt(len(values))
        low, high = min(low, mean - margin), max(high, mean + margin)
    significant = len(values) >= MIN_PAIRS and (low > 0 or high < 0)
    return Interval(mean, low, high, len(values), significant, identical=not values.any())


def _ratio_of(logs: Sequence[float], seed: int) -> Interval:
    found = paired_difference(logs, seed)
    return replace(
        found,
        mean=math.exp(found.mean),
        low=math.exp(max(found.low, -_MAX_LOG)),
        high=math.exp(min(found.high, _MAX_LOG)),
    )


def _bootstrap(values: F64, seed: int) -> tuple[float, float]:
    """Percentile interval of the mean (Efron 1979)."""
    if np.all(values == values[0]):
        return float(values[0]), float(values[0])
    rng = rng_for(seed, "bootstrap")
    drawn = rng.integers(0, values.size, (_RESAMPLES, values.size))
    low, high = np.quantile(values[drawn].mean(axis=1), [0.025, 0.975])
    return float(low), float(high)


def _log_ratio(ours: Score, base: Score) -> float:
    """Log of the ratio of a pair; what is known only by a bound is no better than a draw."""
    if ours.censored and base.censored:
        return 0.0
    log = math.log(max(ours.value, _TINY)) - math.log(max(base.value, _TINY))
    if ours.censored:
        return max(0.0, log)
    return min(0.0, log) if base.censored else log


def _bound(ours: Sequence[Score], base: Sequence[Score]) -> Bound:
    kinds = {(a.censored, b.censored) for a, b in zip(ours, base, strict=True)}
    too_low, too_high = (True, False) in kinds, (False, True) in kinds
    assumed = any(score.assumed for score in (*ours, *base))
    if (too_low and too_high) or (True, True) in kinds or assumed:
        return "~"
    if too_low:
        return ">"
    return "<" if too_high else ""
