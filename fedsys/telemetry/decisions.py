"""What a strategy decided, round by round, in a form a person can scan."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fedsys.types import RoundPlan, RoundRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The plan of one round in words."""

    round: int
    start_s: float
    clients: int
    """Asked in this round."""
    accepted: int
    """Of them."""
    late: int
    """Updates used that earlier rounds asked for."""
    local_steps: str
    uplink: str
    downlink: str
    deadline_s: float | None
    reason: str
    """Why the round is as it is."""
    client_reasons: str
    """The most frequent reasons among the clients' plans."""


def decisions(
    records: Sequence[RoundRecord], edge_rounds: int = 3, changes: int = 6
) -> list[Decision]:
    """The first and last rounds, and between them those that first did something else."""
    last = len(records) - edge_rounds
    shown = [i for i in range(len(records)) if i < edge_rounds or i >= last]
    turned = [
        i
        for i in range(edge_rounds, max(edge_rounds, last))
        if _choice(records[i].plan) != _choice(records[i - 1].plan)
    ]
    return [_decision(records[i]) for i in sorted({*shown, *turned[:changes]})]


def left_out(records: Sequence[RoundRecord]) -> Counter[str]:
    """Why updates were not used, and how often."""
    return Counter(
        report.reason
        for record in records
        for report in record.reports
        if not report.accepted and not report.at_work
    )


def left_out_text(records: Sequence[RoundRecord]) -> str:
    """The four most frequent reasons in one line; empty when every update was used."""
    return "; ".join(f"{reason} ({count})" for reason, count in left_out(records).most_common(4))


def codecs_in(plan: RoundPlan) -> str:
    """Codecs of the clients' updates, with how many clients where they differ."""
    counted = Counter(client.uplink for client in plan.clients)
    if len(counted) < 2:
        return "".join(counted)
    return ", ".join(f"{codec} ({count})" for codec, count in counted.most_common())


def steps_in(plan: RoundPlan) -> str:
    """Local steps of the clients, as a range where they differ."""
    steps = sorted({client.local_steps for client in plan.clients})
    return "-".join(str(step) for step in dict.fromkeys((*steps[:1], *steps[-1:])))


def _choice(plan: RoundPlan) -> tuple[frozenset[str], str, str]:
    return frozenset(client.uplink for client in plan.clients), plan.downlink, steps_in(plan)


def _decision(record: RoundRecord) -> Decision:
    plan = record.plan
    used = [report.node_id for report in record.reports if report.accepted]
    asked = {client.node_id for client in plan.clients}
    accepted = sum(node in asked for node in used)
    reasons = Counter(client.reason for client in plan.clients if client.reason != plan.reason)
    return Decision(
        round=record.round,
        start_s=record.start_s,
        clients=len(plan.clients),
        accepted=accepted,
        late=len(used) - accepted,
        local_steps=steps_in(plan),
        uplink=codecs_in(plan),
        downlink=plan.downlink,
        deadline_s=plan.deadline_s,
        reason=plan.reason,
        client_reasons="; ".join(reason for reason, _ in reasons.most_common(2) if reason),
    )
