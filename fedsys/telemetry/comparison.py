"""Strategies over the same seeds, side by side: one row each, ratios to the first."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from statistics import median
from typing import Any

from fedsys.config.schema import Budget
from fedsys.errors import ConfigError
from fedsys.telemetry.statistics import (
    Interval,
    Score,
    Spread,
    paired_difference,
    paired_ratio,
    spread,
)
from fedsys.telemetry.summary import Summary, summarise
from fedsys.types import RoundRecord

AT_TARGET = "target"
"""``stopped_by`` of a run that ended when it met its target."""
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
    horizon: Mapping[str, float] = field(default_factory=dict)
    """Measure to what a run that missed the target is scored at, whatever ended it before."""

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
        least = self.horizon.get(measure, 0.0)
        return {seed: _score(s, measure, least) for seed, s in self.summaries.items()}

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
    oracles: Mapping[str, Row] = field(default_factory=dict)
    """What hindsight would have run, by the kind of hindsight; see ``telemetry.hindsight``."""
    share: float | None = None
    """The target is this share of the best; None where it was given as a level."""

    @property
    def seeds(self) -> list[int]:
        """Every seed of every row."""
        return sorted({seed for row in self.rows for seed in row.trials})

    def ratio(self, row: Row, measure: str, base: Row | None = None) -> Interval | None:
        """``row`` over ``base`` in cost to the target, over the seeds that both have.

        None for ``base`` is the baseline.
        """
        ours, theirs = row.scores(measure), (base or self.rows[0]).scores(measure)
        pairs = sorted(ours.keys() & theirs.keys())
        if self.target is None or not pairs:
            return None
        return paired_ratio([ours[s] for s in pairs], [theirs[s] for s in pairs])

    def gain(self, row: Row) -> Interval | None:
        """``row`` minus the baseline in final metric, over the seeds that both have.

        Where one of them stopped at the target, the metric tells only how far its last round went
        beyond, and such a pair is left out.
        """
        base = self.rows[0]
        pairs = sorted(
            seed
            for seed in row.finals.keys() & base.finals.keys()
            if AT_TARGET not in (row.trials[seed].stopped_by, base.trials[seed].stopped_by)
        )
        if not pairs:
            return None
        return paired_difference([row.finals[s] - self.rows[0].finals[s] for s in pairs])


def compare(
    name: str,
    target: float | None,
    trials: Mapping[str, Mapping[int, Trial]],
    *,
    budget: Budget | None = None,
    share: float | None = None,
) -> Comparison:
    """Line up ``trials`` (label -> seed -> run), baseline first; a label without runs is out.

    ``budget`` gives the horizon at which runs that missed the target are scored; without it they
    count with what they spent. With ``share`` the target is that share of the best.
    """
    if share is not None:
        target = share_of_best(share, trials)
    horizon = _horizon(budget)
    rows = [Row(label, by_seed, target, horizon) for label, by_seed in trials.items() if by_seed]
    if not rows:
        raise ConfigError(f"{name}: no run to compare")
    return Comparison(name, target, rows, share=share)


def share_of_best(share: float, trials: Mapping[str, Mapping[int, Trial]]) -> float | None:
    """``share`` of the best metric that any strategy reached, its median over the seeds.

    None where nothing was evaluated.
    """
    bests = []
    for by_seed in trials.values():
        found = [summarise(trial.records, None).best_metric for trial in by_seed.values()]
        known = [metric for metric in found if metric is not None]
        if known:
            bests.append(median(known))
    return share * max(bests) if bests else None


def _horizon(budget: Budget | None) -> dict[str, float]:
    horizon = {}
    if budget is not None and budget.seconds is not None:
        horizon["seconds"] = budget.seconds
    if budget is not None and budget.uplink_mb is not None:
        horizon["uplink_bytes"] = 1e6 * budget.uplink_mb
    return horizon


def comparison_json(comparison: Comparison, verdict: Sequence[str]) -> dict[str, Any]:
    """What ``--json`` writes."""
    return {
        "experiment": comparison.name,
        "target": comparison.target,
        "target_share": comparison.share,
        "seeds": comparison.seeds,
        "rows": [_row_json(comparison, row) for row in comparison.rows],
        "oracles": {kind: _row_json(comparison, row) for kind, row in comparison.oracles.items()},
        "verdict": list(verdict),
    }


def _row_json(comparison: Comparison, row: Row) -> dict[str, Any]:
    """Medians; null where the median run did not reach the target, what it is scored at beside it.

    That is a bound unless a run is assumed to have spent more than it did.

    A ratio is null where no pair of runs tells anything about it.
    """
    final = row.final()
    found: dict[str, Any] = {
        "strategy": row.label,
        "runs": len(row.trials),
        "reached_target": row.reached,
        "final_accuracy": final.median if final else None,
        "final_accuracy_range": [final.low, final.high] if final else None,
        "final_accuracy_gain": interval_json(comparison.gain(row)),
        "seconds_over_oracle": {
            kind: interval_json(comparison.ratio(row, "seconds", oracle))
            for kind, oracle in comparison.oracles.items()
        },
        "stopped_by": {seed: s.stopped_by for seed, s in row.summaries.items()},
    }
    for measure in MEASURES:
        cost, key = row.to_target(measure), f"{measure}_to_target"
        found[key] = None if cost.median_censored else cost.median
        found[f"{key}_scored"] = cost.median
        found[f"{key}_assumed"] = cost.assumed
        found[f"{key}_range"] = [cost.low, cost.high]
        ratio = comparison.ratio(row, measure)
        name = measure.removesuffix("_bytes")
        found[f"{name}_ratio"] = ratio.mean if ratio and not ratio.unknown else None
        found[f"{name}_ratio_interval"] = interval_json(ratio)
    return found


def interval_json(interval: Interval | None) -> dict[str, Any] | None:
    """An interval for ``--json``; null where there is none."""
    return asdict(interval) if interval else None


def _score(summary: Summary, measure: str, least: float) -> Score:
    if summary.at_target is not None:
        return Score(float(getattr(summary.at_target, measure)))
    spent = float(getattr(summary.total, measure))
    return Score(max(spent, least), censored=True, assumed=spent < least)
