"""``fedsys report``: the page of one run or of many, made again from their folders."""

import json as json_format
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedsys.cli.cells import slug
from fedsys.cli.compare import COMPARISON
from fedsys.cli.execution import INTERRUPTED
from fedsys.cli.tables import check_writable, comparison_table, console, write_json
from fedsys.errors import ConfigError
from fedsys.telemetry.comparison import Comparison, Trial, compare, comparison_json
from fedsys.telemetry.runfolder import EXPERIMENT, RunFolder
from fedsys.telemetry.verdict import verdict


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of run folders.")],
    out: Annotated[Path | None, typer.Option(help="Where the page goes.")] = None,
    target: Annotated[
        float | None, typer.Option(max=1, help="Instead of the experiments' run.target.")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Also write the table as JSON.")] = None,
) -> None:
    """Write a page with table, verdict, plots and decisions; the first run is the baseline."""
    check_writable(out, "--out")
    check_writable(json, "--json")
    comparison, unfinished = read_comparison(runs, target)
    from fedsys.telemetry.report import write_report

    page = out or (runs[0] if len(runs) == 1 else runs[0].parent) / "report.html"
    write_report(page, comparison)
    lines = verdict(comparison)
    screen = console()
    screen.print(comparison_table(comparison, screen.width))
    for line in (*lines, *unfinished):
        screen.print(line, soft_wrap=True)
    screen.print(f"report: {page}", soft_wrap=True)
    write_json(json, comparison_json(comparison, lines))


def read_comparison(paths: Sequence[Path], target: float | None) -> tuple[Comparison, list[str]]:
    """The runs in ``paths``, those of one name in one row, and a line on what is not finished.

    Where there are several rows, that is in none of them: it would count as one that missed the
    target.
    """
    if target is not None and not 0 < target <= 1:
        raise ConfigError(f"--target {target:g}: must be above 0, at most 1")
    folders = [(run, names) for path in paths for run, names in _runs_in(path)]
    targets = {folder.experiment.run.target for folder, _ in folders}
    if target is None and len(targets) > 1:
        raise ConfigError("the runs have different targets; say which with --target")
    open_runs = [folder for folder, _ in folders if not folder.has_result]
    if len({label for _, label in folders}) > 1 and len(open_runs) < len(folders):
        folders = [(folder, label) for folder, label in folders if folder.has_result]
    budgets = {folder.experiment.run.budget for folder, _ in folders}
    trials: dict[str, dict[int, Trial]] = {}
    for folder, label in folders:
        seed = folder.experiment.run.seed
        if seed in trials.setdefault(label, {}):
            raise ConfigError(f"{folder.path}: a second run of '{label}' with seed {seed}")
        stopped_by = (folder.result() or {}).get("stopped_by", INTERRUPTED)
        trials[label][seed] = Trial(folder.records(), str(stopped_by))
    name = paths[0].resolve().name if len(paths) == 1 else ", ".join(trials)
    comparison = compare(
        name,
        targets.pop() if target is None else target,
        trials,
        budget=budgets.pop() if len(budgets) == 1 else None,
    )
    return comparison, [f"not finished: {folder.path}" for folder in open_runs]


def _runs_in(path: Path) -> list[tuple[RunFolder, str]]:
    """The run in ``path``, or those just below it in the comparison's order, with their labels."""
    if (path / EXPERIMENT).is_file():
        folder = RunFolder.open(path)
        return [(folder, folder.experiment.run.name)]
    below = sorted(file.parent for file in path.glob(f"*/{EXPERIMENT}"))
    if not below:
        raise ConfigError(f"{path}: not a run folder, and none is in it")
    labels = _labels(path / COMPARISON)
    order = list(labels)
    runs = [RunFolder.open(one) for one in below]
    named = [(run, labels.get(run.experiment.run.name, run.experiment.run.name)) for run in runs]
    return sorted(
        named,
        key=lambda pair: (
            order.index(name) if (name := pair[0].experiment.run.name) in order else len(order)
        ),
    )


def _labels(file: Path) -> dict[str, str]:
    """Run name -> label, in the order of the comparison that was made here; empty if none was."""
    if not file.is_file():
        return {}
    try:
        rows = json_format.loads(file.read_text(encoding="utf-8"))["rows"]
        return {slug(row["strategy"]): row["strategy"] for row in rows}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file}: not the table of a comparison") from error
