"""``fedsys compare``: strategies over the same seeds, one table, one report, one verdict."""

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedsys.cli.cells import Cell, plan_cells
from fedsys.cli.execution import Stop, finished_trial, stop_on_interrupt, usable_cores
from fedsys.cli.pool import Work, process_pools, run_cell, run_cells
from fedsys.cli.progress import CellsProgress
from fedsys.cli.tables import check_writable, comparison_table, console, write_json
from fedsys.config.load import load_experiment
from fedsys.config.schema import Experiment
from fedsys.telemetry.comparison import Trial, compare, comparison_json
from fedsys.telemetry.runfolder import RunFolder
from fedsys.telemetry.verdict import verdict

COMPARISON = "comparison.json"


def compare_command(
    file: Annotated[Path, typer.Argument(help="The experiment, a TOML file.")],
    seeds: Annotated[int | None, typer.Option(min=1, help="Paired seeds from run.seed on.")] = None,
    strategies: Annotated[
        str,
        typer.Option(
            help="Entries (labels or folder names) or strategies; the first is the baseline."
        ),
    ] = "",
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="key=value, overrides the file.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Runs at the same time.")] = None,
    out: Annotated[Path, typer.Option(help="Folder that run folders go into.")] = Path("runs"),
    json: Annotated[Path | None, typer.Option(help="Also write the table as JSON.")] = None,
) -> None:
    """Run strategies on the same seeds, splits and links, and say which is better.

    Runs that are finished are kept and reused; those that were stopped go on.
    """
    experiment = load_experiment(file, set_ or [])
    check_writable(json, "--json")
    names = [name.strip() for name in strategies.split(",") if name.strip()]
    cells = plan_cells(experiment, out, seeds=seeds or experiment.compare.seeds, strategies=names)
    _check(cells)
    workers = workers or usable_cores()
    event = multiprocessing.get_context("spawn").Event()
    with stop_on_interrupt() as asked, process_pools(workers, event) as start_pool:

        def stop() -> bool:
            if asked():
                event.set()
            return asked()

        run_comparison(
            experiment,
            cells,
            run_cell,
            start_pool,
            folder=out / experiment.run.name,
            workers=workers,
            stop=stop,
            json=json,
        )


def _check(cells: Sequence[Cell]) -> None:
    """Raise ConfigError for an entry that could not run; seeds of one entry differ in no key."""
    from fedsys.cli.run import check_experiment

    for cell in {cell.label: cell for cell in reversed(cells)}.values():
        check_experiment(cell.experiment)


def run_comparison(
    experiment: Experiment,
    cells: Sequence[Cell],
    work: Work,
    start_pool: Callable[[], Executor],
    *,
    folder: Path,
    workers: int,
    stop: Stop,
    json: Path | None,
) -> None:
    """Run what is not finished, then print table and verdict and write the report.

    Exits with 130 after Ctrl-C and with 1 when a cell failed.
    """
    screen = console()
    todo = [cell for cell in cells if _finished(cell) is None]
    if len(todo) < len(cells):
        screen.print(f"{len(cells) - len(todo)} of {len(cells)} runs are finished already")
    with CellsProgress(screen, len(todo)) as progress:
        faults = run_cells(
            todo,
            work,
            start_pool,
            workers=workers,
            on_tick=progress.on_tick,
            on_done=lambda cell, fault: progress.on_done(cell, _finished(cell), fault),
            stop=stop,
        )
    if stop():
        raise typer.Exit(130)
    _publish(screen, experiment, cells, folder, json)
    for path, fault in faults.items():
        screen.print(f"failed: {path}: {fault}", soft_wrap=True)
    if faults:
        raise typer.Exit(1)


def _publish(
    screen: Console, experiment: Experiment, cells: Sequence[Cell], folder: Path, json: Path | None
) -> None:
    """Table, verdict, report and JSON of the cells that are finished; nothing where none is."""
    trials: dict[str, dict[int, Trial]] = {cell.label: {} for cell in cells}
    for cell in cells:
        if (trial := _finished(cell)) is not None:
            trials[cell.label][cell.seed] = trial
    if not any(trials.values()):
        return
    comparison = compare(experiment.run.name, experiment.run.target, trials)
    lines = verdict(comparison)
    screen.print(comparison_table(comparison))
    for line in lines:
        screen.print(line)
    from fedsys.telemetry.report import write_report

    write_report(folder / "report.html", comparison)
    found = comparison_json(comparison, lines)
    write_json(folder / COMPARISON, found)
    write_json(json, found)
    screen.print(f"report: {folder / 'report.html'}", soft_wrap=True)


def _finished(cell: Cell) -> Trial | None:
    """What the cell's folder holds, if its run came to an end."""
    return finished_trial(RunFolder(cell.path, cell.experiment))
