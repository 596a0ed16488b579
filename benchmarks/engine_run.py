"""One simulation of ``benchmarks.engine`` in a process of its own; prints what it measured as JSON.

``python -m benchmarks.engine_run W2 --workers 2 --rounds 50 [--pss] [--set key=value ...]``
"""

import argparse
import hashlib
import json
import statistics
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path

from benchmarks.memory import tree_pss_mb
from fedsys.cli.run import run_experiment
from fedsys.telemetry.runfolder import RunFolder
from fedsys.types import RoundRecord

_SAMPLE_S = 0.25


def main() -> None:
    """Run it and print one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--pss", action="store_true", help="sample memory, which takes time")
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    from benchmarks.engine_work import works

    experiment = works()[options.work].experiment(options.rounds, options.set)
    ends, pss = [time.perf_counter()], Sampler()
    with tempfile.TemporaryDirectory(prefix="fedsys-") as scratch:
        folder = RunFolder.create(Path(scratch) / "run", experiment, resume=False)

        def on_round(record: RoundRecord) -> None:
            ends.append(time.perf_counter())

        if options.pss:
            pss.start()
        run_experiment(experiment, folder, workers=options.workers, on_round=on_round)
        pss.stop()
        files = (folder.path / name for name in ("rounds.jsonl", "model.safetensors"))
        digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    rounds_s = [end - begin for begin, end in pairwise(ends)]
    # The first one waits for the workers, the last one for the evaluation.
    steady_s = rounds_s[1:-1] or rounds_s[1:] or rounds_s
    print(
        json.dumps(
            {
                "round_s": statistics.median(steady_s),
                "start_s": rounds_s[0] - statistics.median(steady_s),
                "rounds_s": rounds_s,
                "pss_mb": pss.samples_mb,
                "digest": digest,
            }
        )
    )


class Sampler:
    """Memory of this process and its descendants, now and then."""

    def __init__(self) -> None:
        self.samples_mb: list[float] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(_SAMPLE_S):
            self.samples_mb.append(tree_pss_mb())


if __name__ == "__main__":
    main()
