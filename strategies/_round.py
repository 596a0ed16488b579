"""One round: plan -> encode -> send -> receive -> decode -> aggregate.

Nothing that a client does ends the round: an error, a damaged payload, a wrong shape or silence
leaves that client out, with the reason in the record.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedsys.errors import WireError
from fedsys.middleware.control import MAX_NORM, RECORD
from fedsys.middleware.envelope import seal, unsealed_reply
from fedsys.middleware.server import Received, ServerCodec
from fedsys.middleware.trials import read_trials
from fedsys.types import ClientPlan, ClientReport, LinkSample, RoundPlan
from strategies._aggregate import Mean

ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"
MAX_EXAMPLES = 1 << 40
MAX_FIGURE = 1e30


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one round."""

    reports: tuple[ClientReport, ...]
    mean: Mean
    """Holds nothing when no update was accepted."""


def messages_for(codec: ServerCodec, plan: RoundPlan) -> list[Message]:
    """The messages that ask the cohort to train the codec's current model, in plan order."""
    return [_message(codec, client, plan) for client in plan.clients]


def gather(
    grid: Grid,
    codec: ServerCodec,
    plan: RoundPlan,
    messages: Sequence[Message],
    replies: Iterable[Message],
    *,
    sent_s: float,
    fednova: bool,
) -> Outcome:
    """Decode and aggregate ``replies`` one by one, and report on every client of the plan.

    ``sent_s`` is when the messages left, on the grid's clock. Late replies are given up.
    """
    clients = {client.node_id: client for client in plan.clients}
    sent = {m.metadata.message_id: clients[m.metadata.dst_node_id] for m in messages}
    mean = Mean(codec.schema.n, normalise=fednova)
    reports: dict[int, ClientReport] = {}
    for reply in replies:
        reply = unsealed_reply(reply)
        client = sent.pop(reply.metadata.reply_to_message_id, None)
        if client is not None:
            sample = _measured(grid, reply.metadata.reply_to_message_id)
            reports[client.node_id] = _take(reply, client, codec, mean, sample, sent_s)
            if plan.trial_codecs and reports[client.node_id].accepted:
                trials = read_trials(reply.content, plan.trial_codecs)
                reports[client.node_id] = replace(reports[client.node_id], trials=trials)
    for message_id, client in sent.items():
        reports[client.node_id] = _missing(client, _measured(grid, message_id), plan)
    _cancel(grid, list(sent))
    return Outcome(tuple(reports[client.node_id] for client in plan.clients), mean)


def _message(codec: ServerCodec, client: ClientPlan, plan: RoundPlan) -> Message:
    arrays, control = codec.records_for(client.node_id, client.uplink, plan.trial_codecs)
    config = ConfigRecord(
        {"server-round": plan.round, "local-steps": client.local_steps, "lr": client.lr}
    )
    if client.proximal_mu is not None:
        config["proximal-mu"] = client.proximal_mu
    content = RecordDict({ARRAYS: arrays, CONFIG: config, RECORD: control})
    if codec.seals:
        content = seal(content)
    return Message(content, client.node_id, "train", group_id=str(plan.round))


def _take(
    reply: Message,
    client: ClientPlan,
    codec: ServerCodec,
    mean: Mean,
    sample: LinkSample,
    sent_s: float,
) -> ClientReport:
    """Add the reply's update to the mean, or say why not."""
    version = codec.downlink.version
    if reply.has_error():
        codec.forget(client.node_id)
        reason = (reply.error.reason or "").strip().splitlines()[-1:] or [
            f"error {reply.error.code}"
        ]
        return _report(client, sample, sent_s, reason=reason[0][:300])
    codec.seen(client.node_id, version)
    try:
        metrics = _metrics(reply.content)
        received = codec.receive(reply.content, version, client.uplink)
        _check_size(received, codec)
    except WireError as error:
        return _report(client, sample, sent_s, reason=f"refused: {error}")
    if metrics["examples"] == 0:
        return _report(client, sample, sent_s, reason="no training examples")
    steps = metrics["local_steps"] or client.local_steps
    mean.add(received.update, received.raw, examples=metrics["examples"], local_steps=steps)
    codec.accept(client.node_id, version)
    return _report(client, sample, sent_s, metrics=metrics)


def _metrics(content: RecordDict) -> dict[str, Any]:
    """The figures of a reply, each checked: they come from a stranger."""
    found: dict[str, Any] = {}
    names = {"num-examples": "examples", "local-steps": "local_steps", "samples": "samples"}
    record = dict(content.metric_records.get(METRICS) or {})
    for key, name in names.items():
        value = record.get(key, 0)
        if not isinstance(value, int) or not 0 <= value <= MAX_EXAMPLES:
            raise WireError(f"metric '{key}' must be a count, got {str(value)[:40]}")
        found[name] = value
    own = dict(content.metric_records.get(RECORD) or {})
    floats = {"train-loss": record, "first-loss": record, "update-norm": own}
    for key, source in (floats | {"residual-norm": own, "nmse": own}).items():
        figure = source.get(key)
        usable = isinstance(figure, int | float) and abs(figure) <= MAX_FIGURE
        found[key.replace("-", "_")] = float(figure) if usable else None  # type: ignore[arg-type]
    return found


def _check_size(received: Received, codec: ServerCodec) -> None:
    if received.update.n != codec.schema.n:
        raise WireError(f"{received.update.n} values, the model has {codec.schema.n}")
    norm = float(np.sqrt(received.update.norm2()))
    if norm > MAX_NORM:
        raise WireError(f"the update's norm is {norm:.1e}, more than {MAX_NORM:.0e}")


def _report(
    client: ClientPlan,
    sample: LinkSample,
    sent_s: float,
    *,
    reason: str = "",
    metrics: Mapping[str, Any] | None = None,
) -> ClientReport:
    arrival_s = None if sample.arrival_s is None else sample.arrival_s - sent_s
    return ClientReport(
        node_id=client.node_id,
        accepted=metrics is not None,
        reason=reason,
        download_s=sample.download_s,
        train_s=sample.train_s,
        upload_s=sample.upload_s,
        arrival_s=arrival_s,
        downlink_bytes=sample.downlink_bytes,
        uplink_bytes=sample.uplink_bytes,
        **(metrics or {}),
    )


def _missing(client: ClientPlan, sample: LinkSample, plan: RoundPlan) -> ClientReport:
    deadline = "" if plan.deadline_s is None else f" by the deadline of {plan.deadline_s:.1f} s"
    return _report(client, sample, 0.0, reason=f"no reply{deadline}")


def _measured(grid: Grid, message_id: str) -> LinkSample:
    """What the grid measured; a grid that does not measure gives zeros and no times."""
    measure = getattr(grid, "measured", None)
    sample = None if measure is None else measure(message_id)
    return sample or LinkSample(downlink_bytes=0, uplink_bytes=0)


def _cancel(grid: Grid, message_ids: Iterable[str]) -> None:
    cancel = getattr(grid, "cancel", None)
    if cancel is not None:
        cancel(message_ids)
