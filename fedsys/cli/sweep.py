"""``fedsys sweep``: one experiment over the values of some settings, with the knee marked."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer

from fedsys.cli.axes import Axis, combinations, parse_axes
from fedsys.cli.batch import Batch, batch_of, check_cells, report_faults, trials_of
from fedsys.cli.cells import MOST_SEEDS, Cell, Variant, cells_of, require_not_overridden
from fedsys.cli.tables import check_writable, comparison_table, console, save_json, write_json
from fedsys.config.load import load_experiment
from fedsys.config.schema import Experiment
from fedsys.errors import ConfigError
from fedsys.telemetry.comparison import MEASURES, Comparison, Row, compare, comparison_json
from fedsys.telemetry.figures import number
from fedsys.telemetry.hindsight import best_row
from fedsys.telemetry.knee import knee
from fedsys.telemetry.verdict import cost_words, pairs_words, told_apart


def sweep(
    file: Annotated[Path, typer.Argument(help="The experiment, a TOML file.")],
    axes: Annotated[
        list[str], typer.Argument(help="key=a,b,c: a setting and its values; all combinations run.")
    ],
    by: Annotated[
        str, typer.Option(help=f"Cost whose knee is marked: {', '.join(MEASURES)}.")
    ] = "seconds",
    seeds: Annotated[
        int | None, typer.Option(min=1, max=MOST_SEEDS, help="Paired seeds from run.seed on.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="key=value, overrides the file.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Runs at the same time.")] = None,
    out: Annotated[Path, typer.Option(help="Folder that run folders go into.")] = Path("runs"),
    json: Annotated[Path | None, typer.Option(help="Also write the table as JSON.")] = None,
) -> None:
    """Run an experiment with each value of a setting, and say where more of it stops paying.

    Runs that are finished are kept, so that values can be added later.
    """
    check_writable(json, "--json")
    experiment = load_experiment(file, set_ or [])
    plan = plan_sweep(experiment, axes, by)
    require_not_overridden(set_ or [], plan.keys, "the sweep")
    folder = out / f"{experiment.run.name}-sweep"
    variants = list(plan.variants.values())
    seeds = seeds or experiment.compare.seeds
    cells = cells_of(experiment, variants, folder, seeds=seeds, what="sweep")
    check_cells(cells)
    with batch_of(workers) as batch:
        run_sweep(experiment, plan, cells, batch, folder=folder, json=json)


@dataclass(frozen=True, slots=True)
class Sweep:
    """Settings, their combinations, and the cost that is looked at."""

    axes: Sequence[Axis]
    variants: Mapping[tuple[Any, ...], Variant]
    measure: str

    @property
    def keys(self) -> list[str]:
        """Every key that it sets."""
        return [key for axis in self.axes for key in axis.keys]

    def along(self, axis: int, at: Sequence[Any]) -> list[str]:
        """Labels over the values of one axis, the others as in ``at``."""
        values: list[Sequence[Any]] = [(value,) for value in at]
        values[axis] = self.axes[axis].values
        return [self.variants[one][0] for one in product(*values)]


def plan_sweep(experiment: Experiment, axes: Sequence[str], by: str) -> Sweep:
    """The sweep that a command line asks for; ConfigError where it makes none."""
    if by not in MEASURES:
        raise ConfigError(f"--by {by}: choose from {', '.join(MEASURES)}")
    if experiment.run.target is None:
        raise ConfigError("sweep: costs are those to the target; set run.target")
    parsed = parse_axes(axes)
    keys = [key for axis in parsed for key in axis.keys]
    for key in keys:
        if keys.count(key) > 1:
            raise ConfigError(f"sweep: {key} is given twice")
        if key in ("run.seed", "run.name", "run.target") or key.startswith("compare"):
            raise ConfigError(f"sweep: {key} has to be the same for all runs; use --set")
    return Sweep(parsed, combinations(parsed), by)


def run_sweep(
    experiment: Experiment,
    plan: Sweep,
    cells: Sequence[Cell],
    batch: Batch,
    *,
    folder: Path,
    json: Path | None,
) -> None:
    """Run what is not finished, then print the table and the knees and write the pictures."""
    screen = console()
    faults = batch.run(screen, cells)
    trials = {label: runs for label, runs in trials_of(cells).items() if runs}
    if trials:
        run = experiment.run
        comparison = compare(f"{run.name}-sweep", run.target, trials, budget=run.budget)
        lines, knees = judge(comparison, plan)
        screen.print(comparison_table(comparison, screen.width))
        for line in lines:
            screen.print(line)
        _write(folder / "report.html", comparison, plan, knees)
        content = comparison_json(comparison, lines) | {"by": plan.measure, "knees": knees}
        save_json(folder / "comparison.json", content)
        write_json(json, content)
        screen.print(f"report: {folder / 'report.html'}", soft_wrap=True)
    report_faults(screen, faults)


def judge(comparison: Comparison, plan: Sweep) -> tuple[list[str], dict[str, Any]]:
    """What the sweep says, and the value at the knee of each setting that has one."""
    rows = {row.label: row for row in comparison.rows}
    best = best_row(comparison.rows)
    if best is None:
        return ["No value reaches the target."], {}
    at = next(values for values, (label, _) in plan.variants.items() if label == best.label)
    lines, knees = [_best_words(comparison, best)], dict[str, Any]()
    for place, axis in enumerate(plan.axes):
        labels = plan.along(place, at)
        others = [f"{a.name} = {at[i]}" for i, a in enumerate(plan.axes) if i != place]
        beside = f" (with {', '.join(others)})" if others else ""
        along = [rows[label] for label in labels if label in rows]
        found = _knee(comparison, along, axis, plan.measure)
        if found is None:
            lines.append(f"{axis.name}: no knee{beside}.")
            continue
        knees[axis.name] = axis.values[found]
        lines.append(
            f"{axis.name}: knee at {axis.values[found]} of {axis.values[0]} to {axis.values[-1]}"
            f"{beside}{_beyond(comparison, rows[labels[found]], best, plan.measure)}."
        )
    return lines, knees


def _knee(comparison: Comparison, rows: Sequence[Row], axis: Axis, measure: str) -> int | None:
    """Place of the knee among the axis's values; None where they have none, or runs are missing.

    Costs are those over the first value's, seed by seed: medians would mix seeds.
    """
    if not axis.is_numeric or len(rows) < len(axis.values):
        return None
    ratios = [comparison.ratio(row, measure, rows[0]) for row in rows]
    costs = [math.inf if ratio is None or ratio.unknown else ratio.mean for ratio in ratios]
    costs[0] = 1.0
    return knee([float(value) for value in axis.values], costs)


def _best_words(comparison: Comparison, best: Row) -> str:
    """The soonest value, and how sure that is against the first."""
    first, alike = comparison.rows[0], told_apart(comparison, best)
    if best is first:
        return f"Soonest at the target: {best.label}, the first value{alike}."
    ratio = comparison.ratio(best, "seconds", first)
    if ratio is None:
        return f"Soonest at the target: {best.label}{alike}."
    words = cost_words(ratio, "time")
    return (
        f"Soonest at the target: {best.label}{alike}; against {first.label}, "
        f"{pairs_words(ratio.pairs)}: {words}."
    )


def _beyond(comparison: Comparison, row: Row, best: Row, measure: str) -> str:
    """What the best value still gains over the knee."""
    ratio = comparison.ratio(best, measure, row)
    if ratio is None or row is best:
        return ""
    name = measure.removesuffix("_bytes")
    return f"; {best.label}, which is soonest, takes {number(ratio.mean)}x its {name}"


def _write(path: Path, comparison: Comparison, plan: Sweep, knees: Mapping[str, Any]) -> None:
    """The report, with a picture of each setting at the best values of the others."""
    from fedsys.telemetry.ratioplot import sweep_plot
    from fedsys.telemetry.report import write_report

    rows, best = {row.label: row for row in comparison.rows}, best_row(comparison.rows)
    pictures = []
    if best is not None:
        at = next(values for values, (label, _) in plan.variants.items() if label == best.label)
        for place, axis in enumerate(plan.axes):
            labels = plan.along(place, at)
            if all(label in rows for label in labels):
                costs = [rows[label].to_target(plan.measure) for label in labels]
                bend = axis.values.index(knees[axis.name]) if axis.name in knees else None
                name = f"{plan.measure.replace('_', ' ')} to target"
                pictures.append(sweep_plot(axis.name, axis.values, costs, name, bend))
    write_report(path, comparison, pictures)
