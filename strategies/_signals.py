"""What a strategy reads off a round apart from links: losses, norms, and what it waited for."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedsys.types import F64, ClientReport, RoundRecord
from strategies._estimate import PRIOR_STEP_S

FORGET = 0.5
"""Weight of the past against each new pace of a node."""


def weighted(pairs: Iterable[tuple[int, float | None]]) -> float | None:
    """Mean of the values that are known, weighted by examples; None when none is."""
    known = [(examples, value) for examples, value in pairs if value is not None]
    total = sum(examples for examples, _ in known)
    return sum(examples * value for examples, value in known) / total if total else None


def received_loss(record: RoundRecord) -> float | None:
    """Training loss of the model that the round began with, as the accepted clients saw it."""
    return weighted((r.examples, r.first_loss) for r in _punctual(record))


def own_gain(record: RoundRecord) -> float:
    """How far the accepted clients' mean loss is below that of the model they received; or 0."""
    return (
        weighted(
            (r.examples, r.first_loss - r.train_loss)
            for r in _punctual(record)
            if r.first_loss is not None and r.train_loss is not None
        )
        or 0.0
    )


def _punctual(record: RoundRecord) -> list[ClientReport]:
    """The accepted ones that trained the model of this round."""
    return [report for report in record.reports if report.accepted and not report.staleness]


def mean_energy(record: RoundRecord) -> float | None:
    """Mean of the accepted updates' squared norms, weighted by examples."""
    return weighted(
        (r.examples, None if r.update_norm is None else r.update_norm**2)
        for r in record.reports
        if r.accepted
    )


def overhead_bytes(record: RoundRecord, expected: Mapping[int, float], before: float) -> float:
    """Median of what the accepted uploads took beyond their node's ``expected`` bytes, at least 0.

    ``before`` where nobody was accepted.
    """
    extra = [r.uplink_bytes - expected[r.node_id] for r in record.reports if r.accepted]
    return max(0.0, float(np.median(extra))) if extra else before


@dataclass(frozen=True, slots=True)
class Pace:
    """One node: seconds = exchange_s + local_steps * step_s."""

    step_s: float
    exchange_s: float
    """Everything but training: both transfers and the wait for them."""


def pace_of(report: ClientReport) -> Pace | None:
    """The pace that a report shows; None where a time is missing."""
    if report.train_s is None or report.arrival_s is None or not report.local_steps:
        return None
    return Pace(report.train_s / report.local_steps, max(0.0, report.arrival_s - report.train_s))


def slowest(record: RoundRecord) -> Pace | None:
    """The pace of the accepted client that the round waited for; None when none is known."""
    known = [
        (r.arrival_s, pace)
        for r in record.reports
        if r.accepted and r.arrival_s is not None and (pace := pace_of(r)) is not None
    ]
    return max(known, key=lambda pair: pair[0])[1] if known else None


@dataclass(frozen=True, slots=True)
class Paces:
    """The pace of every node seen so far; one that was not is taken for the mean of the others."""

    nodes: Mapping[int, Pace] = field(default_factory=dict)

    def seen(self, reports: Sequence[ClientReport]) -> "Paces":
        """The paces after a round."""
        nodes = dict(self.nodes)
        for report in reports:
            new = pace_of(report)
            if new is not None:
                old = nodes.get(report.node_id, new)
                nodes[report.node_id] = Pace(
                    FORGET * old.step_s + (1 - FORGET) * new.step_s,
                    FORGET * old.exchange_s + (1 - FORGET) * new.exchange_s,
                )
        return Paces(nodes)

    def of(self, nodes: Sequence[int]) -> tuple[F64, F64]:
        """(step_s, exchange_s) of each node, float64 [c] each."""
        known = self.nodes.values()
        step_s = sum(p.step_s for p in known) / len(known) if known else PRIOR_STEP_S
        exchange_s = sum(p.exchange_s for p in known) / len(known) if known else 0.0
        found = [self.nodes.get(node, Pace(step_s, exchange_s)) for node in nodes]
        return (
            np.array([pace.step_s for pace in found]),
            np.array([pace.exchange_s for pace in found]),
        )
