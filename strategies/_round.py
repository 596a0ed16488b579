"""One round: plan -> encode -> send -> receive -> decode -> aggregate.

Nothing that a client does ends the round: an error, a damaged payload, a wrong shape or silence
leaves that client out, with the reason in the record.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from fedsys._flwr_private import CommonContent, same_to
from fedsys.errors import WireError
from fedsys.middleware.brief import Summed, summed
from fedsys.middleware.control import MAX_NORM, RECORD, Control, unwrap, wrap
from fedsys.middleware.envelope import seal, unsealed_reply
from fedsys.middleware.server import Received, ServerCodec
from fedsys.middleware.trials import read_trials
from fedsys.partial import Partial, blocks_of
from fedsys.progress import stale_weight
from fedsys.types import F32, ClientPlan, ClientReport, LinkSample, RoundPlan
from strategies._aggregate import Mean
from strategies._flight import Asked, Flight

ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"
GOES_ON = "at work when the round closed"
"""Of a client whose update is to come in a later round."""
MAX_EXAMPLES = 1 << 40
MAX_FIGURE = 1e30
_COUNTS = (("num-examples", "examples"), ("local-steps", "local_steps"), ("samples", "samples"))
_LOSSES = (("train-loss", "train_loss"), ("first-loss", "first_loss"))
_NORMS = (("update-norm", "update_norm"), ("residual-norm", "residual_norm"), ("nmse", "nmse"))
"""Metrics of a reply, and what a report calls them."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one round."""

    reports: tuple[ClientReport, ...]
    mean: Mean
    """Holds nothing when no update was accepted."""


def messages_for(
    codec: ServerCodec, plan: RoundPlan, *, sums: bool | None = None, turn: int = 0
) -> list[Message]:
    """The messages that ask the cohort to train the codec's current model, in plan order.

    Clients that are asked the same share the records of their messages. ``sums`` says to whoever
    carries them that the sum of the updates is all that is wanted, and whether each is to be
    divided by its local steps; None asks for every update. ``turn`` counts the requests to each of
    these clients where they may train the same model more than once, and stands for the round.
    """
    number = turn or plan.round
    contents: dict[Any, RecordDict] = {}
    arrays: dict[int, ArrayRecord] = {}
    messages: list[Message] = []
    for client in plan.clients:
        node = client.node_id
        payload = codec.payload_for(node)
        asked = (client.uplink, client.local_steps, client.lr, client.proximal_mu)
        key = (id(payload), codec.acked.get(node, 0), asked)
        if key not in contents:
            control = codec.control_for(node, client.uplink, plan.trial_codecs, turn)
            record = arrays.setdefault(id(payload), wrap(payload))
            contents[key] = _content(codec, record, control, number, client, sums)
        if messages:
            messages.append(same_to(messages[0], node, contents[key]))
        else:
            messages.append(Message(contents[key], node, "train", group_id=str(number)))
    return messages


def gather(
    grid: Grid,
    codec: ServerCodec,
    plan: RoundPlan,
    messages: Sequence[Message],
    replies: Iterable[Message],
    *,
    sent_s: float,
    fednova: bool,
    flight: Flight,
) -> Outcome:
    """Decode and aggregate ``replies`` one by one, and report on every client of the plan.

    ``sent_s`` is when the messages left, on the grid's clock. Updates are added in the order of the
    plan, block by block, whichever came first; then those of earlier rounds, who are in ``flight``,
    in the order of asking. Who has not answered is given up, or with a quorum now in ``flight``.
    """
    came: dict[str, Message] = {}
    for reply in replies:
        came.setdefault(reply.metadata.reply_to_message_id, reply)
    mean = Mean(Partial(codec.schema.n, normalise=fednova))
    reports: list[ClientReport] = []
    missing: list[str] = []
    for block in blocks_of(len(messages)):
        part = Partial(codec.schema.n, normalise=fednova)
        taking = Taking(codec, part, codec.downlink.version)
        for client, message in zip(plan.clients[block], messages[block], strict=True):
            message_id = message.metadata.message_id
            sample = measured(grid, message_id)
            if message_id not in came:
                missing.append(message_id)
                reports.append(
                    replace(report_on(client, sample, 0.0, reason=GOES_ON), at_work=True)
                    if plan.quorum
                    else missing_report(client, sample, plan.deadline_s)
                )
                continue
            reply = unsealed_reply(came[message_id])
            report = take(reply, client, taking, sample, sent_s)
            if plan.trial_codecs and report.accepted:
                report = replace(report, trials=read_trials(reply.content, plan.trial_codecs))
            reports.append(report)
        mean.sums.merge(taking.sum())
    reports += _late(grid, codec, plan, came, mean, flight)
    if plan.quorum is None:
        cancel(grid, missing)
        return Outcome(tuple(reports), mean)
    version = codec.downlink.version
    for client, message in zip(plan.clients, messages, strict=True):
        if (message_id := message.metadata.message_id) not in came:
            flight.asked[message_id] = Asked(client, 0, version, plan.round - 1, sent_s)
    flight.keep_base(version, codec.downlink.model())
    return Outcome(tuple(reports), mean)


def _late(
    grid: Grid,
    codec: ServerCodec,
    plan: RoundPlan,
    came: Mapping[str, Message],
    mean: Mean,
    flight: Flight,
) -> Iterator[ClientReport]:
    """Add what has come from those in flight, but for what is too late; a report on each."""
    most = plan.quorum.max_staleness if plan.quorum else 0
    for message_id, asked in list(flight.asked.items()):
        if message_id not in came:
            continue
        del flight.asked[message_id]
        staleness, sample = plan.round - 1 - asked.step, measured(grid, message_id)
        if staleness > most and not came[message_id].has_error():
            codec.seen(asked.client.node_id, asked.version)
            reason = f"more than {most} rounds late"
            report = report_on(asked.client, sample, asked.sent_s, reason=reason)
        else:
            part = Partial(codec.schema.n, normalise=mean.sums.normalise)
            base, share = flight.bases.get(asked.version), stale_weight(staleness)
            taking = Taking(codec, part, asked.version, base, share)
            reply = unsealed_reply(came[message_id])
            report = take(reply, asked.client, taking, sample, asked.sent_s)
            mean.sums.merge(taking.sum())
        yield replace(report, staleness=staleness)


def _content(
    codec: ServerCodec,
    arrays: ArrayRecord,
    control: Control,
    round_number: int,
    client: ClientPlan,
    sums: bool | None,
) -> RecordDict:
    config = ConfigRecord(
        {"server-round": round_number, "local-steps": client.local_steps, "lr": client.lr}
    )
    if client.proximal_mu is not None:
        config["proximal-mu"] = client.proximal_mu
    content = CommonContent({ARRAYS: arrays, CONFIG: config, RECORD: control.to_record()})
    content.sums = sums
    return seal(content, codec.piece_bytes) if codec.piece_bytes else content


@dataclass(slots=True)
class Taking:
    """The updates of one block that are used, all of them trained from one model."""

    codec: ServerCodec
    partial: Partial
    """Of those that came in packets."""
    version: int
    """Of the model that they were trained from."""
    base: F32 | None = None
    """That model float32 [n] as clients got it; None where it is the current one."""
    share: float = 1.0
    """What an example counts for."""
    turn: int = 0
    """Of the requests, where they have one."""
    summed: list[Summed] = field(default_factory=list)
    """Those that whoever computed them has summed already."""

    def sum(self) -> Partial:
        """All of them, in the order of the plan."""
        if self.summed:
            block = self.summed[0].block
            is_whole = len(self.summed) == block.members
            places = [one.place for one in self.summed]
            self.partial.merge(block.partial if is_whole else block.only(places))
        return self.partial


def take(
    reply: Message, client: ClientPlan, taking: Taking, sample: LinkSample, sent_s: float
) -> ClientReport:
    """Add the reply's update to the others, or say why not."""
    codec, version = taking.codec, taking.version
    if reply.has_error():
        codec.forget(client.node_id)
        reason = (reply.error.reason or "").strip().splitlines()[-1:] or [
            f"error {reply.error.code}"
        ]
        return report_on(client, sample, sent_s, reason=reason[0][:300])
    codec.seen(client.node_id, version)
    stand_in = summed(reply)
    try:
        metrics = _metrics(reply.content)
        received = None
        if stand_in is None:
            received = codec.receive(reply.content, version, client.uplink, taking.base)
            _check_size(received, codec)
    except WireError as error:
        return report_on(client, sample, sent_s, reason=f"refused: {error}")
    if metrics["examples"] == 0:
        return report_on(client, sample, sent_s, reason="no training examples")
    if stand_in is not None:
        taking.summed.append(stand_in)
    if received is not None:
        steps = metrics["local_steps"] or client.local_steps
        examples = metrics["examples"] * taking.share
        taking.partial.add(received.update, received.raw, examples=examples, local_steps=steps)
    codec.accept(client.node_id, version, taking.turn)
    found = unwrap(reply.content)
    metrics["packet_bytes"] = 0 if found is None else len(found[1])
    return report_on(client, sample, sent_s, metrics=metrics)


def _metrics(content: RecordDict) -> dict[str, Any]:
    """The figures of a reply, each checked: they come from a stranger."""
    found: dict[str, Any] = {}
    record, own = _record(content, METRICS), _record(content, RECORD)
    for key, name in _COUNTS:
        value = record.get(key, 0)
        if not isinstance(value, int) or not 0 <= value <= MAX_EXAMPLES:
            raise WireError(f"metric '{key}' must be a count, got {str(value)[:40]}")
        found[name] = value
    for source, names in ((record, _LOSSES), (own, _NORMS)):
        for key, name in names:
            figure = source.get(key)
            usable = isinstance(figure, float | int) and abs(figure) <= MAX_FIGURE
            found[name] = float(figure) if usable else None  # type: ignore[arg-type]
    return found


def _record(content: RecordDict, name: str) -> dict[str, Any]:
    record = content.get(name)
    # By its items: dict() of the record itself would ask it for every key.
    return dict(record.items()) if isinstance(record, MetricRecord) else {}


def _check_size(received: Received, codec: ServerCodec) -> None:
    if received.update.n != codec.schema.n:
        raise WireError(f"{received.update.n} values, the model has {codec.schema.n}")
    norm = float(np.sqrt(received.update.norm2()))
    if norm > MAX_NORM:
        raise WireError(f"the update's norm is {norm:.1e}, more than {MAX_NORM:.0e}")


def report_on(
    client: ClientPlan,
    sample: LinkSample,
    sent_s: float,
    *,
    reason: str = "",
    metrics: Mapping[str, Any] | None = None,
) -> ClientReport:
    """What became of ``client``, asked at ``sent_s``; without ``metrics`` it is left out."""
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


def missing_report(
    client: ClientPlan, sample: LinkSample, deadline_s: float | None
) -> ClientReport:
    """Of a client that has not answered."""
    deadline = "" if deadline_s is None else f" by the deadline of {deadline_s:.1f} s"
    return report_on(client, sample, 0.0, reason=f"no reply{deadline}")


def measured(grid: Grid, message_id: str) -> LinkSample:
    """What the grid measured; a grid that does not measure gives zeros and no times."""
    measure = getattr(grid, "measured", None)
    sample = None if measure is None else measure(message_id)
    return sample or LinkSample(downlink_bytes=0, uplink_bytes=0)


def cancel(grid: Grid, message_ids: Iterable[str]) -> None:
    """Give these replies up, where the grid can be told."""
    give_up = getattr(grid, "cancel", None)
    if give_up is not None:
        give_up(message_ids)
