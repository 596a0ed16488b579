"""Does a hundredth of the bytes train as well? ``python -m benchmarks.learning [--seeds N]``.

Fashion-MNIST, Dirichlet 0.3, against FedAvg in float32 on the same seeds and splits, with all
clients in every round and with a tenth of them. Bytes are those of whole messages, Flower's
overhead included. Runs that are finished are kept in --out and reused; the rest goes on.
Exit status 1 when a bar is missed.
"""

import argparse
import json
import multiprocessing
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.provenance import provenance, source_lines
from fedsys.cli.cells import Cell, plan_cells
from fedsys.cli.execution import finished_trial, stop_on_interrupt, usable_cores
from fedsys.cli.pool import process_pools, run_cell, run_cells
from fedsys.config.load import load_experiment
from fedsys.config.schema import Compare, Entry
from fedsys.telemetry.comparison import Comparison, Row, Trial, compare
from fedsys.telemetry.runfolder import RunFolder
from fedsys.telemetry.statistics import Interval, Score, paired_difference, paired_ratio
from fedsys.types import RoundRecord

EXPERIMENT = Path(__file__).with_name("learning.toml")
SCENES = {
    "all 10 clients in every round": ["partition.clients=10"],
    "10 of 100 clients a round": ["partition.clients=100", "cohort.fraction=0.1"],
}
QUICK = {"run.budget.rounds": 4, "run.evaluate_every_rounds": 1}
MAX_UPLINK_RATIO = 0.01
MAX_ACCURACY_LOSS = 0.005
LAST_EVALUATIONS = 5
"""The final accuracy is their mean: under unequal labels single rounds differ by points."""

_HEAD = """# A hundredth of the bytes

Written by `python -m benchmarks.learning`; do not edit. Fashion-MNIST (CNN of 89,050 parameters),
Dirichlet 0.3, against FedAvg in float32 on the same seeds and splits (`benchmarks/learning.toml`).
Packets are the coded updates; on the socket, Flower's signed requests come on top, about 9 kB a
client and round whatever they carry. Intervals are 95 %. At most 1/100 of the packet bytes to the
target and at most half a point less accuracy at the end are asked.
"""


@dataclass(frozen=True, slots=True)
class Found:
    """One scene: ours against the baseline, over paired seeds."""

    scene: str
    entry: str
    seeds: int
    reached: tuple[int, int]
    """Runs that met the target: of ours, of the baseline."""
    uplink_ratio: Interval
    """Packet bytes to the target, ours over the baseline's."""
    socket_ratio: Interval
    """The same of all uplink bytes."""
    rounds_ratio: Interval
    accuracy_gain: Interval
    """Final accuracy, ours minus the baseline's."""
    final_accuracy: tuple[float, float]
    """Mean over the seeds: of ours, of the baseline."""

    @property
    def ok(self) -> bool:
        """Whether every run met the target and the means are within both bars."""
        return (
            min(self.reached) == self.seeds
            and self.uplink_ratio.mean <= MAX_UPLINK_RATIO
            and self.accuracy_gain.mean >= -MAX_ACCURACY_LOSS
        )


def main() -> int:
    """Run what is missing, print one line for each scene, and say whether the bars are reached."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="four rounds: does it run at all?")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--workers", type=int, default=usable_cores())
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--page", type=Path, help="write them as Markdown here")
    options = parser.parse_args()
    planned = {
        scene: _cells(number, settings, options)
        for number, (scene, settings) in enumerate(SCENES.items(), 1)
    }
    cells = [cell for scene in planned.values() for cell in scene]
    faults = _run([cell for cell in cells if _trial(cell) is None], options.workers)
    if faults:
        print("\n".join(f"{path}: {fault}" for path, fault in faults.items()))
        return 1
    found = [one for scene, its_cells in planned.items() for one in _judge(scene, its_cells)]
    for one in found:
        print(_line(one))
    source = provenance()
    if options.json:
        scenes = [asdict(one) | {"ok": one.ok} for one in found]
        options.json.write_text(json.dumps({"source": source, "scenes": scenes}, indent=1) + "\n")
    if options.page:
        options.page.parent.mkdir(parents=True, exist_ok=True)
        lines = [_HEAD, *source_lines(source), "", *(f"- {_line(one)}" for one in found)]
        options.page.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0 if options.quick or all(one.ok for one in found) else 1


def _cells(number: int, settings: Sequence[str], options: argparse.Namespace) -> list[Cell]:
    name = "learning-quick" if options.quick else "learning"
    experiment = load_experiment(EXPERIMENT, [*settings, f'run.name="{name}-{number}"'])
    if not options.quick:
        return plan_cells(experiment, options.out, seeds=options.seeds)
    entries = tuple(
        Entry(label=entry.label, set=entry.set | QUICK) for entry in experiment.compare.entries
    )
    short = experiment.model_copy(update={"compare": Compare(entries=entries)})
    return plan_cells(short, options.out, seeds=1)


def _run(cells: Sequence[Cell], workers: int) -> dict[Path, str]:
    """Run the cells, ``workers`` at a time; faults by folder."""
    event = multiprocessing.get_context("spawn").Event()
    with stop_on_interrupt() as asked, process_pools(workers, event) as start_pool:

        def stop() -> bool:
            if asked():
                event.set()
            return asked()

        faults = run_cells(
            cells,
            run_cell,
            start_pool,
            workers=workers,
            on_tick=lambda running: None,
            on_done=lambda cell, fault: print(
                f"{cell.path.parent.name}: {cell.title}: {fault or 'done'}", flush=True
            ),
            stop=stop,
        )
        if asked():
            sys.exit(130)
    return faults


def _trial(cell: Cell) -> Trial | None:
    if not (cell.path / "result.json").exists():
        return None
    return finished_trial(RunFolder(cell.path, cell.experiment))


def _judge(scene: str, cells: Sequence[Cell]) -> Iterator[Found]:
    """Every entry of the scene against the first."""
    trials: dict[str, dict[int, Trial]] = {cell.label: {} for cell in cells}
    for cell in cells:
        trial = _trial(cell)
        if trial is not None:
            trials[cell.label][cell.seed] = trial
    comparison = compare(scene, cells[0].experiment.run.target, trials)
    base, *others = comparison.rows
    for row in others:
        yield _found(comparison, base, row)


def _found(comparison: Comparison, base: Row, row: Row) -> Found:
    socket, rounds = (comparison.ratio(row, measure) for measure in ("uplink_bytes", "rounds"))
    if socket is None or rounds is None or row.target is None:
        raise ValueError("a comparison without target or pairs")
    seeds = sorted(row.trials.keys() & base.trials.keys())
    packets = [
        [_packets(one.trials[seed].records, row.target) for seed in seeds] for one in (row, base)
    ]
    ours, theirs = (
        {seed: _final(trial) for seed, trial in one.trials.items()} for one in (row, base)
    )
    gains = [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]
    return Found(
        scene=comparison.name,
        entry=row.label,
        seeds=len(gains),
        reached=(row.reached, base.reached),
        uplink_ratio=paired_ratio(packets[0], packets[1]),
        socket_ratio=socket,
        rounds_ratio=rounds,
        accuracy_gain=paired_difference(gains),
        final_accuracy=(float(np.mean([*ours.values()])), float(np.mean([*theirs.values()]))),
    )


def _packets(records: Sequence[RoundRecord], target: float) -> Score:
    """Bytes of all packets up to the round that met the target."""
    total = 0
    for record in records:
        total += sum(report.packet_bytes for report in record.reports)
        if record.test_metric is not None and record.test_metric >= target:
            return Score(total)
    return Score(total, censored=True)


def _final(trial: Trial) -> float:
    metrics = [r.test_metric for r in trial.records if r.test_metric is not None]
    return float(np.mean(metrics[-LAST_EVALUATIONS:]))


def _line(one: Found) -> str:
    ratio, gain, socket = one.uplink_ratio, one.accuracy_gain, one.socket_ratio
    return (
        f"{'ok  ' if one.ok else 'MISS'} {one.scene}, {one.entry}, {one.seeds} seeds: "
        f"1/{1 / ratio.mean:.0f} [1/{1 / ratio.low:.0f}..1/{1 / ratio.high:.0f}] of the packet "
        f"bytes to the target, 1/{1 / socket.mean:.0f} of those on the socket, "
        f"{one.rounds_ratio.mean:.2f} x the rounds; final accuracy "
        f"{100 * gain.mean:+.2f} [{100 * gain.low:+.2f}..{100 * gain.high:+.2f}] points of "
        f"{100 * one.final_accuracy[1]:.1f} %; reached by {one.reached[0]} and {one.reached[1]}"
    )


if __name__ == "__main__":
    sys.exit(main())
