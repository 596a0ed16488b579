"""What a round of a simulation takes, stage by stage: workers are timed, the parent is sampled."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import Message, MetricRecord

from fedsys.cli.run import run_experiment
from fedsys.cli.sampling import WAITING, StageSampler
from fedsys.clock import WallClock
from fedsys.config.schema import Experiment
from fedsys.engine.crew import Crew, Worker
from fedsys.engine.serving import Service
from fedsys.engine.shared import Segment
from fedsys.middleware.brief import Briefs
from fedsys.telemetry.runfolder import RunFolder
from fedsys.types import RoundRecord

TRAINING, CODEC, EVALUATION, IDLE = "training", "codec", "evaluation", "idle workers"
_METRICS, _SECONDS = "metrics", "train-seconds"
_LEAST_ROUNDS = 3
"""The first one warms up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """What the rounds of one run took, the first left out."""

    count: int
    round_s: float
    """Mean wall seconds."""
    clients: float
    """Mean number of clients in one, as their steps and samples are."""
    local_steps: float
    """Of all clients together."""
    samples: float
    stages_s: Mapping[str, float]
    """Stage to its wall seconds in a round; together they are ``round_s``."""


def measure_rounds(experiment: Experiment, workers: int, seconds: float) -> Rounds:
    """Run the experiment for about so long, in ``workers`` processes beside this one.

    At least three rounds, so that two are measured.
    """
    sampler, clock, spent = StageSampler(), WallClock(), Spent()
    seen: list[tuple[float, RoundRecord]] = []

    def on_round(record: RoundRecord) -> None:
        seen.append((clock.now_s(), record))
        if len(seen) == 1:
            spent.reset()
            sampler.start()

    def stop() -> bool:
        return len(seen) >= _LEAST_ROUNDS - 1 and clock.now_s() - seen[0][0] >= seconds

    with tempfile.TemporaryDirectory(prefix="fedsys-") as scratch:
        folder = RunFolder.create(Path(scratch) / "run", experiment, resume=False)
        try:
            run_experiment(
                experiment,
                folder,
                workers=workers,
                on_round=on_round,
                stop=stop,
                hiring=lambda service: TimedCrew(service, workers, spent),
            )
        finally:
            sampler.stop()
    count = len(seen) - 1
    round_s = (seen[-1][0] - seen[0][0]) / count
    reports = [report for _, record in seen[1:] for report in record.reports]
    return Rounds(
        count=count,
        round_s=round_s,
        clients=len(reports) / count,
        local_steps=sum(report.local_steps for report in reports) / count,
        samples=sum(report.samples for report in reports) / count,
        stages_s=divided(round_s, spent.a_worker_and_round(workers, count), sampler.fractions()),
    )


def divided(
    round_s: float, workers_s: Mapping[str, float], parent: Mapping[str, float]
) -> dict[str, float]:
    """The seconds of a round by stage; they add up to it.

    ``workers_s`` are seconds of a round that a worker spent on each stage. In the rest of the round
    workers had nothing to do: that is what ``parent``, the share of its time that this process
    spent on each stage, may explain, and what it does not explain is put down to idle workers.
    """
    busy_s = sum(workers_s.values())
    scale = min(1.0, round_s / busy_s) if busy_s else 1.0
    stages = {stage: seconds * scale for stage, seconds in workers_s.items()}
    idle_s = max(0.0, round_s - busy_s)
    working = {stage: share * round_s for stage, share in parent.items() if stage != WAITING}
    working_s = sum(working.values())
    scale = min(1.0, idle_s / working_s) if working_s else 0.0
    for stage, seconds in working.items():
        stages[stage] = stages.get(stage, 0.0) + seconds * scale
    rest_s = round_s - sum(stages.values())
    return stages | {IDLE: rest_s if rest_s > 1e-9 * round_s else 0.0}


@dataclass(slots=True)
class Spent:
    """Seconds that worker processes have worked."""

    seconds: dict[str, float] = field(default_factory=dict)

    def reset(self) -> None:
        """Forget what was before."""
        self.seconds.clear()

    def add(self, elapsed_s: float, outcome: Any) -> None:
        """A job that took so long, by what came of it."""
        trained_s = _training_s(outcome)
        if trained_s is None:
            self._add(EVALUATION, elapsed_s)
            return
        self._add(TRAINING, min(trained_s, elapsed_s))
        self._add(CODEC, max(0.0, elapsed_s - trained_s))

    def a_worker_and_round(self, workers: int, rounds: int) -> dict[str, float]:
        """The mean."""
        return {stage: seconds / workers / rounds for stage, seconds in self.seconds.items()}

    def _add(self, stage: str, seconds: float) -> None:
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds


class TimedCrew:
    """Worker processes whose answers are looked at as they come."""

    def __init__(self, service: Service, workers: int, spent: Spent) -> None:
        """As ``Crew``."""
        self._crew = Crew(service, workers)
        self._spent = spent

    @property
    def workers(self) -> Sequence[Worker]:
        """The crew's."""
        return self._crew.workers

    def wait_ready(self) -> None:
        """As the crew does."""
        self._crew.wait_ready()

    def hire(self) -> None:
        """As the crew does."""
        self._crew.hire()

    def post(
        self, worker: Worker, key: int, segment: Segment | None, filling: int, body: bytes
    ) -> None:
        """As the crew does."""
        self._crew.post(worker, key, segment, filling, body)

    def drop(self, segment: Segment) -> None:
        """As the crew does."""
        self._crew.drop(segment)

    def events(self, timeout_s: float | None) -> tuple[Sequence[Any], Sequence[Worker]]:
        """As the crew's, and added up."""
        answers, dead = self._crew.events(timeout_s)
        for _, _, is_well, (elapsed_s, outcome) in answers:
            if is_well:
                self._spent.add(elapsed_s, outcome)
        return answers, dead

    def close(self) -> None:
        """As the crew does."""
        self._crew.close()


def _training_s(outcome: Any) -> float | None:
    """What clients say that their training took; None for anything but replies of clients."""
    if isinstance(outcome, Briefs):
        return sum(_seconds(brief.metrics.get(_METRICS, {})) for brief in outcome.replies)
    if not isinstance(outcome, list):
        return None
    return sum(_seconds(_metrics(message)) for message, _ in outcome)


def _metrics(message: Message) -> Mapping[str, Any]:
    record = message.content.get(_METRICS) if message.has_content() else None
    return dict(record.items()) if isinstance(record, MetricRecord) else {}


def _seconds(metrics: Mapping[str, Any]) -> float:
    value = metrics.get(_SECONDS)
    return float(value) if isinstance(value, int | float) else 0.0
