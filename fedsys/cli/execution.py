"""One run in one folder: what the commands do around ``run_experiment``, and how they stop it."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Protocol

from fedsys.clock import WallClock
from fedsys.config.schema import Experiment
from fedsys.telemetry.comparison import Trial
from fedsys.telemetry.lock import sole_writer
from fedsys.telemetry.runfolder import RunFolder
from fedsys.telemetry.summary import summarise
from fedsys.types import RoundRecord

INTERRUPTED = "interrupt"
"""``stopped_by`` of a run that was asked to stop and can go on from its checkpoint."""

OnRound = Callable[[RoundRecord], None]
Stop = Callable[[], bool]


class Outcome(Protocol):
    """What a runner returns."""

    @property
    def stopped_by(self) -> str:
        """The budget or condition that ended the run."""
        ...

    @property
    def records(self) -> list[RoundRecord]:
        """All rounds of the run, those before a resume included."""
        ...

    @property
    def model_sha256(self) -> str:
        """Of ``model.safetensors``."""
        ...


class Runner(Protocol):
    """``fedsys.cli.run.run_experiment``, or what stands for it in a test."""

    def __call__(
        self,
        experiment: Experiment,
        folder: RunFolder,
        *,
        workers: int,
        on_round: OnRound | None,
        stop: Stop,
    ) -> Outcome:
        """Run to the end, or to the end of the round in which ``stop()`` becomes true."""
        ...


def execute(
    experiment: Experiment,
    path: Path,
    runner: Runner,
    *,
    resume: bool,
    workers: int = 1,
    on_round: OnRound | None = None,
    stop: Stop = lambda: False,
) -> Trial:
    """Run ``experiment`` in the folder ``path``; a run that is finished there is only read."""
    RunFolder.check(path, experiment, resume=resume)
    with sole_writer(path):
        folder = RunFolder.create(path, experiment, resume=resume)
        if (finished := finished_trial(folder)) is not None:
            return finished
        clock = WallClock()
        start_s = clock.now_s()
        outcome = runner(experiment, folder, workers=workers, on_round=on_round, stop=stop)
        if outcome.stopped_by != INTERRUPTED:
            summary = summarise(outcome.records, experiment.run.target, outcome.stopped_by)
            folder.save_result(
                asdict(summary)
                | {"model_sha256": outcome.model_sha256, "wall_s": clock.now_s() - start_s}
            )
            folder.finish()
        return Trial(outcome.records, outcome.stopped_by)


def finished_trial(folder: RunFolder) -> Trial | None:
    """The run in ``folder`` if it has come to its end."""
    result = folder.result()
    return None if result is None else Trial(folder.records(), str(result["stopped_by"]))


@contextmanager
def stop_on_interrupt() -> Iterator[Stop]:
    """The first Ctrl-C asks the run to stop after its round, the second ends it at once."""
    asked = threading.Event()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        print("stopping after this round; Ctrl-C again stops at once", file=sys.stderr)

    previous = signal.signal(signal.SIGINT, interrupt)
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, previous)


def usable_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
