"""``fedsys run``: the experiment on real devices, by a server that runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedsys.cli.execution import INTERRUPTED, stop_on_interrupt
from fedsys.cli.progress import RunProgress
from fedsys.cli.tables import check_writable, console, summary_table, write_json
from fedsys.config.load import load_experiment
from fedsys.config.schema import Experiment
from fedsys.deploy.home import ServerHome
from fedsys.telemetry.comparison import Trial, compare, comparison_json
from fedsys.telemetry.decisions import left_out_text
from fedsys.telemetry.runfolder import RunFolder
from fedsys.telemetry.summary import summarise
from fedsys.types import RoundRecord

WAIT_S = 120.0


def run_command(
    file: Annotated[Path, typer.Argument(help="The experiment, a TOML file.")],
    server: Annotated[Path, typer.Option(help="Folder of a server that runs on this machine.")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="key=value, overrides the file.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Overrides run.seed.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where a run stopped.")] = False,
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
    from fedsys.cli.run import check_experiment

    check_experiment(experiment)
    folder = RunFolder.create(
        out / f"{experiment.run.name}-{experiment.run.seed}", experiment, resume=resume
    )
    screen = console()
    with stop_on_interrupt() as stop:
        trial = run_on(
            home,
            experiment,
            folder,
            screen=screen,
            wait_s=wait,
            min_nodes=min_nodes,
            quiet=quiet,
            stop=stop,
        )
    show_trial(screen, experiment, folder, trial)
    write_json(json, trial_json(experiment, trial))
    if trial.stopped_by == INTERRUPTED:
        raise typer.Exit(130)


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
) -> Trial:
    """Run to the end, or read the end of a run that is finished. DeployError where it fails."""
    from fedsys.deploy.control import Control
    from fedsys.deploy.run import enrolled_for, follow, start_run, wait_for_nodes
    from fedsys.telemetry.report import write_report

    if (result := folder.result()) is not None:
        return Trial(folder.records(), str(result["stopped_by"]))
    entries = enrolled_for(experiment, home)
    checkpoint = folder.load_checkpoint()
    done = folder.records()[: checkpoint.round] if checkpoint else []
    progress = RunProgress(screen, experiment.run.budget.rounds, done, quiet)

    def say(line: str) -> None:
        if not quiet:
            screen.print(line, soft_wrap=True)

    def told(record: RoundRecord) -> None:
        progress.on_round(record)
        on_round(record)

    with Control.of(home) as control, progress:
        nodes = wait_for_nodes(
            control,
            entries,
            at_least=min(min_nodes or len(entries), len(entries)),
            wait_s=wait_s,
            stop=stop,
            say=say,
        )
        folder.truncate(len(done))
        run_id = start_run(control, home, experiment, folder, nodes)
        ended = follow(control, run_id, folder, on_round=told, stop=stop)
    trial = Trial(ended.records, ended.stopped_by or INTERRUPTED)
    if trial.stopped_by != INTERRUPTED:
        folder.finish()
        write_report(folder.path / "report.html", compared(experiment, trial))
    return trial


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
