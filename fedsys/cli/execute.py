"""``fedsys run``: the experiment on real devices, by a server that runs."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedsys.cli.execution import INTERRUPTED, stop_on_interrupt
from fedsys.cli.progress import RunProgress
from fedsys.cli.tables import check_writable, console, summary_table, write_json
from fedsys.config.load import load_experiment
from fedsys.config.schema import Experiment
from fedsys.deploy.home import NodeEntry, ServerHome
from fedsys.errors import DeployError, FedsysError
from fedsys.telemetry.comparison import Trial, compare, comparison_json
from fedsys.telemetry.decisions import left_out_text
from fedsys.telemetry.runfolder import RunFolder
from fedsys.telemetry.summary import summarise
from fedsys.types import RoundRecord

if TYPE_CHECKING:
    from fedsys.deploy.control import Control

WAIT_S = 120.0
RETURN_S = 30.0
"""How long a run that goes on waits for all of its devices; then it begins without some."""
MAX_STARTS = 5
"""So often is a run begun again without one round more."""


def run_command(
    file: Annotated[Path, typer.Argument(help="The experiment, a TOML file.")],
    server: Annotated[Path, typer.Option(help="Folder of a server that runs on this machine.")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="key=value, overrides the file.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Overrides run.seed.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where a run stopped.")] = False,
    keep: Annotated[int, typer.Option(min=0, help="Keep the checkpoints of every n-th round.")] = 0,
    back_to: Annotated[
        int | None, typer.Option(min=1, help="Go on from this round, which was kept.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder that run folders go into.")] = Path("runs"),
    wait: Annotated[float, typer.Option(help="Seconds to wait for devices.")] = WAIT_S,
    min_nodes: Annotated[
        int | None, typer.Option(min=1, help="Begin with so many devices; all unless given.")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Also write the result as JSON.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the final table.")] = False,
) -> None:
    """Run an experiment on real devices; seconds are those of the wall clock."""
    settings = [*(set_ or []), *([] if seed is None else [f"run.seed={seed}"])]
    experiment = load_experiment(file, settings)
    home = ServerHome.open(server)
    check_writable(json, "--json")
    from fedsys.cli.run import check_deployable

    check_deployable(experiment)
    folder = RunFolder.create(
        out / f"{experiment.run.name}-{experiment.run.seed}",
        experiment,
        resume=resume or back_to is not None,
    )
    if back_to is not None:
        folder.roll_back(back_to)
    screen = console()
    with as_interrupt(), stop_on_interrupt() as stop:
        trial = run_on(
            home,
            experiment,
            folder,
            screen=screen,
            wait_s=wait,
            min_nodes=min_nodes,
            quiet=quiet,
            stop=stop,
            keep_every_rounds=keep,
        )
    show_trial(screen, experiment, folder, trial)
    write_json(json, trial_json(experiment, trial))
    if trial.stopped_by == INTERRUPTED:
        raise typer.Exit(130)


@contextlib.contextmanager
def as_interrupt() -> Iterator[None]:
    """SIGTERM is as good as Ctrl-C."""
    previous = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def run_on(
    home: ServerHome,
    experiment: Experiment,
    folder: RunFolder,
    *,
    screen: Console,
    wait_s: float,
    min_nodes: int | None,
    quiet: bool,
    stop: Callable[[], bool],
    on_round: Callable[[RoundRecord], None] = lambda record: None,
    keep_every_rounds: int = 0,
) -> Trial:
    """Run to the end, or read the end of a run that is finished. DeployError where it fails.

    A run whose processes on the server were ended from outside goes on from its last round, and so
    does one that found the disk full, once there is room.
    """
    from fedsys.deploy.control import Control
    from fedsys.deploy.run import enrolled_for, follow, start_run, take_over
    from fedsys.telemetry.report import write_report

    if (result := folder.result()) is not None:
        return Trial(folder.records(), str(result["stopped_by"]))
    entries = enrolled_for(experiment, home)
    done = _done(folder)
    progress = RunProgress(screen, experiment.run.budget.rounds, done, quiet)

    def say(line: str) -> None:
        if not quiet:
            screen.print(line, soft_wrap=True)

    def told(record: RoundRecord) -> None:
        progress.on_round(record)
        on_round(record)

    least = min(min_nodes or len(entries), len(entries))
    starts = _Starts(len(done), say, stop)
    with Control.of(home) as control, progress:
        while True:
            nodes = starts.nodes(control, entries, at_least=least, wait_s=wait_s)
            with starts.again_if_broken_off(home, folder):
                take_over(control, home, folder)
                folder.truncate(len(_done(folder)))
                starts.run_id = start_run(
                    control, home, experiment, folder, nodes, keep_every_rounds=keep_every_rounds
                )
                ended = follow(control, starts.run_id, folder, on_round=told, stop=stop)
                break
    trial = Trial(ended.records, ended.stopped_by or INTERRUPTED)
    while trial.stopped_by != INTERRUPTED:
        with starts.again_if_broken_off(home, folder):
            folder.finish()
            write_report(folder.path / "report.html", compared(experiment, trial))
            break
    return trial


class _Starts:
    """How often a run was begun, and whether it is once more."""

    def __init__(self, rounds: int, say: Callable[[str], None], stop: Callable[[], bool]) -> None:
        self._rounds = rounds
        self._say = say
        self._stop = stop
        self._count = 0
        self.run_id = 0
        """Flower's number of the last one; 0 before there is one."""

    def nodes(
        self,
        control: "Control",
        entries: list[NodeEntry],
        *,
        at_least: int,
        wait_s: float,
    ) -> dict[int, NodeEntry]:
        """The devices to begin with; a run that goes on does not wait long for the last of them."""
        from fedsys.deploy.run import wait_for_nodes

        def wait(count: int, seconds: float) -> dict[int, NodeEntry]:
            return wait_for_nodes(
                control, entries, at_least=count, wait_s=seconds, stop=self._stop, say=self._say
            )

        if self._count:
            with contextlib.suppress(DeployError):
                return wait(len(entries), RETURN_S)
        return wait(1 if self._count else at_least, wait_s)

    @contextlib.contextmanager
    def again_if_broken_off(self, home: ServerHome, folder: RunFolder) -> Iterator[None]:
        """Swallow what is not the run's fault as long as rounds are added between two times."""
        from fedsys.deploy.control import NoAnswerError
        from fedsys.deploy.run import BrokenOffError, is_disk_full, is_taken_over, wait_for_room

        try:
            yield
        except (FedsysError, OSError) as error:
            is_full = is_disk_full(error)
            if not (is_full or isinstance(error, BrokenOffError | NoAnswerError)):
                raise
            if self.run_id and is_taken_over(home, folder, self.run_id):
                raise DeployError(f"{folder.path}: another 'fedsys run' goes on with it") from error
            rounds = len(_done(folder))
            self._count = self._count + 1 if rounds == self._rounds else 1
            self._rounds = rounds
            if self._count >= MAX_STARTS:
                raise
            if is_full:
                wait_for_room(folder, stop=self._stop, say=self._say)
            self._say(f"{str(error).partition(';')[0]}; it goes on from there")


def _done(folder: RunFolder) -> list[RoundRecord]:
    """The rounds that are in the checkpoint."""
    checkpoint = folder.load_checkpoint()
    return folder.records()[: checkpoint.round] if checkpoint else []


def show_trial(screen: Console, experiment: Experiment, folder: RunFolder, trial: Trial) -> None:
    """The final table, and who was left out."""
    summary = summarise(trial.records, experiment.run.target, trial.stopped_by)
    screen.print(summary_table(summary))
    if lost := left_out_text(trial.records):
        screen.print(f"updates left out: {lost}", soft_wrap=True)
    screen.print(f"ended by {trial.stopped_by}; {folder.path}", soft_wrap=True)


def compared(experiment: Experiment, trial: Trial) -> Any:
    """A comparison of one row."""
    run = experiment.run
    return compare(run.name, run.target, {experiment.strategy.name: {run.seed: trial}})


def trial_json(experiment: Experiment, trial: Trial) -> dict[str, Any]:
    """The same shape as of a comparison, with one row."""
    return comparison_json(compared(experiment, trial), [])
