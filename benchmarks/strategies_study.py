"""The runs of ``benchmarks.strategies``: which there are, in what order, and what came of them."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import typer

from fedsys.cli.ablate import WHOLE, switches_of, worths
from fedsys.cli.batch import Batch, finished, trials_of
from fedsys.cli.cells import Cell, Variant, cells_of
from fedsys.cli.compare import judge
from fedsys.cli.hindsight import Grid, grid_rows, oracles
from fedsys.cli.rehearsal import Stage, rehearse
from fedsys.cli.scenes import Goal, Scene, load_scenes
from fedsys.cli.tables import console
from fedsys.config.load import with_settings
from fedsys.config.schema import Experiment
from fedsys.telemetry.comparison import Comparison, compare, comparison_json
from fedsys.telemetry.runfolder import RunFolder
from fedsys.telemetry.scenes import Scenes, scenes_json
from fedsys.telemetry.statistics import geometric_mean
from fedsys.telemetry.verdict import scenes_verdict, verdict
from netem.describe import Window
from netem.profiles import link_model

ENTRIES = Path(__file__).with_name("strategies.toml")
SCENARIOS = Path(__file__).parents[1] / "scenarios"
OURS, BASELINE = "adaptive", "FedAvg"
COMMITS = "commits.txt"
ORDER = (
    "digits-dirichlet-static-1m",
    "digits-stragglers",
    "digits-iid-static-100k",
    "digits-markov",
    "digits-step-drop",
    "digits-perfect",
    "digits-satellite",
    "digits-shards-static-10m",
    "digits-tenth-wifi",
    "digits-diurnal",
    "digits-churn",
    "digits-shared-server",
    "fashion-iid-static-1m",
    "fashion-lte-driving",
    "fashion-shards-5g-edge",
    "chars-iid-markov",
    "chars-users-3g",
)
"""What tells most for its cost comes first."""
DEAR, DEAR_SEEDS = ("fashion", "chars"), 5
DEAR_STRATEGIES = (BASELINE, OURS, "k-decay", "FedLuck", "FedBuff")
"""There only the three who come nearest on the others, and no grid: a run takes minutes."""
MAX_ROUNDS = "run.budget.rounds=150"
"""Of every run: what has not reached a target by then is far behind."""
RACE_SEEDS, RACE_FACTOR = 3, 1.5
"""Further seeds of a scenario are for what took up to so many times the best in these."""
GRID = Grid((4, 8, 16), ("int8", "ecq(2)", "ecq(0.5)"))
GRIDS = {"digits-perfect": Grid((1, 4), ("none", "int8"))}
FINAL_S = {
    "digits-dirichlet-static-1m": 412.0,
    "digits-stragglers": 2000.0,
    "digits-shards-static-10m": 50.0,
    "digits-perfect": 27.5,
    "digits-tenth-wifi": 213.0,
    "digits-churn": 4500.0,
}
"""After how many virtual seconds final accuracies are compared: 150 rounds of the baseline."""
FINAL_ROUNDS = 650
"""At most: short rounds of ours end before the seconds do."""
FINAL_EVALUATIONS = 10
ABLATED = (
    "digits-dirichlet-static-1m",
    "digits-markov",
    "digits-shards-static-10m",
    "digits-tenth-wifi",
    "digits-churn",
)
ABLATION_SEEDS = 3
FORESEEN = (BASELINE, "int8, 4 epochs", OURS)
FORESEEN_ROUNDS = 5
QUICK = ("digits-dirichlet-static-1m", "digits-step-drop")
QUICK_STRATEGIES = (BASELINE, "adaptive", "int8, 4 epochs")
QUICK_SETTINGS = ["run.budget.rounds=4", "run.target=0.2", "partition.clients=8"]


class Stopped(Exception):
    """Somebody pressed Ctrl-C; what is finished is kept."""


@dataclass(frozen=True, slots=True)
class Study:
    """All cells of the study, in folders below ``out``."""

    out: Path
    only: str
    seeds: int
    quick: bool

    @property
    def files(self) -> list[Path]:
        """The scenarios, in the order in which they are run."""
        names = QUICK if self.quick else ORDER
        return [SCENARIOS / f"{name}.toml" for name in names if name.startswith(self.only)]

    def note_commit(self, commit: str) -> None:
        """Remember what the runs that follow are made with."""
        self.out.mkdir(parents=True, exist_ok=True)
        known = self.commits()
        if commit not in known.split(", "):
            (self.out / COMMITS).write_text(", ".join(filter(None, (known, commit))))

    def commits(self) -> str:
        """The commits that runs in the folder were made at, with commas between them."""
        file = self.out / COMMITS
        return file.read_text().strip() if file.exists() else ""

    def scenes(self, seeds: int) -> list[Scene]:
        """Every scenario with so many seeds, the dear ones with fewer."""
        found: list[Scene] = []
        for file in self.files:
            count = min(seeds, DEAR_SEEDS) if is_dear(file.stem) else seeds
            chosen = DEAR_STRATEGIES if is_dear(file.stem) else ()
            chosen = QUICK_STRATEGIES if self.quick else chosen
            found += load_scenes(
                [file],
                QUICK_SETTINGS if self.quick else [MAX_ROUNDS],
                self.out / "quick" if self.quick else self.out,
                seeds=count,
                strategies=chosen,
                entries=ENTRIES,
            )
        return found

    def run(self, batch: Batch) -> None:
        """Seed by seed and scene by scene; the short studies come between, the dear ones last."""
        if self.quick:
            return self._pass(batch, self.scenes(1))
        for seeds in range(1, self.seeds + 1):
            self._pass(batch, [one for one in self.scenes(seeds) if not is_dear(one.name)])
            if seeds <= ABLATION_SEEDS:
                _run(batch, [cell for one in self.ablations(seeds) for cell in one])
            if seeds == 1:
                _run(batch, [cell for one in self.finals() for cell in one])
        for seeds in range(1, min(self.seeds, DEAR_SEEDS) + 1):
            self._pass(batch, [one for one in self.scenes(seeds) if is_dear(one.name)])

    def _pass(self, batch: Batch, scenes: Sequence[Scene]) -> None:
        for scene in scenes:
            _run(batch, [*contenders(scene.cells), *contenders(self.grid(scene))])

    def grid(self, scene: Scene) -> list[Cell]:
        """Runs of the fixed plans that hindsight may choose from."""
        if is_dear(scene.name):
            return []
        grid = Grid((4,), ("int8",)) if self.quick else GRIDS.get(scene.name, GRID)
        return grid.cells(scene)

    def ablations(self, seeds: int) -> Iterator[list[Cell]]:
        """For each scenario, ours as it is and without each of its parts."""
        for scene in self.scenes(1):
            if scene.name in ABLATED and not self.quick:
                ours = with_settings(scene.experiment, {"strategy.name": OURS}, OURS)
                variants: list[Variant] = [(WHOLE, {})]
                variants += [(f"without {name}", off) for name, off in switches_of(ours).items()]
                yield cells_of(ours, variants, self.out / "ablation" / scene.name, seeds=seeds)

    def finals(self) -> Iterator[list[Cell]]:
        """For each scenario, the baseline and ours, past the target."""
        for scene in self.scenes(1):
            if scene.name in FINAL_S and not self.quick:
                variants: list[Variant] = [
                    (
                        label,
                        {
                            "strategy.name": name,
                            "run.stop_at_target": False,
                            "run.budget.rounds": FINAL_ROUNDS,
                            "run.budget.seconds": FINAL_S[scene.name],
                        },
                    )
                    for label, name in ((BASELINE, "fixed"), (OURS, OURS))
                ]
                folder = self.out / "final" / scene.name
                yield cells_of(scene.experiment, variants, folder, seeds=1)

    def found(self) -> dict[str, Any]:
        """All figures of what is finished."""
        judged = []
        for scene in self.scenes(self.seeds):
            comparison = judge(scene, Goal())
            if comparison is None or comparison.rows[0].label != BASELINE:
                continue
            best = oracles(grid_rows(scene, self.grid(scene), comparison), [])
            judged.append(replace(comparison, oracles=best))
        # Only where all were run is one mean as good as another.
        whole = Scenes([one for one in judged if not is_dear(one.name)])
        verdicts = [verdict(one) for one in judged]
        content = scenes_json(Scenes(judged), verdicts, scenes_verdict(whole))
        return content | {
            "standings": scenes_json(whole, verdicts[: len(whole.scenes)], [])["standings"],
            "ours_over": {one.name: dict(_ours_over(one)) for one in judged},
            "final": dict(self._final_accuracies()),
            "ablation": dict(self._ablation()),
            "foresight": dict(self._foresight()),
            "compressed": self._compressed(),
            "updates": dict(self._updates()),
            "links": {scene.name: uplinks(scene.experiment) for scene in self.scenes(1)},
            "hours": self._hours(),
        }

    def _hours(self) -> float:
        """What all finished runs together took; each has one core."""
        results = (json.loads(file.read_text()) for file in self.out.rglob("result.json"))
        return sum(result["wall_s"] for result in results) / 3600

    def _final_accuracies(self) -> Iterator[tuple[str, dict[str, float]]]:
        """By scenario and label: the mean of the last evaluations."""
        for cells in self.finals():
            trials = {cell.label: trial for cell in cells if (trial := finished(cell))}
            if len(trials) == len(cells):
                yield (
                    cells[0].path.parent.name,
                    {
                        label: fmean(
                            [r.test_metric for r in trial.records if r.test_metric is not None][
                                -FINAL_EVALUATIONS:
                            ]
                        )
                        for label, trial in trials.items()
                    },
                )

    def _ablation(self) -> Iterator[tuple[str, Any]]:
        for cells in self.ablations(ABLATION_SEEDS):
            trials = {label: runs for label, runs in trials_of(cells).items() if runs}
            if WHOLE in trials:
                run = cells[0].experiment.run
                name = cells[0].path.parent.name
                comparison = compare(name, run.target, trials, budget=run.budget)
                known = {"parts": list(dict.fromkeys(cell.label for cell in cells))}
                yield name, comparison_json(comparison, worths(comparison)) | known

    def _foresight(self) -> Iterator[tuple[str, dict[str, dict[str, float]]]]:
        """By scenario and label: seconds a round as foretold and as simulated, first seed."""
        for scene in self.scenes(1):
            cells = {c.label: c for c in scene.cells if c.label in FORESEEN and finished(c)}
            if not cells:
                continue
            stage = Stage.of(scene.experiment)
            yield (
                scene.name,
                {label: _foreseen(cell, stage) for label, cell in cells.items()},
            )

    def _updates(self) -> Iterator[tuple[str, float]]:
        """By scenario: bytes of ours' coded updates alone over the baseline's, up to the target.

        Geometric means over paired seeds. One that came and was not used counts with its requests.
        """
        for scene in self.scenes(self.seeds):
            sent: dict[str, dict[int, float]] = {BASELINE: {}, OURS: {}}
            for cell in scene.cells:
                if cell.label in sent and (trial := finished(cell)):
                    reports = [r for record in trial.records for r in record.reports]
                    sizes = (r.packet_bytes if r.accepted else r.uplink_bytes for r in reports)
                    sent[cell.label][cell.seed] = float(sum(sizes))
            if pairs := sent[OURS].keys() & sent[BASELINE].keys():
                yield (
                    scene.name,
                    geometric_mean([sent[OURS][one] / sent[BASELINE][one] for one in pairs]),
                )

    def _compressed(self) -> float | None:
        """Share of ours' updates that are coded where there is no network; not the first round."""
        cells = (cell for scene in self.scenes(1) for cell in scene.cells)
        for cell in cells:
            is_it = cell.experiment.network.link == "perfect" and cell.label == OURS
            if is_it and (trial := finished(cell)):
                sent = [c.uplink for r in trial.records[1:] for c in r.plan.clients]
                return fmean(spec != "none" for spec in sent) if sent else None
        return None


def uplinks(experiment: Experiment) -> dict[str, Any]:
    """The median client's mean rate up in bit/s, up to the horizon; null has no limit.

    And whether all links are alike and never change.
    """
    network = experiment.network
    model = link_model(network.link, network.options)
    nodes = range(1, experiment.partition.clients + 1)
    links = [model.build(experiment.run.seed, node) for node in nodes]
    horizon_s = experiment.run.budget.seconds or 1.0
    windows = [Window.of(link.up.curve, horizon_s) for link in links]
    mean_bps = median(window.mean_bps for window in windows)
    rates = {float(rate) for window in windows for rate in window.rate_bps}
    shaken = any(link.up.jitter_ms or link.up.loss_fraction for link in links)
    shared = network.server_up_mbps or network.server_down_mbps
    return {
        "uplink_bps": None if mean_bps == math.inf else mean_bps,
        "steady": len(rates) == 1 and not shaken and not shared,
    }


def contenders(cells: Sequence[Cell]) -> list[Cell]:
    """All but the further seeds of those that the first ones show far behind the best (a race).

    The baseline and ours are no part of it.
    """
    seconds: dict[str, list[float]] = {}
    for cell in cells:
        result = RunFolder(cell.path, cell.experiment).result()
        if result and cell.seed <= RACE_SEEDS and cell.label not in (BASELINE, OURS):
            reached, horizon_s = result["at_target"], cell.experiment.run.budget.seconds or 0.0
            spent = reached["seconds"] if reached else max(result["total"]["seconds"], horizon_s)
            seconds.setdefault(cell.label, []).append(spent)
    means = {k: geometric_mean(all_) for k, all_ in seconds.items() if len(all_) == RACE_SEEDS}
    most = RACE_FACTOR * min(means.values(), default=0.0)
    behind = {label for label, mean in means.items() if mean > most}
    return [cell for cell in cells if cell.seed <= RACE_SEEDS or cell.label not in behind]


def _ours_over(comparison: Comparison) -> Iterator[tuple[str, float]]:
    """By strategy: ours over it in seconds, over the seeds that both have."""
    ours = next((row for row in comparison.rows if row.label == OURS), None)
    for row in comparison.rows:
        if ours is not None and row is not ours:
            ratio = comparison.ratio(ours, "seconds", row)
            if ratio is not None and not ratio.unknown:
                yield row.label, ratio.mean


def is_dear(name: str) -> bool:
    """Whether a scenario takes minutes a run."""
    return name.startswith(DEAR)


def _run(batch: Batch, cells: Sequence[Cell]) -> None:
    try:
        for path, fault in batch.run(console(), cells).items():
            print(f"failed: {path}: {fault}")
    except typer.Exit as stopped:
        raise Stopped from stopped


def _foreseen(cell: Cell, stage: Stage) -> dict[str, float]:
    trial = finished(cell)
    simulated = trial.records[:FORESEEN_ROUNDS] if trial else []
    foretold = rehearse(cell.experiment, stage, len(simulated))
    return {
        name: (records[-1].end_s - records[0].start_s) / len(records)
        for name, records in (("foretold_s", foretold), ("simulated_s", simulated))
    }
