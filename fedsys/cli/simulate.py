"""``fedsys simulate``: one federation in virtual time."""

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsys.cli.execution import INTERRUPTED, Runner, execute, stop_on_interrupt, usable_cores
from fedsys.cli.progress import RunProgress
from fedsys.cli.tables import check_writable, console, summary_table, write_json
from fedsys.config.load import load_experiment
from fedsys.config.schema import Experiment
from fedsys.errors import ConfigError
from fedsys.telemetry.comparison import Trial, compare, comparison_json
from fedsys.telemetry.decisions import left_out_text
from fedsys.telemetry.lock import sole_writer
from fedsys.telemetry.runfolder import RunFolder
from fedsys.telemetry.summary import summarise

if TYPE_CHECKING:
    from fedsys.engine.workforce import Hiring


class Engine(StrEnum):
    """What clients train in; results are the same."""

    PROCESSES = "processes"
    RAY = "ray"


def simulate(
    file: Annotated[Path, typer.Argument(help="The experiment, a TOML file.")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="key=value, overrides the file.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Overrides run.seed.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; results do not depend on it.")
    ] = None,
    engine: Annotated[
        Engine, typer.Option(help="Processes of this machine, or Flower's Ray backend.")
    ] = Engine.PROCESSES,
    ray_address: Annotated[
        str | None,
        typer.Option(help="Of a Ray cluster that runs, or 'auto'; else Ray starts here."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where a run stopped.")] = False,
    out: Annotated[Path, typer.Option(help="Folder that run folders go into.")] = Path("runs"),
    json: Annotated[Path | None, typer.Option(help="Also write the result as JSON.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the final table.")] = False,
) -> None:
    """Run a federation of emulated devices behind emulated links, in virtual time."""
    if ray_address is not None and engine is not Engine.RAY:
        raise ConfigError("--ray-address has no effect without --engine ray")
    settings = [*(set_ or []), *([] if seed is None else [f"run.seed={seed}"])]
    experiment = load_experiment(file, settings)
    check_writable(json, "--json")
    path = out / f"{experiment.run.name}-{experiment.run.seed}"
    hiring = _ray(experiment, path, workers, ray_address) if engine is Engine.RAY else None
    from fedsys.cli.run import check_experiment, run_experiment

    workers = workers or usable_cores()
    check_experiment(experiment, data=workers == 1 and hiring is None)
    run_simulation(
        experiment,
        partial(run_experiment, hiring=hiring),
        path=path,
        workers=workers,
        resume=resume,
        json=json,
        quiet=quiet,
    )


def _ray(experiment: Experiment, path: Path, workers: int | None, address: str | None) -> "Hiring":
    """How Flower's actors are hired; ConfigError where Ray is not installed."""
    from fedsys.cli.run import keeps_files
    from fedsys.engine.ray_crew import Cluster, RayCrew, check_ray

    check_ray()
    cluster = Cluster(
        address=address,
        workers=usable_cores() if address is None and workers is None else workers,
        folder=path,
        shares_folder=keeps_files(experiment),
        gpu=experiment.training.device != "cpu",
    )
    return lambda service: RayCrew(service, cluster)


def run_simulation(
    experiment: Experiment,
    runner: Runner,
    *,
    path: Path,
    workers: int,
    resume: bool,
    json: Path | None,
    quiet: bool,
) -> None:
    """Run with progress and print the summary; typer.Exit(130) after Ctrl-C."""
    out = console()
    RunFolder.check(path, experiment, resume=resume)
    with sole_writer(path):
        folder = RunFolder.create(path, experiment, resume=resume)
        checkpoint = folder.load_checkpoint()
        done = folder.records()[: checkpoint.round] if checkpoint else []
        if resume and not quiet:
            state = "begins: nothing is there to go on with"
            state = f"goes on after round {len(done)}" if checkpoint else state
            state = "finished already" if folder.result() else state
            out.print(f"{path}: {state}", soft_wrap=True)
        progress = RunProgress(out, experiment.run.budget.rounds, done, quiet)
        with folder.unless_refused(), stop_on_interrupt() as stop, progress:
            trial = execute(
                experiment,
                path,
                runner,
                resume=True,
                workers=workers,
                on_round=progress.on_round,
                stop=stop,
            )
    summary = summarise(trial.records, experiment.run.target, trial.stopped_by)
    out.print(summary_table(summary))
    if lost := left_out_text(trial.records):
        out.print(f"updates left out: {lost}", soft_wrap=True)
    out.print(f"ended by {trial.stopped_by}; {path}", soft_wrap=True)
    write_json(json, _json(experiment, trial))
    if trial.stopped_by == INTERRUPTED:
        raise typer.Exit(130)


def _json(experiment: Experiment, trial: Trial) -> dict[str, Any]:
    """The same shape as of a comparison, with one row."""
    run = experiment.run
    return comparison_json(
        compare(run.name, run.target, {experiment.strategy.name: {run.seed: trial}}), []
    )
