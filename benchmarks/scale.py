"""Worker processes against Flower's Ray backend: ``python -m benchmarks.scale [--quick]``.

The same work in both, in turns, two workers of one thread each. Prints seconds of a round and of
the start, and whether the bytes are the same. Needs Ray: ``pip install 'fedsys[ray]'``. Exit status
1 where results differ, or where a round of compute-bound work takes more than 1.3 times as long.
"""

import hashlib
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

from benchmarks.bars import Bar, finish, parser_for
from benchmarks.engine_work import works
from benchmarks.provenance import provenance
from fedsys.cli.run import run_experiment
from fedsys.engine.ray_crew import Cluster, RayCrew, check_ray
from fedsys.errors import ConfigError
from fedsys.telemetry.runfolder import RunFolder

WORKERS = 2
CODEC = ["codec.uplink='topk(0.05)|int8'"]
WORKS = {"W2": ("W2", 60, []), "W2 with a codec": ("W2", 40, CODEC), "W1": ("W1", 5, [])}
"""Name to the piece of work, its rounds, and its settings."""


def once(name: str, rounds: int, settings: list[str], ray: bool) -> tuple[float, float, str]:
    """Median seconds of a round, seconds of all before, and a digest of what came out."""
    experiment = works()[name].experiment(rounds, settings)
    with tempfile.TemporaryDirectory(prefix="fedsys-", dir="/tmp") as scratch:
        folder = RunFolder.create(Path(scratch) / "run", experiment, resume=False)
        cluster = Cluster(
            address=None, workers=WORKERS, folder=folder.path, shares_folder=True, gpu=False
        )
        ends = [time.perf_counter()]
        run_experiment(
            experiment,
            folder,
            workers=WORKERS,
            on_round=lambda record: ends.append(time.perf_counter()),
            hiring=(lambda service: RayCrew(service, cluster)) if ray else None,
        )
        files = (folder.path / file for file in ("rounds.jsonl", "model.safetensors"))
        digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    rounds_s = [end - begin for begin, end in pairwise(ends)]
    round_s = statistics.median(rounds_s[1:])
    return round_s, rounds_s[0] - round_s, digest


def main() -> int:
    """Measure, print, and say whether all is well."""
    parser = parser_for(__doc__, "one turn instead of three, and fewer rounds")
    options = parser.parse_args()
    try:
        check_ray()
    except ConfigError as error:
        sys.exit(str(error))
    bars: list[Bar] = []
    medians: dict[str, dict[str, float]] = {}
    for title, (name, rounds, settings) in WORKS.items():
        round_s, start_s = (
            defaultdict[bool, list[float]](list),
            defaultdict[bool, list[float]](list),
        )
        digests = set()
        for _ in range(1 if options.quick else 3):
            for ray in (False, True):
                count = max(3, rounds // 10) if options.quick else rounds
                found = once(name, count, settings, ray)
                round_s[ray].append(found[0])
                start_s[ray].append(found[1])
                digests.add(found[2])
        here, there = (statistics.median(round_s[ray]) for ray in (False, True))
        starts = [statistics.median(start_s[ray]) for ray in (False, True)]
        medians[title] = dict(
            zip(("here", "ray", "here_start", "ray_start"), [here, there, *starts], strict=True)
        )
        print(
            f"     {title}: {1e3 * here:.1f} ms a round in processes, {1e3 * there:.1f} in Ray; "
            f"start {starts[0]:.1f} s and {starts[1]:.1f} s"
        )
        bars.append(Bar(f"{title}: different results", 1, len(digests)))
        if name == "W1":
            bars.append(Bar(f"{title}: a round in Ray over one in processes", 1.3, there / here))
    for bar in bars:
        print(bar.line())
    return finish(bars, {"source": provenance(), "round_s": medians}, options.json)


if __name__ == "__main__":
    sys.exit(main())
