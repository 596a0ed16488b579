"""Who is soonest, in which scene? ``python -m benchmarks.strategies [--quick] [--seeds N]``.

Every strategy of ``strategies.toml`` in every scenario, with paired seeds, beside what hindsight
would have run. Prints one row for each bar: what was measured and what must be reached. Runs that
are finished are kept in --out and reused; the rest goes on. Exit status 1 when a bar is missed.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import typer

from benchmarks.provenance import provenance
from benchmarks.strategies_page import write_page
from fedsys.cli.batch import batch_of
from fedsys.cli.compare import SCENES, run_scenes
from fedsys.cli.execution import usable_cores
from fedsys.cli.hindsight import CODECS, EPOCHS, Grid
from fedsys.cli.scenes import Goal, find_files, load_scenes
from fedsys.config.load import load_experiment
from fedsys.telemetry.statistics import geometric_mean

ENTRIES = Path(__file__).with_name("strategies.toml")
SCENARIOS = Path(__file__).parents[1] / "scenarios"
OURS, BASELINE = "adaptive", "FedAvg"
OPPONENTS = ("AdaComm", "NAC-FL", "FedLuck")
QUICK_SCENARIOS = ("digits-dirichlet-static-1m", "digits-step-drop")
QUICK_STRATEGIES = ("FedAvg", "int8, 4 epochs", "adaptive")
QUICK = ["run.budget.rounds=4", "run.target=0.2", "partition.clients=8"]
VARYING = ("step", "diurnal", "markov", "lte", "lte-driving", "5g-edge", "3g")
"""Links that change during a run."""
_TO_THE_END = ["run.stop_at_target=false"]

MAX_OVER_ORACLE_STATIC = 1.10
MAX_OVER_ORACLE_VARYING = 1.00
MAX_OVER_ORACLE_ANYWHERE = 1.25
MAX_OVER_OPPONENT = 1 / 1.3
MAX_ACCURACY_LOSS = 0.005


@dataclass(frozen=True, slots=True)
class Row:
    """One bar: ``measured`` must not exceed ``bound``; None where nothing could be measured."""

    name: str
    bound: float
    measured: float | None

    @property
    def ok(self) -> bool:
        """Whether the bar is reached."""
        return self.measured is not None and self.measured <= self.bound


def main() -> int:
    """Run what is missing, print the bars, and say whether they are reached."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two scenes, four rounds: any fault?")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", default="", help="scenarios whose names begin so")
    parser.add_argument("--to-the-end", action="store_true", help="also compare final accuracies")
    parser.add_argument("--workers", type=int, default=usable_cores())
    parser.add_argument("--out", type=Path, default=Path("runs/strategies"))
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--page", type=Path, help="write them as Markdown here")
    options = parser.parse_args()
    found = _run(options)
    rows = list(bars(found["scenes"], found["standings"], to_the_end=options.to_the_end))
    for row in rows:
        measured = "-" if row.measured is None else f"{row.measured:.3f}"
        print(f"{'ok  ' if row.ok else 'MISS'} {row.name}: {measured}, at most {row.bound:.3f}")
    source = provenance()
    if options.json:
        content = {"source": source, "bars": [asdict(r) | {"ok": r.ok} for r in rows]} | found
        options.json.write_text(json.dumps(content, indent=1) + "\n")
    if options.page:
        write_page(options.page, source, rows, found)
    return 0 if options.quick or all(row.ok for row in rows) else 1


def _run(options: argparse.Namespace) -> dict:
    """What ``fedsys compare --oracle --json`` would have written."""
    names = QUICK_SCENARIOS if options.quick else None
    files = [
        file
        for file in find_files([SCENARIOS])
        if (file.stem in names if names else file.stem.startswith(options.only))
    ]
    if len(files) < 2:
        sys.exit(f"--only {options.only}: fewer than two scenarios of that name in {SCENARIOS}")
    out = options.out / "quick" if options.quick else options.out
    settings = [*(QUICK if options.quick else []), *(_TO_THE_END if options.to_the_end else [])]
    scenes = load_scenes(
        files,
        settings,
        out,
        seeds=1 if options.quick else options.seeds,
        strategies=QUICK_STRATEGIES if options.quick else (),
        entries=ENTRIES,
    )
    grid = Grid.parse("1,4", "int8") if options.quick else Grid.parse(EPOCHS, CODECS)
    with batch_of(options.workers) as batch, suppress(typer.Exit):
        run_scenes(scenes, batch, goal=Goal(), grid=grid, out=out, json=None)
        return json.loads((out / SCENES).read_text())
    sys.exit(130 if batch.stop() else 1)


def bars(
    scenes: Sequence[dict], standings: Sequence[dict], *, to_the_end: bool = False
) -> Iterator[Row]:
    """The bars over the scenes that were run."""
    over = {scene["experiment"]: _over_oracle(scene) for scene in scenes}
    links = {file.stem: _link(file) for file in find_files([SCENARIOS])}
    varying = [over[name] for name in over if links[name] in VARYING]
    static = [over[name] for name in over if links[name] not in VARYING]
    yield Row(
        "time over the best fixed plan, links that do not change",
        MAX_OVER_ORACLE_STATIC,
        _mean(static),
    )
    yield Row(
        "time over the best fixed plan, links that change", MAX_OVER_ORACLE_VARYING, _mean(varying)
    )
    known = [ratio for ratio in over.values() if ratio is not None]
    yield Row(
        "time over the best fixed plan, worst scene",
        MAX_OVER_ORACLE_ANYWHERE,
        max(known, default=None),
    )
    ours = {scene["experiment"]: _row(scene, OURS) for scene in scenes}
    best = [
        min((s for name in OPPONENTS if (s := _seconds(_row(scene, name)))), default=None)
        for scene in scenes
    ]
    ratios = [
        _seconds(row) / opponent
        for row, opponent in zip(ours.values(), best, strict=True)
        if opponent and _seconds(row)
    ]
    if any(best):
        yield Row(f"time over the best of {', '.join(OPPONENTS)}", MAX_OVER_OPPONENT, _mean(ratios))
    if to_the_end:
        losses = [
            -row["final_accuracy_gain"]["mean"]
            for row in ours.values()
            if row and row["final_accuracy_gain"]
        ]
        name = f"final accuracy lost against {BASELINE}, worst scene"
        yield Row(name, MAX_ACCURACY_LOSS, max(losses, default=None))
    lost = next((s["lost_fraction"] for s in standings if s["strategy"] == OURS), None)
    yield Row(f"share of scenes lost to {BASELINE}", 0.0, lost)


def _over_oracle(scene: dict) -> float | None:
    row = _row(scene, OURS)
    found = row and row["seconds_over_oracle"].get("best fixed plan")
    return found["mean"] if found else None


def _row(scene: dict, label: str) -> dict | None:
    return next((row for row in scene["rows"] if row["strategy"] == label), None)


def _seconds(row: dict | None) -> float | None:
    """Median seconds to the target; its horizon where it was not reached."""
    return row["seconds_to_target_at_least"] if row else None


def _mean(ratios: Sequence[float | None]) -> float | None:
    known = [ratio for ratio in ratios if ratio]
    return geometric_mean(known) if known else None


def _link(file: Path) -> str:
    return load_experiment(file).network.link


if __name__ == "__main__":
    sys.exit(main())
