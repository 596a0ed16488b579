"""What one would have run, had one known: the best fixed cell of a grid, and candidates for two.

Both are chosen on the very runs that they are compared on, so no strategy can be expected to beat
the first on a link that does not change. The second is the best schedule that was tried, not the
best there is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from statistics import median

from fedsys.telemetry.comparison import Row, Trial
from fedsys.telemetry.statistics import geometric_mean

FIXED, TWO_PARTS = "best fixed plan", "best two-part plan"
SWITCH_FRACTIONS = (1 / 3, 2 / 3)
"""Where a schedule may change, as shares of the best fixed cell's time to target."""
LEADERS = 2
"""Cells that are tried as the first part, and as the second."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """One cell until ``switch_s``, another from the next round on."""

    first: str
    second: str
    """Labels of the two cells."""
    switch_s: float


def best_row(rows: Sequence[Row]) -> Row | None:
    """The row with the least time to target; None where no run of any row got there.

    Fewest runs that missed the target first, then the geometric mean over seeds, with runs that
    missed it at their horizon. Only rows with as many seeds as the fullest count.
    """
    most = max((len(row.trials) for row in rows), default=0)
    able = [row for row in rows if row.reached and len(row.trials) == most]
    return min(able, key=_rank, default=None)


def schedules(rows: Sequence[Row]) -> list[Schedule]:
    """Two-part schedules worth a run, from what single cells did; none where no cell got there.

    The first part is one of the cells that are ahead at the switch, the second one of those that
    get to the target soonest.
    """
    best = best_row(rows)
    if best is None:
        return []
    length_s = best.to_target("seconds").median
    last = sorted((row for row in rows if row.reached), key=_rank)[:LEADERS]
    found = []
    for fraction in SWITCH_FRACTIONS:
        at_s = round(fraction * length_s, 3)
        first = sorted(rows, key=lambda row: _metric_at(row, at_s), reverse=True)[:LEADERS]
        found += [
            Schedule(one.label, two.label, at_s)
            for one, two in product(first, last)
            if one.label != two.label
        ]
    return found


def _rank(row: Row) -> tuple[int, float]:
    values = [max(score.value, 1e-9) for score in row.scores("seconds").values()]
    return len(row.trials) - row.reached, geometric_mean(values)


def _metric_at(row: Row, at_s: float) -> float:
    """Median over seeds of the best metric by ``at_s``."""
    return median(_best_by(trial, at_s) for trial in row.trials.values())


def _best_by(trial: Trial, at_s: float) -> float:
    metrics = [r.test_metric for r in trial.records if r.end_s <= at_s]
    return max((metric for metric in metrics if metric is not None), default=0.0)
