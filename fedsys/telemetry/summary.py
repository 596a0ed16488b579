"""What one run cost and reached: to its target, and in all."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedsys.types import RoundRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a run had spent at the end of some round, from its start."""

    rounds: int = 0
    seconds: float = 0.0
    """Seconds on the run's clock."""
    uplink_bytes: int = 0
    downlink_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One run in a few figures."""

    target: float | None
    at_target: Cost | None
    """At the end of the first round whose metric met the target; None when none did."""
    total: Cost
    final_metric: float | None
    """The metric of the last evaluated round; None when no round was evaluated."""
    best_metric: float | None
    stopped_by: str
    """Which budget or condition ended the run; empty while it has not ended."""


def costs(records: Sequence[RoundRecord]) -> list[Cost]:
    """The running total after each round."""
    totals, uplink_bytes, downlink_bytes = [], 0, 0
    for count, record in enumerate(records, start=1):
        uplink_bytes += record.uplink_bytes
        downlink_bytes += record.downlink_bytes
        totals.append(
            Cost(
                rounds=count,
                seconds=record.end_s,
                uplink_bytes=uplink_bytes,
                downlink_bytes=downlink_bytes,
            )
        )
    return totals


def summarise(
    records: Sequence[RoundRecord], target: float | None, stopped_by: str = ""
) -> Summary:
    """The run in a few figures; without a target nothing counts as reaching it."""
    totals = costs(records)
    metrics = [r.test_metric for r in records if r.test_metric is not None]
    at_target = next(
        (
            cost
            for cost, record in zip(totals, records, strict=True)
            if target is not None
            and record.test_metric is not None
            and record.test_metric >= target
        ),
        None,
    )
    return Summary(
        target=target,
        at_target=at_target,
        total=totals[-1] if totals else Cost(),
        final_metric=metrics[-1] if metrics else None,
        best_metric=max(metrics, default=None),
        stopped_by=stopped_by,
    )


STAGES = ("download", "train", "upload", "wait")


def stage_seconds(records: Sequence[RoundRecord]) -> dict[str, float]:
    """Seconds that an average accepted client spends in each stage of an average round.

    ``wait`` is the rest of the round: for slower clients, a deadline, the server. The four add up
    to the mean length of a round, unless the strategy is asynchronous: clients are then at work
    for longer than that. Updates that earlier rounds asked for are not counted.
    """
    sums = dict.fromkeys(STAGES, 0.0)
    for record in records:
        asked = {client.node_id for client in record.plan.clients}
        accepted = [r for r in record.reports if r.accepted and r.node_id in asked]
        length_s = record.end_s - record.start_s
        spent = {
            "download": sum(r.download_s or 0.0 for r in accepted),
            "train": sum(r.train_s or 0.0 for r in accepted),
            "upload": sum(r.upload_s or 0.0 for r in accepted),
        }
        for stage, seconds in spent.items():
            sums[stage] += seconds / max(1, len(accepted))
        busy_s = sum(spent.values()) / max(1, len(accepted))
        sums["wait"] += max(0.0, length_s - busy_s)
    return {stage: seconds / max(1, len(records)) for stage, seconds in sums.items()}
