"""What a rehearsal foretells: seconds and bytes of a round, and how far compute bounds it.

And which experiment would decide between two candidates: time to target is rounds times seconds
per round; the second factor is known from the rehearsal, the first is what is in doubt.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from fedsys.progress import rounds_needed, stale_weight
from fedsys.telemetry.statistics import MIN_PAIRS, student_975
from fedsys.types import ClientReport, RoundRecord

PAIR_SPREAD = 0.35
"""Deviation of the logarithm of a ratio of rounds from seed to seed, as our comparisons show it."""
MODEL_SPREAD = 0.4
"""Deviation of the logarithm by which the rule of progress is wrong."""
MAX_SEEDS = 30


@dataclass(frozen=True, slots=True)
class NodeForecast:
    """One client in an average round that it takes part in."""

    node_id: int
    examples: int
    local_steps: float
    download_s: float
    compute_s: float
    upload_s: float

    @property
    def bound(self) -> float:
        """compute / (compute + communication): the most of its time that it can spend training."""
        whole_s = self.download_s + self.compute_s + self.upload_s
        return self.compute_s / whole_s if whole_s > 0 else 1.0

    @property
    def busy_s(self) -> float:
        """Seconds from the message to the reply."""
        return self.download_s + self.compute_s + self.upload_s


@dataclass(frozen=True, slots=True)
class Forecast:
    """One way to run an experiment, as its rehearsal shows it."""

    label: str
    rounds: int
    round_s: float
    """Mean length of a round, in seconds."""
    uplink_bytes: float
    """Of all clients, in an average round; downlink the same."""
    downlink_bytes: float
    local_steps: float
    """Of an average client in a round."""
    cohort: float
    progress: float
    """Expected progress of a round, in units of endless exact local steps."""
    nodes: tuple[NodeForecast, ...]
    """Clients that took part, the slowest first."""
    left_out: int
    """Updates that were lost or late."""

    @property
    def bound(self) -> tuple[float, float, float]:
        """Least, median and largest bound of its clients."""
        bounds = [node.bound for node in self.nodes]
        return min(bounds), median(bounds), max(bounds)


def forecast(
    label: str, records: Sequence[RoundRecord], *, clients: int, feedback: bool
) -> Forecast | None:
    """What rehearsed rounds foretell of ``clients`` in all; None where no update ever arrived."""
    reports = [report for record in records for report in record.reports if not report.at_work]
    accepted = [report for report in reports if report.accepted]
    if not accepted:
        return None
    nodes = [_node([r for r in accepted if r.node_id == n]) for n in {r.node_id for r in accepted}]
    count = len(records)
    return Forecast(
        label=label,
        rounds=count,
        round_s=(records[-1].end_s - records[0].start_s) / count,
        uplink_bytes=sum(record.uplink_bytes for record in records) / count,
        downlink_bytes=sum(record.downlink_bytes for record in records) / count,
        local_steps=fmean(report.local_steps for report in accepted),
        cohort=len(reports) / count,
        progress=_progress(accepted, count, clients, feedback),
        nodes=tuple(sorted(nodes, key=lambda node: (-node.busy_s, node.node_id))),
        left_out=len(reports) - len(accepted),
    )


@dataclass(frozen=True, slots=True)
class Decision:
    """Two candidates, and the cheapest experiment that would tell which is sooner at the target."""

    first: Forecast
    second: Forecast
    time_ratio: float
    """Expected time to target of the first over the second."""
    break_even: float
    """The first is sooner if it needs less than this many times the second's rounds ..."""
    expected_rounds: float
    """... and this many are expected."""
    seeds: int | None
    """Paired seeds that would show the expected difference; None where not even 30 would."""
    is_foregone: bool
    """The expected difference is larger than what the expectation may be wrong by."""

    @property
    def sooner(self) -> Forecast:
        """The candidate that is expected to be sooner."""
        return self.first if self.time_ratio <= 1 else self.second


def decide(first: Forecast, second: Forecast) -> Decision:
    """What is expected of two candidates, and how many paired seeds would show it."""
    expected_rounds = second.progress / first.progress
    break_even = second.round_s / max(first.round_s, 1e-9)
    ratio = expected_rounds / max(break_even, 1e-9)
    distance = abs(math.log(ratio))
    enough = (n for n in range(MIN_PAIRS, MAX_SEEDS + 1) if _margin(n) < distance)
    return Decision(
        first=first,
        second=second,
        time_ratio=ratio,
        break_even=break_even,
        expected_rounds=expected_rounds,
        seeds=next(enough, None),
        is_foregone=distance > 1.96 * MODEL_SPREAD,
    )


def smallest_shown(seeds: int) -> float:
    """The ratio above 1 that so many paired seeds would just show."""
    return math.exp(_margin(seeds))


def _margin(seeds: int) -> float:
    return student_975(seeds - 1) * PAIR_SPREAD / math.sqrt(seeds)


def _progress(accepted: Sequence[ClientReport], rounds: int, clients: int, feedback: bool) -> float:
    """Of a round, whose updates are the fewer the fewer it waits for and the older they are."""
    updates = sum(stale_weight(report.staleness) for report in accepted) / rounds
    drawn = min(1.0, updates / clients)
    return fmean(
        1
        / rounds_needed(
            max(1, report.local_steps),
            up_nmse=report.nmse or 0.0,
            clients=updates,
            gap=1 / drawn,
            drawn=drawn,
            feedback=feedback,
        )
        for report in accepted
    )


def _node(reports: Sequence[ClientReport]) -> NodeForecast:
    return NodeForecast(
        node_id=reports[0].node_id,
        examples=reports[0].examples,
        local_steps=fmean(report.local_steps for report in reports),
        download_s=fmean(report.download_s or 0.0 for report in reports),
        compute_s=fmean(report.train_s or 0.0 for report in reports),
        upload_s=fmean(report.upload_s or 0.0 for report in reports),
    )
