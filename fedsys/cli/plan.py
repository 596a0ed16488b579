"""``fedsys plan``: seconds, bytes and the bound on compute of a round, before any training."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table
from rich.text import Text
from threadpoolctl import threadpool_limits

from fedsys.cli.axes import split_values
from fedsys.cli.batch import check_cells
from fedsys.cli.cells import Cell, chosen_variants, slug
from fedsys.cli.tables import check_writable, console, write_json
from fedsys.config.load import load_experiment, with_settings
from fedsys.config.schema import Experiment
from fedsys.errors import ConfigError
from fedsys.registry import nearest
from fedsys.telemetry.figures import number, percent
from fedsys.telemetry.forecast import (
    MAX_SEEDS,
    Decision,
    Forecast,
    decide,
    forecast,
    smallest_shown,
)

CODECS = "none,int8,topk(0.1)|int8,topk(0.01)|int8"
AS_FILE = "as in the file"
_SHOWN_NODES = 12


def plan(
    file: Annotated[Path, typer.Argument(help="The experiment, a TOML file.")],
    strategies: Annotated[
        str, typer.Option(help="Candidates: entries of the file, or strategies; none means all.")
    ] = "",
    between: Annotated[
        str, typer.Option(help="Two of them, A,B, to decide between; else the two most promising.")
    ] = "",
    codecs: Annotated[str, typer.Option(help="Codecs to look at, for both directions.")] = CODECS,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to rehearse.")] = 5,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="key=value, overrides the file.")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Also write all figures as JSON.")] = None,
) -> None:
    """Predict seconds per round, bytes and compute / (compute + communication), without training.

    The strategy plans, codecs code and messages cross the emulated links as in a simulation; only
    what an update says is made up. Names the cheapest experiment to decide between two candidates.
    """
    check_writable(json, "--json")
    experiment = load_experiment(file, set_ or [])
    names = [name.strip() for name in strategies.split(",") if name.strip()]
    candidates = _candidates(experiment, names, set_ or [])
    by_codec = _by_codec(experiment, split_values(codecs))
    _check({**candidates, **by_codec})
    pair = _pair(between, list(candidates))
    screen = console()
    found = _rehearse(screen, {**candidates, **by_codec}, rounds)
    drawn_up = Plan(
        file,
        set_ or [],
        experiment,
        [found[label] for label in candidates],
        [found[label] for label in by_codec],
        pair,
    )
    _show(screen, drawn_up)
    write_json(json, plan_json(drawn_up))


@dataclass(frozen=True, slots=True)
class Plan:
    """All that was found."""

    file: Path
    settings: Sequence[str]
    """What the command line set beside the file."""
    experiment: Experiment
    candidates: Sequence[Forecast]
    by_codec: Sequence[Forecast]
    pair: tuple[str, str] | None
    """Labels of the two to decide between; None takes the two most promising."""

    @property
    def keeps_strategy(self) -> bool:
        """Whether codecs are looked at under the file's own strategy, which chooses none."""
        from strategies.server_app import controller_for

        return not controller_for(self.experiment).chooses_codecs

    def decision(self) -> Decision | None:
        """What would decide; None where there are no two candidates."""
        if self.pair is not None:
            by_label = {one.label: one for one in self.candidates}
            return decide(*(by_label[label] for label in self.pair))
        ranked = sorted(self.candidates, key=lambda one: one.round_s / one.progress)
        return decide(*ranked[:2]) if len(ranked) > 1 else None


def plan_json(found: Plan) -> dict[str, Any]:
    """What ``--json`` writes: every client of every way, and the decision."""
    decision = found.decision()
    told = None
    if decision is not None and (decision.first.round_s or decision.second.round_s):
        told = {
            "candidates": [decision.first.label, decision.second.label],
            "time_ratio": decision.time_ratio,
            "break_even_rounds_ratio": decision.break_even,
            "expected_rounds_ratio": decision.expected_rounds,
            "seeds": decision.seeds,
            "is_foregone": decision.is_foregone,
            "command": _command(found, decision),
        }
    return {
        "experiment": found.experiment.run.name,
        "candidates": [_forecast_json(one) for one in found.candidates],
        "codecs": [_forecast_json(one) for one in found.by_codec],
        "decision": told,
    }


def _forecast_json(one: Forecast) -> dict[str, Any]:
    bounds = dict(zip(("min", "median", "max"), one.bound, strict=True))
    nodes = [asdict(node) | {"bound": node.bound} for node in one.nodes]
    return asdict(one) | {"bound": bounds, "nodes": nodes}


def _candidates(
    experiment: Experiment, names: Sequence[str], settings: Sequence[str]
) -> dict[str, Experiment]:
    """By label: the entries, or the file as it stands where it has none."""
    if not names and not experiment.compare.entries:
        return {AS_FILE: experiment}
    return {
        label: with_settings(experiment, changes, f"compare entry '{label}'")
        for label, changes in chosen_variants(experiment, names, settings)
    }


def _by_codec(experiment: Experiment, codecs: Sequence[str]) -> dict[str, Experiment]:
    """The same local work in each codec; a strategy that chooses codecs stands aside for it."""
    from strategies.server_app import controller_for

    settings: dict[str, Any] = {}
    if controller_for(experiment).chooses_codecs:
        settings = {"strategy.name": "fixed", "strategy.options": {}}
    return {
        codec: with_settings(
            experiment,
            {**settings, "codec.uplink": codec, "codec.downlink": codec},
            f"--codecs: '{codec}'",
        )
        for codec in dict.fromkeys(codecs)
    }


def _check(planned: dict[str, Experiment]) -> None:
    """Raise ConfigError for a candidate or codec that cannot be used."""
    cells = [Cell(label, 0, experiment, Path()) for label, experiment in planned.items()]
    check_cells(cells)


def _pair(between: str, labels: list[str]) -> tuple[str, str] | None:
    """The two labels, which may be given as folder names, too: labels may have commas."""
    if not between:
        return None
    by_slug = {slug(label): label for label in labels}
    names = [name.strip() for name in between.split(",")]
    for name in names:
        if slug(name) not in by_slug:
            raise ConfigError(f"--between: no candidate '{name}'; {nearest(name, labels)}")
    if len({slug(name) for name in names}) != 2 or len(names) != 2:
        raise ConfigError(f"--between {between}: expected two of the candidates, A,B")
    return by_slug[slug(names[0])], by_slug[slug(names[1])]


def _rehearse(screen: Console, planned: dict[str, Experiment], rounds: int) -> dict[str, Forecast]:
    """A forecast for each; data are read once for all that divide them alike."""
    from fedsys.cli.rehearsal import Stage, rehearse

    stages: dict[str, Stage] = {}
    found: dict[str, Forecast] = {}
    todo: Iterable[str] = planned
    if screen.is_terminal:
        todo = track(planned, "rehearsing", console=screen, transient=True)
    for label in todo:
        experiment = planned[label]
        key = experiment.model_dump_json(include={"run", "task", "partition"})
        if key not in stages:
            stages[key] = Stage.of(experiment)
        with threadpool_limits(1):  # many small sums: threads would cost more than they bring
            records = rehearse(experiment, stages[key], rounds)
        one = forecast(
            label,
            records,
            clients=experiment.partition.clients,
            feedback=experiment.codec.error_feedback,
        )
        if one is None:
            reasons = {r.reason for record in records for r in record.reports}
            raise ConfigError(f"{label}: no update arrives in {rounds} rounds: {min(reasons)}")
        found[label] = one
    return found


def _show(screen: Console, found: Plan) -> None:
    screen.print(_forecast_table("candidate", found.candidates))
    aside = "codec, both ways" if found.keeps_strategy else "codec, both ways; fixed, 1 epoch"
    screen.print(_forecast_table(aside, found.by_codec))
    screen.print(_node_table(found.candidates[0]))
    for line in _words(found):
        screen.print(line)


def _forecast_table(head: str, forecasts: Sequence[Forecast]) -> Table:
    table = Table(
        head,
        "seconds\na round",
        "uplink MB\na round",
        "downlink MB\na round",
        "local\nsteps",
        "compute / (compute +\ncommunication) %",
    )
    for column in table.columns[1:]:
        column.justify = "right"
    for one in forecasts:
        low, middle, high = one.bound
        table.add_row(
            Text(one.label),
            number(one.round_s),
            number(one.uplink_bytes / 1e6),
            number(one.downlink_bytes / 1e6),
            number(one.local_steps),
            f"{percent(middle)} [{percent(low)}..{percent(high)}]",
        )
    return table


def _node_table(one: Forecast) -> Table:
    """The slowest clients first; of many, some in even steps down to the fastest."""
    table = Table(
        f"client, {escape(one.label)}",
        "examples",
        "steps",
        "download s",
        "compute s",
        "upload s",
        "bound %",
    )
    for column in table.columns[1:]:
        column.justify = "right"
    count = min(_SHOWN_NODES, len(one.nodes))
    places = {round(i * (len(one.nodes) - 1) / max(1, count - 1)) for i in range(count)}
    for place in sorted(places):
        node = one.nodes[place]
        seconds = (node.download_s, node.compute_s, node.upload_s)
        table.add_row(
            str(node.node_id),
            str(node.examples),
            number(node.local_steps),
            *map(number, seconds),
            percent(node.bound),
        )
    return table


def _words(found: Plan) -> list[str]:
    """What sets the pace, and what would decide."""
    first = found.candidates[0]
    slowest = first.nodes[0]
    middle_s = median(node.busy_s for node in first.nodes)
    lines = [
        f"{first.label}: client {slowest.node_id} is the slowest, {number(slowest.busy_s)} s; the "
        f"median client needs {number(middle_s)} s."
    ]
    if first.left_out:
        lines.append(f"{first.left_out} updates of {first.rounds} rounds are lost or late.")
    decision = found.decision()
    return lines if decision is None else lines + _decision_words(found, decision)


def _decision_words(found: Plan, decision: Decision) -> list[str]:
    first, second = decision.first.label, decision.second.label
    if not decision.first.round_s and not decision.second.round_s:
        return [f"Rounds of {first} and {second} take no time here: nothing to decide."]
    lines = [
        f"{first} is sooner than {second} if it needs less than {number(decision.break_even)} "
        f"times the rounds; {number(decision.expected_rounds)} times are expected, so "
        f"{decision.sooner.label} is expected to be {number(_factor(decision))} times as fast."
    ]
    if decision.seeds is None:
        lines.append(
            f"Not even {MAX_SEEDS} paired seeds would show that: take the simpler one, or look for "
            f"a difference above {number(smallest_shown(MAX_SEEDS))} times."
        )
        return lines
    why = "Only to confirm it" if decision.is_foregone else "The cheapest experiment that decides"
    lines.append(f"{why}: {decision.seeds} paired seeds, {_command(found, decision)}")
    return lines


def _factor(decision: Decision) -> float:
    return max(decision.time_ratio, 1 / decision.time_ratio)


def _command(found: Plan, decision: Decision) -> str | None:
    """The comparison of the two with as many seeds as it takes."""
    if decision.seeds is None:
        return None
    labels = [one.label for one in (decision.first, decision.second)]
    names = ",".join(slug(label) if "," in label else label for label in labels)
    file = shlex.quote(str(found.file))
    settings = "".join(f" --set {shlex.quote(setting)}" for setting in found.settings)
    choice = f"--strategies {shlex.quote(names)} --seeds {decision.seeds}"
    return f"fedsys compare {file} {choice}{settings}"
