"""``fedsys ablate``: what each optimisation of an experiment is worth, by switching it off."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedsys.cli.batch import Batch, batch_of, check_cells, report_faults, trials_of
from fedsys.cli.cells import MOST_SEEDS, Cell, Variant, cells_of
from fedsys.cli.tables import check_writable, comparison_table, console, save_json, write_json
from fedsys.config.load import load_experiment
from fedsys.config.schema import Experiment
from fedsys.errors import ConfigError
from fedsys.options import defaults
from fedsys.registry import load, nearest
from fedsys.telemetry.comparison import Comparison, Row, compare, comparison_json
from fedsys.telemetry.figures import number, points
from fedsys.telemetry.statistics import MIN_PAIRS, Interval

WHOLE = "all on"
Switches = dict[str, dict[str, Any]]
"""What is switched off, and the dotted keys that do it."""


def ablate(
    file: Annotated[Path, typer.Argument(help="The experiment, a TOML file.")],
    only: Annotated[
        str, typer.Option(help="Switches to try, with commas between them; none given means all.")
    ] = "",
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
    """Switch each optimisation off in turn and say what it is worth, with intervals.

    Switches are the options of the strategy that are true, what the strategy declares as SWITCHES,
    and codecs and error feedback where the file sets them. Finished runs are kept.
    """
    check_writable(json, "--json")
    experiment = load_experiment(file, set_ or [])
    switches = chosen(switches_of(experiment), only)
    variants: list[Variant] = [(WHOLE, {})]
    variants += [(f"without {name}", settings) for name, settings in switches.items()]
    folder = out / f"{experiment.run.name}-ablate"
    seeds = seeds or experiment.compare.seeds
    cells = cells_of(experiment, variants, folder, seeds=seeds, what="ablation")
    check_cells(cells)
    with batch_of(workers) as batch:
        run_ablation(experiment, cells, batch, folder=folder, json=json)


def switches_of(experiment: Experiment) -> Switches:
    """What can be switched off in this experiment; ConfigError where nothing can.

    A strategy may declare ``SWITCHES = {"name": {"option": off}}`` for options that are no
    booleans; those of its boolean options that are on are found without that.
    """
    name, options = experiment.strategy.name, experiment.strategy.options
    kind = load("strategies", name, "strategy")
    values = {**defaults(kind), **options}
    declared: Mapping[str, Mapping[str, Any]] = getattr(kind, "SWITCHES", {})
    found: Switches = {}
    for switch, off in declared.items():
        if any(values.get(option) != value for option, value in off.items()):
            found[switch] = _options(off)
    covered = {option for off in declared.values() for option in off}
    for option, value in values.items():
        if value is True and option not in covered:
            found[option] = _options({option: False})
    found |= _codec_switches(experiment)
    if not found:
        raise ConfigError(
            f"strategy '{name}' has nothing that is on and can be switched off, and the experiment "
            "uses no codec"
        )
    return found


def chosen(switches: Switches, only: str) -> Switches:
    """Those named in ``only``, or all."""
    names = [name.strip() for name in only.split(",") if name.strip()]
    for name in names:
        if name not in switches:
            raise ConfigError(f"--only: no switch '{name}'; {nearest(name, list(switches))}")
    return {name: switches[name] for name in names} if names else switches


def run_ablation(
    experiment: Experiment,
    cells: Sequence[Cell],
    batch: Batch,
    *,
    folder: Path,
    json: Path | None,
) -> None:
    """Run what is not finished, then print the table and what each switch is worth."""
    screen = console()
    faults = batch.run(screen, cells)
    trials = trials_of(cells)
    if trials[WHOLE]:
        run = experiment.run
        comparison = compare(f"{run.name}-ablate", run.target, trials, budget=run.budget)
        lines = worths(comparison)
        screen.print(comparison_table(comparison, screen.width))
        for line in lines:
            screen.print(line)
        from fedsys.telemetry.report import write_report

        content = comparison_json(comparison, lines)
        write_report(folder / "report.html", comparison)
        save_json(folder / "comparison.json", content)
        write_json(json, content)
        screen.print(f"report: {folder / 'report.html'}", soft_wrap=True)
    report_faults(screen, faults)


def worths(comparison: Comparison) -> list[str]:
    """One sentence a switch, that which is worth most time first."""
    rows = [(row, comparison.ratio(row, "seconds")) for row in comparison.rows[1:]]
    ranked = sorted(rows, key=lambda pair: -pair[1].mean if pair[1] is not None else 0.0)
    return [_worth(comparison, row, ratio) for row, ratio in ranked]


def _worth(comparison: Comparison, row: Row, ratio: Interval | None) -> str:
    name = row.label.removeprefix("without ")
    parts = []
    never = not row.reached and comparison.rows[0].reached
    if never:
        parts.append("is needed: without it the target is never reached")
    elif ratio is not None and ratio.identical and not ratio.bound:
        parts.append("makes no difference in time")
    elif ratio is not None and not ratio.unknown:
        parts.append(_time_words(ratio))
    elif ratio is not None:
        parts.append("neither with nor without it the target is reached")
    gain = comparison.gain(row)
    if gain is not None and gain.pairs >= MIN_PAIRS and gain.significant:
        side = "lower" if gain.mean < 0 else "higher"
        ends = f"{points(gain.low)} to {points(gain.high)}"
        parts.append(
            f"final accuracy without it is {points(abs(gain.mean), sign=False)} points {side} "
            f"(95 % interval {ends})"
        )
    if (missed := len(row.trials) - row.reached) and not never:
        parts.append(f"{missed} of {len(row.trials)} runs miss the target without it")
    return f"{name}: {'; '.join(parts) or 'nothing can be said'}."


def _time_words(ratio: Interval) -> str:
    bound = {"": "", "<": "at most ", ">": "at least ", "~": "about "}[ratio.bound]
    without = f"without it {bound}{number(ratio.mean)}x the time to target"
    if ratio.pairs < MIN_PAIRS:
        return f"{without} over {ratio.pairs} seeds, too few to call anything significant"
    interval = f"95 % interval {number(ratio.low)}x to {number(ratio.high)}x"
    if ratio.significant:
        return f"{'is worth it' if ratio.mean > 1 else 'does harm'}: {without} ({interval})"
    return f"no significant effect: {without} ({interval})"


def _options(off: Mapping[str, Any]) -> dict[str, Any]:
    return {f"strategy.options.{option}": value for option, value in off.items()}


def _codec_switches(experiment: Experiment) -> Switches:
    """The file's own codecs, how whole models go down, and error feedback, where they are on."""
    from strategies._base import is_asynchronous
    from strategies.server_app import controller_for

    codec, found = experiment.codec, Switches()
    controller = controller_for(experiment)
    chooses = controller.chooses_codecs
    if codec.uplink != "none" and not chooses:
        found["the uplink codec"] = {"codec.uplink": "none"}
    if codec.downlink != "none" and not chooses:
        found["the downlink codec"] = {"codec.downlink": "none"}
    if codec.first_model != "none" and (chooses or codec.downlink != "none"):
        found["the first model's codec"] = {"codec.first_model": "none"}
        clients = experiment.partition.clients
        miss_some = is_asynchronous(controller) or experiment.cohort.count(clients) < clients
        if codec.key_frames and miss_some:
            found["key frames"] = {"codec.key_frames": False}
    if codec.error_feedback and (chooses or codec.uplink != "none"):
        found["error feedback"] = {"codec.error_feedback": False}
    return found
