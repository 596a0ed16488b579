"""``fedsys bench``: what this machine could do, what a simulation does of it, and where it goes."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedsys.cli.execution import usable_cores
from fedsys.cli.tables import check_writable, console, write_json
from fedsys.config.load import dump_toml, load_experiment, parse_experiment
from fedsys.config.schema import Budget, Experiment
from fedsys.telemetry.figures import number, percent

if TYPE_CHECKING:
    from fedsys.cli.stages import Rounds

DEFAULT = """
task = { name = "digits" }
partition = { clients = 100 }
cohort = { size = 40 }
codec = { uplink = "topk(0.05)|int8" }
network = { link = "lte" }
"""
"""What is measured where no file is named."""
SWITCHES = {
    "training": "fewer local steps do less of it (strategy.options), more cores do it sooner",
    "codec": "codec.uplink = 'none' removes it",
    "evaluation": "run.evaluate_every_rounds = 10 removes nine tenths of it",
    "links": "network.link = 'perfect' removes it",
    "plan": "strategy.name = 'fixed' removes most of it",
    "messages": "fewer workers, or more clients a round, make it less",
    "records": "a longer round makes it less: it is the same for every round",
    "idle workers": "fewer workers, or more clients a round (cohort.size), make it less",
    "other": "it is Python between the stages",
}
"""A stage to what would remove it."""
UNBATCHED = "engine.batch = true removes most of it"
_BARE, _BLOCKS = "clients.limit:bare_step_s", "clients.limit:blocks_s"
_ENDLESS = Budget(rounds=1_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """How long each part is measured."""

    bare: float
    training: float
    engine: float


FULL, QUICK = Seconds(bare=5, training=8, engine=25), Seconds(bare=1, training=2, engine=6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What was measured, in wall seconds of a round."""

    workers: int
    limit_s: float
    """Forward, backward and update of as many samples, in as many processes."""
    training_s: float
    """Training of as many clients alone."""
    rounds: "Rounds"

    @property
    def shares(self) -> dict[str, float]:
        """Stage to its part of a round, the largest first; together 1."""
        stages = sorted(self.rounds.stages_s.items(), key=lambda item: -item[1])
        return {stage: seconds / self.rounds.round_s for stage, seconds in stages}


def bench(
    file: Annotated[
        Path | None, typer.Argument(help="An experiment, a TOML file; else handwritten digits.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="key=value, overrides the file.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes that train.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Within a minute.")] = False,
    json: Annotated[Path | None, typer.Option(help="Also write all figures as JSON.")] = None,
) -> None:
    """Measure how fast this machine simulates an experiment, and what the time goes into."""
    check_writable(json, "--json")
    settings = set_ or []
    if file is None:
        experiment = parse_experiment(DEFAULT, settings, where="bench")
    else:
        experiment = load_experiment(file, settings)
    from fedsys.cli.run import check_experiment

    check_experiment(experiment, data=False)
    screen, progress = console(), Console(stderr=True, highlight=False)
    found = measure(experiment, workers or usable_cores(), QUICK if quick else FULL, progress)
    screen.print(speeds_table(found))
    screen.print(stages_table(found))
    screen.print(verdict(found, experiment), soft_wrap=True)
    write_json(json, as_json(found))


def measure(experiment: Experiment, workers: int, seconds: Seconds, progress: Console) -> Found:
    """Run the experiment, and then as much training as was in a round without it."""
    from fedsys.cli.stages import measure_rounds

    progress.print(f"1/3 the simulation, about {number(seconds.engine)} s", soft_wrap=True)
    run = experiment.run.model_copy(
        update={"budget": _ENDLESS, "target": None, "stop_at_target": True}
    )
    rounds = measure_rounds(experiment.model_copy(update={"run": run}), workers, seconds.engine)
    limit_s, training_s = _training(experiment, workers, rounds, seconds, progress)
    return Found(workers=workers, limit_s=limit_s, training_s=training_s, rounds=rounds)


def _training(
    experiment: Experiment, workers: int, rounds: "Rounds", seconds: Seconds, progress: Console
) -> tuple[float, float]:
    """Seconds of a round's steps alone, and of its clients' training alone."""
    from fedsys.cli.run import CLIENT_APP, WARM_UP
    from fedsys.engine.crew import Crew
    from fedsys.engine.pool import Pool

    text = dump_toml(experiment)
    cohort = max(1, round(rounds.clients))
    steps = max(1, round(rounds.local_steps / cohort))
    batch = max(1, round(rounds.samples / max(1.0, rounds.local_steps)))
    pool = Pool(
        CLIENT_APP,
        workers=workers,
        run_config={"experiment": text},
        node_config_of=lambda node: {},
        warm_up=WARM_UP,
        hiring=lambda service: Crew(service, workers),
    )
    with closing(pool):
        pool.wait_ready()

        def slowest_s(name: str, *arguments: Any, ranked: bool) -> float:
            ranks = ((rank, workers) if ranked else () for rank in range(workers))
            futures = [pool.call(name, text, *arguments, *rank, asked_s) for rank in ranks]
            return max(float(future.result()) for future in futures)

        progress.print(f"2/3 the bare loop, {number(seconds.bare)} s", soft_wrap=True)
        asked_s = seconds.bare
        step_s = slowest_s(_BARE, batch, ranked=False)
        progress.print(f"3/3 training alone, {number(seconds.training)} s", soft_wrap=True)
        asked_s = seconds.training
        training_s = slowest_s(_BLOCKS, cohort, steps, ranked=True)
    return step_s * rounds.local_steps / workers, training_s


def speeds_table(found: Found) -> Table:
    """The machine's limit, training alone and the engine."""
    table = Table(title=f"{found.workers} workers", title_justify="left")
    for column in ("", "a round, ms", "client rounds/s", "speed over limit"):
        table.add_column(column, justify="right" if column else "left")
    for name, seconds in _speeds(found):
        clients = number(found.rounds.clients / seconds)
        table.add_row(name, number(1e3 * seconds), clients, number(found.limit_s / seconds))
    return table


def stages_table(found: Found) -> Table:
    """Where the engine's time goes."""
    table = Table("stage", title="the engine, by stage", title_justify="left")
    for column in ("a round, ms", "share %"):
        table.add_column(column, justify="right")
    for stage, share in found.shares.items():
        table.add_row(stage, number(1e3 * share * found.rounds.round_s), percent(share))
    return table


def verdict(found: Found, experiment: Experiment) -> str:
    """The biggest cost, and the switch that would remove it."""
    shares = found.shares
    first = next(iter(shares))
    text = f"Biggest cost: {first}, {percent(shares[first])} % of a round"
    rest = [stage for stage in shares if stage != "training"]
    if first == "training" and rest:
        text += f"; {_switch(first, experiment)}. Next: {rest[0]}, {percent(shares[rest[0]])} %"
        first = rest[0]
    return f"{text}; {_switch(first, experiment)}."


def as_json(found: Found) -> dict[str, Any]:
    """All figures."""
    return {
        **asdict(found),
        "shares": found.shares,
        "client_rounds_per_s": {
            name: found.rounds.clients / seconds for name, seconds in _speeds(found)
        },
    }


def _switch(stage: str, experiment: Experiment) -> str:
    if stage in ("codec", "messages") and not experiment.engine.batch:
        return UNBATCHED
    return SWITCHES[stage]


def _speeds(found: Found) -> Iterator[tuple[str, float]]:
    yield "bare loop (limit)", found.limit_s
    yield "training alone", found.training_s
    yield "engine", found.rounds.round_s
