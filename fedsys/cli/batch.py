"""Cells that belong together: checked first, run on all cores, and kept when they are finished."""

import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.console import Console

from fedsys.cli.cells import Cell
from fedsys.cli.execution import Stop, finished_trial, stop_on_interrupt, usable_cores
from fedsys.cli.pool import Work, process_pools, run_cell, run_cells
from fedsys.cli.progress import CellsProgress
from fedsys.telemetry.comparison import Trial
from fedsys.telemetry.runfolder import RunFolder

Trials = dict[str, dict[int, Trial]]
"""Label to seed to finished run."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Who runs cells, on how many cores, and until when."""

    work: Work
    start_pool: Callable[[], Executor]
    workers: int
    stop: Stop

    def run(self, screen: Console, cells: Sequence[Cell]) -> dict[Path, str]:
        """Run what is not finished; the faults by folder. Exits with 130 after Ctrl-C."""
        todo = [cell for cell in cells if not is_finished(cell)]
        if len(todo) < len(cells):
            screen.print(f"{len(cells) - len(todo)} of {len(cells)} runs are finished already")
        if not todo:
            return {}
        with CellsProgress(screen, len(todo)) as progress:

            def on_tick(running: list[Cell]) -> None:
                progress.on_tick(running)
                # Asked for here, too: while every worker is busy nobody else asks.
                self.stop()

            faults = run_cells(
                todo,
                self.work,
                self.start_pool,
                workers=self.workers,
                on_tick=on_tick,
                on_done=lambda cell, fault: progress.on_done(cell, finished(cell), fault),
                stop=self.stop,
            )
        if self.stop():
            raise typer.Exit(130)
        return faults


@contextmanager
def batch_of(workers: int | None) -> Iterator[Batch]:
    """A batch of real runs in processes of their own, which Ctrl-C stops after their round."""
    event = multiprocessing.get_context("spawn").Event()
    count = workers or usable_cores()
    with stop_on_interrupt() as asked, process_pools(count, event) as start_pool:

        def stop() -> bool:
            if asked():
                event.set()
            return asked()

        yield Batch(run_cell, start_pool, count, stop)


def check_cells(cells: Sequence[Cell]) -> None:
    """Raise ConfigError for a cell that could not run, before any does.

    Seeds of one label differ in no key. Data are read, and divided, once for all cells that
    differ only in strategy and codecs.
    """
    from fedsys.cli.run import check_choices, check_experiment

    seen: set[str] = set()
    for cell in {(cell.scene, cell.label): cell for cell in reversed(cells)}.values():
        same = {"codec", "strategy"}
        key = cell.experiment.model_copy(
            update={"run": cell.experiment.run.model_copy(update={"name": ""})}
        ).model_dump_json(exclude=same)
        if key in seen:
            check_choices(cell.experiment)
        else:
            check_experiment(cell.experiment)
        seen.add(key)


def is_finished(cell: Cell) -> bool:
    """Whether the cell's run came to its end."""
    return RunFolder(cell.path, cell.experiment).result() is not None


def finished(cell: Cell) -> Trial | None:
    """What the cell's folder holds, if its run came to an end."""
    return finished_trial(RunFolder(cell.path, cell.experiment))


def trials_of(cells: Sequence[Cell]) -> Trials:
    """The finished runs; a label whose runs all failed has none."""
    trials: Trials = {cell.label: {} for cell in cells}
    for cell in cells:
        if (trial := finished(cell)) is not None:
            trials[cell.label][cell.seed] = trial
    return trials


def report_faults(screen: Console, faults: Mapping[Path, str]) -> None:
    """Name the cells that failed; exits with 1 where there are any."""
    for path, fault in faults.items():
        screen.print(f"failed: {path}: {fault}", soft_wrap=True)
    if faults:
        raise typer.Exit(1)
