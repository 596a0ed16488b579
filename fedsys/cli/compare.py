"""``fedsys compare``: strategies over the same scenes and seeds, one table and one verdict."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedsys.cli.batch import Batch, batch_of, check_cells, report_faults, trials_of
from fedsys.cli.cells import MOST_SEEDS, Cell
from fedsys.cli.hindsight import CODECS, EPOCHS, Grid, grid_rows, oracles
from fedsys.cli.scenes import Goal, Scene, load_scenes
from fedsys.cli.tables import (
    check_writable,
    comparison_table,
    console,
    save_json,
    scenes_table,
    write_json,
)
from fedsys.errors import ConfigError
from fedsys.telemetry.comparison import Comparison, compare, comparison_json
from fedsys.telemetry.scenes import Scenes, scenes_json
from fedsys.telemetry.verdict import scenes_verdict, target_text, verdict

COMPARISON = "comparison.json"
SCENES = "scenes.json"
PAGE = "report.html"
_AS_FILE = Goal()


def compare_command(
    files: Annotated[
        list[Path], typer.Argument(help="Experiments, TOML files or folders of them: the scenes.")
    ],
    seeds: Annotated[
        int | None, typer.Option(min=1, max=MOST_SEEDS, help="Paired seeds from run.seed on.")
    ] = None,
    strategies: Annotated[
        str,
        typer.Option(
            help="Entries (labels or folder names) or strategies; the first is the baseline."
        ),
    ] = "",
    entries: Annotated[
        Path | None, typer.Option(help=r"File whose \[\[compare.entries]] hold for every scene.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(help="A level (0.9), or a share of the best that any strategy reaches (98%)."),
    ] = None,
    oracle: Annotated[
        bool, typer.Option("--oracle", help="Also run what hindsight would have chosen.")
    ] = False,
    oracle_epochs: Annotated[
        str | None, typer.Option(help=f"Local epochs of its grid; {EPOCHS} unless given.")
    ] = None,
    oracle_codecs: Annotated[
        str | None, typer.Option(help=f"Codecs of its grid, both ways; {CODECS} unless given.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="key=value, overrides the files.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Runs at the same time.")] = None,
    out: Annotated[Path, typer.Option(help="Folder that run folders go into.")] = Path("runs"),
    json: Annotated[Path | None, typer.Option(help="Also write the table as JSON.")] = None,
) -> None:
    """Run strategies on the same scenes, seeds, splits and links, and say which is better.

    Runs that are finished are kept and reused; those that were stopped go on.
    """
    check_writable(json, "--json")
    for option, value in (("epochs", oracle_epochs), ("codecs", oracle_codecs)):
        if value is not None and not oracle:
            raise ConfigError(f"--oracle-{option} has no effect without --oracle")
    goal, names = Goal.parse(target), [s.strip() for s in strategies.split(",") if s.strip()]
    settings = [*(set_ or []), *goal.settings()]
    scenes = load_scenes(files, settings, out, seeds=seeds, strategies=names, entries=entries)
    grid = Grid.parse(oracle_epochs or EPOCHS, oracle_codecs or CODECS) if oracle else None
    planned = {scene.name: grid.cells(scene) if grid else [] for scene in scenes}
    _check(scenes, goal, planned, with_oracle=oracle)
    with batch_of(workers) as batch:
        run_scenes(scenes, batch, goal=goal, grid=grid, out=out, json=json)


def _check(
    scenes: Sequence[Scene], goal: Goal, planned: Mapping[str, Sequence[Cell]], *, with_oracle: bool
) -> None:
    """Raise ConfigError for anything that would fail, or mean nothing, once runs have begun."""
    alone = [s.name for s in scenes if len({c.label for c in s.cells}) < 2 and not with_oracle]
    if alone:
        raise ConfigError(f"{alone[0]}: one strategy only; a comparison needs two, or --oracle")
    aimless = [s.name for s in scenes if s.experiment.run.target is None and goal.share is None]
    if aimless and (with_oracle or len(scenes) > 1):
        raise ConfigError(f"{aimless[0]}: needs a target, run.target or --target, to compare times")
    for scene in scenes:
        try:
            check_cells([*scene.cells, *planned[scene.name]])
        except ConfigError as error:
            raise ConfigError(
                f"{scene.name}: {error}" if len(scenes) > 1 else str(error)
            ) from error


def run_scenes(
    scenes: Sequence[Scene],
    batch: Batch,
    *,
    out: Path,
    json: Path | None,
    goal: Goal = _AS_FILE,
    grid: Grid | None = None,
) -> None:
    """Run what is not finished, then print tables and verdict and write the reports.

    Exits with 130 after Ctrl-C and with 1 when a cell failed.
    """
    screen = console()
    grids = {scene.name: grid.cells(scene) if grid else [] for scene in scenes}
    cells = chain.from_iterable([*scene.cells, *grids[scene.name]] for scene in scenes)
    faults = batch.run(screen, list(cells))
    found = {scene.name: judge(scene, goal) for scene in scenes}
    if grid is not None:
        fixed = {
            scene.name: grid_rows(scene, grids[scene.name], comparison)
            for scene in scenes
            if (comparison := found[scene.name]) is not None
        }
        parts = {s.name: grid.schedule_cells(s, fixed.get(s.name, [])) for s in scenes}
        faults |= batch.run(screen, list(chain.from_iterable(parts.values())))
        for scene in scenes:
            if (comparison := found[scene.name]) is not None:
                tried = grid_rows(scene, parts[scene.name], comparison)
                best = oracles(fixed[scene.name], tried)
                found[scene.name] = replace(comparison, oracles=best)
    _publish(screen, scenes, {name: one for name, one in found.items() if one}, out, json)
    report_faults(screen, faults)


def judge(scene: Scene, goal: Goal) -> Comparison | None:
    """The comparison of what is finished; None where nothing is."""
    run, trials = scene.experiment.run, trials_of(scene.cells)
    if not any(trials.values()):
        return None
    return compare(run.name, run.target, trials, budget=run.budget, share=goal.share)


def _publish(
    screen: Console,
    scenes: Sequence[Scene],
    found: Mapping[str, Comparison],
    out: Path,
    json: Path | None,
) -> None:
    """Tables, verdicts, reports and JSON of what is finished; nothing where nothing is."""
    from fedsys.telemetry.report import write_report
    from fedsys.telemetry.scenes_report import write_scenes_report

    folders = {scene.name: scene.folder for scene in scenes}
    verdicts = {name: verdict(comparison) for name, comparison in found.items()}
    for name, comparison in found.items():
        write_report(folders[name] / PAGE, comparison)
        save_json(folders[name] / COMPARISON, comparison_json(comparison, verdicts[name]))
    if len(scenes) == 1:
        for name, comparison in found.items():
            screen.print(comparison_table(comparison, screen.width))
            if comparison.share is not None:
                screen.print(target_text(comparison))
            for line in verdicts[name]:
                screen.print(line)
            write_json(json, comparison_json(comparison, verdicts[name]))
            screen.print(f"report: {folders[name] / PAGE}", soft_wrap=True)
        return
    base = scenes[0].cells[0].label
    # Where every run of the baseline failed, there is nothing to be a ratio of.
    found = {name: one for name, one in found.items() if one.rows[0].label == base}
    if not found:
        return
    whole = Scenes(list(found.values()))
    lines = scenes_verdict(whole)
    screen.print(scenes_table(whole))
    for line in lines:
        screen.print(line)
    content = scenes_json(whole, [verdicts[name] for name in found], lines)
    save_json(out / SCENES, content)
    write_json(json, content)
    page = out / "scenes.html"
    write_scenes_report(page, whole, {name: f"{name}/{PAGE}" for name in found})
    screen.print(f"report: {page}", soft_wrap=True)
