"""What is shown while runs go on: a bar in a terminal, a line an event everywhere else."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from fedsys.cli.cells import Cell
from fedsys.telemetry.comparison import Trial
from fedsys.telemetry.decisions import codecs_in, left_out, steps_in
from fedsys.telemetry.figures import number, percent
from fedsys.telemetry.runfolder import ROUNDS
from fedsys.telemetry.summary import summarise
from fedsys.types import RoundRecord


class _LiveBar:
    """A bar that is on screen while its owner is entered, where there is a terminal for it."""

    def __init__(self, console: Console, quiet: bool) -> None:
        self._console = console
        self._quiet = quiet
        self._bar = Progress(
            BarColumn(24),
            MofNCompleteColumn(),
            TextColumn("{task.description}", markup=False),
            console=console,
        )

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._quiet:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar.live.is_started:
            self._bar.stop()


class RunProgress(_LiveBar):
    """Follows one run, round by round."""

    def __init__(self, console: Console, rounds: int, done: list[RoundRecord], quiet: bool):
        super().__init__(console, quiet)
        self._rounds = rounds
        self._uplink_bytes = sum(record.uplink_bytes for record in done)
        self._metric = next(
            (r.test_metric for r in reversed(done) if r.test_metric is not None), None
        )
        self._task = self._bar.add_task("", total=rounds, completed=len(done))

    def on_round(self, record: RoundRecord) -> None:
        """Show the figures that people watch."""
        self._uplink_bytes += record.uplink_bytes
        if record.test_metric is not None:
            self._metric = record.test_metric
        if self._quiet:
            return
        line = self._line(record)
        if self._console.is_terminal:
            self._bar.update(self._task, completed=record.round, description=line)
        else:
            self._console.print(f"round {record.round}/{self._rounds}  {line}", soft_wrap=True)

    def _line(self, record: RoundRecord) -> str:
        accuracy = "-" if self._metric is None else percent(self._metric)
        return (
            f"accuracy {accuracy} %  {number(record.end_s)} s  "
            f"uplink {number(self._uplink_bytes / 1e6)} MB  "
            f"steps {steps_in(record.plan)}  {codecs_in(record.plan)}{_losses(record)}"
        )


class CellsProgress(_LiveBar):
    """Follows the runs of a comparison through their files, whichever process writes them."""

    def __init__(self, console: Console, cells: int):
        super().__init__(console, quiet=False)
        self._cells = cells
        self._done = 0
        self._all = self._bar.add_task("runs", total=cells)
        self._tails: dict[Path, Tail] = {}
        self._tasks: dict[Path, TaskID] = {}

    def on_tick(self, running: list[Cell]) -> None:
        """Read what the running cells have written since the last tick."""
        if not self._console.is_terminal:
            return
        for cell in running:
            tail = self._tails.setdefault(cell.path, Tail(cell.path / ROUNDS))
            if (last := tail.last()) is None:
                continue
            if cell.path not in self._tasks:
                rounds = cell.experiment.run.budget.rounds
                self._tasks[cell.path] = self._bar.add_task(cell.title, total=rounds)
            metric = last["test_metric"]
            accuracy = "" if metric is None else f"  accuracy {percent(metric)} %"
            self._bar.update(
                self._tasks[cell.path],
                completed=last["round"],
                description=f"{cell.title}{accuracy}  {number(last['end_s'])} s",
            )

    def on_done(self, cell: Cell, trial: Trial | None, fault: str) -> None:
        """A cell has come to its end, well or not."""
        self._done += 1
        if cell.path in self._tasks:
            self._bar.remove_task(self._tasks.pop(cell.path))
        self._bar.update(self._all, completed=self._done)
        what = f"failed: {fault}" if fault else "stopped" if trial is None else _ending(trial)
        line = f"[{self._done}/{self._cells}] {cell.title}: {what}"
        self._bar.console.print(line, soft_wrap=True)


@dataclass(slots=True)
class Tail:
    """The growing end of a ``rounds.jsonl``; what was read once is not read again."""

    path: Path
    _offset: int = 0

    def last(self) -> dict[str, Any] | None:
        """The last whole line that is new since the last call; None when there is none."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                whole, newline, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return None
        if not newline:
            return None
        self._offset += len(whole) + 1
        record: dict[str, Any] = json.loads(whole.rpartition(b"\n")[2])
        return record


def _losses(record: RoundRecord) -> str:
    """How many updates were used where not all were; why, where none was."""
    lost = left_out([record])
    if not lost:
        return ""
    used = sum(report.accepted for report in record.reports)
    why = "" if used else f": {_most_frequent(lost)}"
    return f"  used {used} of {used + lost.total()}{why}"


def _most_frequent(reasons: Counter[str]) -> str:
    return reasons.most_common(1)[0][0][:120]


def _ending(trial: Trial) -> str:
    summary = summarise(trial.records, None, trial.stopped_by)
    accuracy = "-" if summary.final_metric is None else percent(summary.final_metric)
    total = summary.total
    lost = left_out(trial.records)
    none_used = lost and not any(r.accepted for record in trial.records for r in record.reports)
    why = f"; no update was used: {_most_frequent(lost)}" if none_used else ""
    return (
        f"accuracy {accuracy} %, {total.rounds} rounds, {number(total.seconds)} s, "
        f"uplink {number(total.uplink_bytes / 1e6)} MB, ended by {trial.stopped_by}{why}"
    )
