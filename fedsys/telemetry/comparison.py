"""Strategies over the same seeds, side by side: one row each, ratios to the first."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from fedsys.errors import ConfigError
from fedsys.telemetry.statistics import (
    Interval,
    Score,
    Spread,
    paired_difference,
    paired_ratio,
    spread,
)
from fedsys.telemetry.summary import Cost, Summary, summarise
from fedsys.types import RoundRecord

MEASURES = ("seconds", "uplink_bytes", "downlink_bytes", "rounds")


@dataclass(frozen=True, slots=True)
class Trial:
    """One finished (or interrupted) run of a comparison."""

    records: Sequence[RoundRecord]
    stopped_by: str = ""


@dataclass(frozen=True)
class Row:
    """One strategy over all its seeds."""

    label: str
    trials: Mapping[int, Trial]
    target: float | None

    @cached_property
    def summaries(self) -> dict[int, Summary]:
        """By seed, ascending."""
        return {
            seed: summarise(self.trials[seed].records, self.target, self.trials[seed].stopped_by)
            for seed in sorted(self.trials)
        }

    @property
    def reached(self) -> int:
        """How many of the runs met the target."""
        return sum(s.at_target is not None for s in self.summaries.values())

    def scores(self, measure: str) -> dict[int, Score]:
        """Cost to the target by seed, in one measure; the horizon where it was not met."""
        return {seed: _score(s, measure) for seed, s in self.summaries.items()}

    def to_target(self, measure: str) -> Spread:
        """Cost to the target over seeds."""
        return spread(list(self.scores(measure).values()))

    @cached_property
    def finals(self) -> dict[int, float]:
        """Final metric by seed, of the runs that were evaluated."""
        return {
            seed: s.final_metric for seed, s in self.summaries.items() if s.final_metric is not None
        }

    def final(self) -> Spread | None:
        """Final metric over seeds; None when no run was evaluated."""
        return spread([Score(value) for value in self.finals.values()]) if self.finals else None


@dataclass(frozen=True)
class Comparison:
    """The rows of one comparison; the first is the baseline."""

    name: str
    target: float | None
    rows: Sequence[Row]

    @property
    def seeds(self) -> list[int]:
        """Every seed of every row."""
        return sorted({seed for row in self.rows for seed in row.trials})

    def ratio(self, row: Row, measure: str) -> Interval | None:
        """``row`` over the baseline in cost to the target, over the seeds that both have."""
        ours, base = row.scores(measure), self.rows[0].scores(measure)
        pairs = sorted(ours.keys() & base.keys())
        if self.target is None or not pairs:
            return None
        return paired_ratio([ours[s] for s in pairs], [base[s] for s in pairs])

    def gain(self, row: Row) -> Interval | None:
        """``row`` minus the baseline in final metric, over the seeds that both have."""
        pairs = sorted(row.finals.keys() & self.rows[0].finals.keys())
        if not pairs:
            return None
        return paired_difference([row.finals[s] - self.rows[0].finals[s] for s in pairs])


def compare(
    name: str, target: float | None, trials: Mapping[str, Mapping[int, Trial]]
) -> Comparison:
    """Line up ``trials`` (label -> seed -> run), baseline first; a label without runs is out."""
    rows = [Row(label, by_seed, target) for label, by_seed in trials.items() if by_seed]
    if not rows:
        raise ConfigError(f"{name}: no run to compare")
    return Comparison(name, target, rows)


def comparison_json(comparison: Comparison, verdict: Sequence[str]) -> dict[str, Any]:
    """What ``--json`` writes."""
    return {
        "experiment": comparison.name,
        "target": comparison.target,
        "seeds": comparison.seeds,
        "rows": [_row_json(comparison, row) for row in comparison.rows],
        "verdict": list(verdict),
    }


def _row_json(comparison: Comparison, row: Row) -> dict[str, Any]:
    """Medians; null where the median run did not reach the target, its horizon beside it.

    A ratio is null where no pair of runs tells anything about it.
    """
    final = row.final()
    found: dict[str, Any] = {
        "strategy": row.label,
        "runs": len(row.trials),
        "reached_target": row.reached,
        "final_accuracy": final.median if final else None,
        "final_accuracy_range": [final.low, final.high] if final else None,
        "final_accuracy_gain": _interval_json(comparison.gain(row)),
        "stopped_by": {seed: s.stopped_by for seed, s in row.summaries.items()},
    }
    for measure in MEASURES:
        cost, key = row.to_target(measure), f"{measure}_to_target"
        found[key] = None if cost.median_censored else cost.median
        found[f"{key}_at_least"] = cost.median
        found[f"{key}_range"] = [cost.low, cost.high]
        ratio = comparison.ratio(row, measure)
        name = measure.removesuffix("_bytes")
        found[f"{name}_ratio"] = ratio.mean if ratio and not ratio.unknown else None
        found[f"{name}_ratio_interval"] = _interval_json(ratio)
    return found


def _interval_json(interval: Interval | None) -> dict[str, Any] | None:
    return asdict(interval) if interval else None


def _score(summary: Summary, measure: str) -> Score:
    cost: Cost = summary.at_target or summary.total
    return Score(float(getattr(cost, measure)), censored=summary.at_target is None)
