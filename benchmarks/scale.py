"""Worker processes against Flower's Ray backend: ``python -m benchmarks.scale [--quick]``.

The same work in both, in turns, two workers of one thread each. Prints wall seconds of a round and
of the start, CPU seconds of a round in all processes, and whether the bytes are the same. Needs
Ray: ``pip install 'fedsys[ray]'``. Exit status 1 where results differ, or where a round of
compute-bound work takes more than 1.3 times the CPU.
"""

import hashlib
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks.bars import Bar, finish, parser_for
from benchmarks.engine_work import works
from benchmarks.provenance import provenance
from fedsys.cli.run import run_experiment
from fedsys.engine.ray_crew import Cluster, RayCrew, check_ray
from fedsys.errors import ConfigError
from fedsys.telemetry.runfolder import RunFolder
from fedsys.types import RoundRecord

WORKERS = 2
CODEC = ["codec.uplink='topk(0.05)|int8'"]
WORKS = {"W2": ("W2", 60, []), "W2 with a codec": ("W2", 40, CODEC), "W1": ("W1", 5, [])}
"""Name to the piece of work, its rounds, and its settings."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One run."""

    round_s: float
    """Median wall seconds."""
    start_s: float
    """Wall seconds before the first round, and what that took longer."""
    cpu_s: float
    """CPU seconds of a round."""
    digest: str
    """Of what came out."""


def once(name: str, rounds: int, settings: list[str], ray: bool) -> Measured:
    """Run it; the first round is not counted."""
    experiment = works()[name].experiment(rounds, settings)
    ends, cpu_s = [time.perf_counter()], [0.0]

    def on_round(record: RoundRecord) -> None:
        ends.append(time.perf_counter())
        if record.round in (1, rounds):
            cpu_s.append(tree_cpu_s())

    with tempfile.TemporaryDirectory(prefix="fedsys-", dir="/tmp") as scratch:
        folder = RunFolder.create(Path(scratch) / "run", experiment, resume=False)
        cluster = Cluster(
            address=None, workers=WORKERS, folder=folder.path, shares_folder=True, gpu=False
        )
        run_experiment(
            experiment,
            folder,
            workers=WORKERS,
            on_round=on_round,
            hiring=(lambda service: RayCrew(service, cluster)) if ray else None,
        )
        files = (folder.path / file for file in ("rounds.jsonl", "model.safetensors"))
        digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    rounds_s = [end - begin for begin, end in pairwise(ends)]
    round_s = statistics.median(rounds_s[1:])
    cpu_round_s = (cpu_s[-1] - cpu_s[-2]) / (rounds - 1)
    return Measured(round_s, rounds_s[0] - round_s, cpu_round_s, digest)


def tree_cpu_s() -> float:
    """User and system time of this process and all below it that live."""
    pending, ticks = [os.getpid()], 0
    while pending:
        folder = Path("/proc") / str(pending.pop())
        try:
            for task in (folder / "task").iterdir():
                pending += map(int, (task / "children").read_text().split())
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def main() -> int:
    """Measure, print, and say whether all is well."""
    parser = parser_for(__doc__, "one turn instead of three, and fewer rounds")
    options = parser.parse_args()
    try:
        check_ray()
    except ConfigError as error:
        sys.exit(str(error))
    bars: list[Bar] = []
    found: dict[str, dict[str, dict[str, float]]] = {}
    for title, (name, rounds, settings) in WORKS.items():
        runs: dict[str, list[Measured]] = {"processes": [], "ray": []}
        for _ in range(1 if options.quick else 3):
            for engine, taken in runs.items():
                count = max(3, rounds // 3) if options.quick else rounds
                taken.append(once(name, count, settings, engine == "ray"))
        found[title] = {engine: medians(taken) for engine, taken in runs.items()}
        for engine, figures in found[title].items():
            text = ", ".join(f"{key} {value:.4g}" for key, value in figures.items())
            print(f"     {title}, {engine}: {text}", flush=True)
        digests = {run.digest for taken in runs.values() for run in taken}
        bars.append(Bar(f"{title}: different results", 1, len(digests)))
        if name == "W1":
            ratio = found[title]["ray"]["cpu_s"] / found[title]["processes"]["cpu_s"]
            bars.append(Bar(f"{title}: CPU of a round in Ray over that in processes", 1.3, ratio))
    for bar in bars:
        print(bar.line())
    content = {"source": provenance(), "load": os.getloadavg()[0], "medians": found}
    return finish(bars, content, options.json)


def medians(runs: list[Measured]) -> dict[str, float]:
    """Of each figure."""
    names = ("round_s", "cpu_s", "start_s")
    return {name: statistics.median(getattr(run, name) for run in runs) for name in names}


if __name__ == "__main__":
    sys.exit(main())
