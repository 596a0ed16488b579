"""A Flower Grid whose time is simulated: the same apps, behind emulated links, on a virtual clock.

Real training runs wherever ``submit`` runs it; what it costs in virtual seconds comes from the
links and from ``compute_s``. Equal arguments give equal times, whatever the order in which the
real computations finish.
"""

import itertools
import math
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid

from fedsys._flwr_private import (
    CLIENT_APP_RAISED_EXCEPTION,
    NODE_UNAVAILABLE,
    SERVER_NODE_ID,
    Run,
    copy_message,
    set_task_identity,
    stamp,
)
from fedsys.closing import Closing
from fedsys.errors import ConfigError
from fedsys.types import LinkSample, Quorum
from netem.link import Link
from netem.rate import RateCurve
from netem.sizes import downloads, upload
from netem.timeline import Exchange, Outcome, Timeline, sample_of
from netem.transfer import Traffic

KEPT_LINKS = 16384
"""Nodes whose links are remembered; another's is made again when it is needed, as it was."""
KEPT_SAMPLES = 1024
"""Exchanges that ``measured`` remembers at least, beside those of the last two pushes and those
that go on; older ones are forgotten, so that memory stays flat."""


@dataclass(slots=True)
class _Pending:
    """A message whose reply nobody has pulled yet."""

    message: Message
    future: Future[Message]
    exchange: Exchange
    reply: Message | None = None
    cancelled: bool = False


class VirtualGrid(Grid):
    """Sends messages to nodes over emulated links and returns replies when they would arrive.

    ``submit`` starts the real training of several messages and returns a future for each.
    ``compute_s(node_id, reply)`` says how long the device would have worked for that reply.
    ``server_egress_bps`` is shared by all downloads, ``server_ingress_bps`` by all uploads; None
    leaves each client its own link, a curve is a server whose rates change. ``drop(node_id, turn)``
    makes a device vanish after its download: after ``heartbeat_s`` the server learns of it by an
    error of code 5 (node unavailable), as it does when a link dies for good. ``turn`` is the number
    in the message's ``group_id`` (the round), or else how many messages the node has had; it also
    names the random draws, so a run resumed at a round draws what an unbroken one does.
    """

    whole_messages = True
    """Messages stay inside this process, so nothing is gained by packing their records."""

    def __init__(
        self,
        *,
        node_ids: Sequence[int],
        link_of: Callable[[int], Link],
        submit: Callable[[Sequence[Message]], list[Future[Message]]],
        compute_s: Callable[[int, Message], float],
        seed: int,
        server_egress_bps: RateCurve | float | None = None,
        server_ingress_bps: RateCurve | float | None = None,
        drop: Callable[[int, int], bool] | None = None,
        heartbeat_s: float = 60.0,
        run_id: int = 1,
        start_s: float = 0.0,
    ) -> None:
        _check_server("egress", server_egress_bps)
        _check_server("ingress", server_ingress_bps)
        set_task_identity(run_id)
        self._node_ids = node_ids if isinstance(node_ids, range) else dict.fromkeys(node_ids)
        self._link_of = lru_cache(maxsize=KEPT_LINKS)(link_of)
        self._submit = submit
        self._compute_s = compute_s
        self._drop = drop
        self._run_id = run_id
        self._run: Run | None = None
        self._sent = 0
        self._turns: dict[int, int] = {}
        self._pending: dict[str, _Pending] = {}
        self._arrived: dict[str, None] = {}
        """Ids of replies to pull, in order of arrival."""
        self._samples: dict[str, Exchange] = {}
        self._last_sent = 0
        """Messages of the last push."""
        self._timeline = Timeline(
            link_of=self._link_of,
            outcome_of=self._outcome_of,
            seed=seed,
            server_egress_bps=server_egress_bps,
            server_ingress_bps=server_ingress_bps,
            heartbeat_s=heartbeat_s,
            now_s=start_s,
        )

    @property
    def now_s(self) -> float:
        """Virtual seconds."""
        return self._timeline.now_s

    @property
    def sent_bytes(self) -> tuple[int, int]:
        """Bytes of all downloads and all uploads that have begun, heard of or not."""
        return self._timeline.downlink_bytes, self._timeline.uplink_bytes

    def set_run(self, run: Run) -> None:
        """Set what ``run`` returns; nothing here depends on it."""
        self._run = run

    @property
    def run(self) -> Run:
        """What ``set_run`` was given."""
        if self._run is None:
            raise RuntimeError("VirtualGrid.run is not set; call set_run first")
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """A message from the server; ``group_id`` carries the round number as text."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """All enrolled nodes, whether or not their links are up."""
        return list(self._node_ids)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send ``messages`` now and start the real work of all of them; their ids, in order.

        A node that is busy begins when its previous upload has ended. The clock does not move.
        """
        copies = [self._accept(message) for message in messages]
        # Sizes first: an app that computes at once may replace the content of its message.
        sizes = downloads(copies)
        exchanges = [self._exchange(*pair) for pair in zip(copies, sizes, strict=True)]
        futures = self._submit(copies) if copies else []
        ids = []
        for message, future, exchange in zip(copies, futures, exchanges, strict=True):
            message_id = message.metadata.message_id
            self._pending[message_id] = _Pending(message, future, exchange)
            self._samples[message_id] = exchange
            self._timeline.send(exchange)
            ids.append(message_id)
        self._forget(max(KEPT_SAMPLES, len(ids) + self._last_sent))
        self._last_sent = len(ids)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies that have arrived by now, by (arrival, sequence); each only once."""
        wanted = {message_id: self._pending.get(message_id) for message_id in message_ids}
        arrived = [
            (pending.exchange.ended_s, pending.exchange.key, message_id)
            for message_id, pending in wanted.items()
            if pending is not None and pending.exchange.ended_s is not None
        ]
        replies = []
        for _, _, message_id in sorted(arrived):
            self._arrived.pop(message_id, None)
            replies.append(self._reply(self._pending.pop(message_id)))
        return replies

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Send and ``receive``."""
        return self.receive(self.push_messages(messages), timeout=timeout)

    def receive(
        self,
        message_ids: Iterable[str],
        *,
        timeout: float | None = None,
        quorum: Quorum | None = None,
        late: Iterable[str] = (),
    ) -> list[Message]:
        """Let time pass until all have answered or ``timeout`` seconds are over, and pull.

        With ``quorum`` it may end before. Replies to ``late``, messages of earlier rounds, are
        pulled, too, and not waited for. What has not come stays pullable until it is cancelled.
        """
        ids, others = list(message_ids), list(late)
        own_keys, late_keys = self._unanswered(ids), self._unanswered(others)
        deadline_s = math.inf if timeout is None else self.now_s + max(0.0, timeout)
        closing = Closing(quorum, self.now_s, len(own_keys), len(late_keys), deadline_s)
        while closing.is_waiting and self._is_due(closing.until_s):
            for one in self._step():
                tell = closing.failed if self._has_failed(one) else closing.answered
                tell(self.now_s, own=one.key in own_keys, late=one.key in late_keys)
        if closing.is_waiting and closing.until_s < math.inf:
            self._timeline.now_s = closing.until_s
        return self.pull_messages([*ids, *others])

    def receive_next(self, *, timeout: float | None = None) -> list[Message]:
        """Let time pass until a reply is there or ``timeout`` seconds are over, and pull.

        For asynchronous strategies: costs what happens until then, however many are waited for.
        """
        deadline_s = math.inf if timeout is None else self.now_s + max(0.0, timeout)
        while not self._arrived and self._is_due(deadline_s):
            self._step()
        if not self._arrived and deadline_s < math.inf:
            self._timeline.now_s = deadline_s
        return self.pull_messages(list(self._arrived))

    def advance_to(self, now_s: float) -> None:
        """Let time pass until ``now_s``; nothing happens if that is not ahead."""
        while self._is_due(now_s):
            self._step()
        self._timeline.now_s = max(self._timeline.now_s, now_s)

    def next_arrival_s(self, message_ids: Iterable[str]) -> float:
        """When the first of these replies arrives if nothing more is sent; inf if none is due.

        Looks ahead without moving the clock, waiting for real computations where it must.
        """
        known = [self._pending[i].exchange for i in message_ids if i in self._pending]
        arrived_s = [exchange.ended_s for exchange in known if exchange.ended_s is not None]
        if arrived_s:
            return min(arrived_s)
        keys = {exchange.key for exchange in known}
        ahead = self._timeline.copy()
        while keys and ahead.next_event_s() < math.inf:
            if any(exchange.key in keys for exchange in ahead.step()):
                return ahead.now_s
        return math.inf

    def measured(self, message_id: str) -> LinkSample | None:
        """What the server could have measured by now of the exchange begun by this message."""
        exchange = self._samples.get(message_id)
        return None if exchange is None else sample_of(exchange)

    def cancel(self, message_ids: Iterable[str]) -> None:
        """Forget these replies.

        A message that its node has not begun to fetch is withdrawn. Any other keeps its node busy
        until its upload would have ended: nobody tells the device.
        """
        for message_id in message_ids:
            pending = self._pending.get(message_id)
            if pending is None:
                continue
            pending.cancelled, pending.reply = True, None
            ended = pending.exchange.ended_s is not None
            if ended or self._timeline.withdraw(pending.exchange.key):
                del self._pending[message_id]
                self._arrived.pop(message_id, None)

    def to_come(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies to these messages, for a checkpoint; waits for the real computations."""
        pending = [self._pending[message_id] for message_id in message_ids]
        return [one.reply or self._await(one) for one in pending]

    def take_up(self, replies: Iterable[Message]) -> None:
        """Wait again for what ``to_come`` gave when the state was taken that was restored."""
        for reply in replies:
            about = reply.metadata
            message = Message(RecordDict(), about.src_node_id, about.message_type)
            message_id = about.reply_to_message_id
            stamp(message, run_id=self._run_id, src_node_id=SERVER_NODE_ID, message_id=message_id)
            exchange = self._timeline.under_way(int(message_id.removeprefix("message-")))
            future: Future[Message] = Future()
            future.set_result(reply)
            self._pending[message_id] = _Pending(message, future, exchange, reply)
            self._samples[message_id] = exchange

    def state(self) -> dict[str, Any]:
        """What a resumed run needs, JSON-able; replies that were not pulled are not kept.

        Nodes that are still at work for such a reply stay busy for as long as they would have.
        ``to_come`` and ``take_up`` keep the replies, too.
        """
        return {
            "sent": self._sent,
            "turns": [[node_id, turn] for node_id, turn in self._turns.items()],
            "timeline": self._timeline.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from ``state`` on a grid made with the same arguments."""
        self._sent = state["sent"]
        self._turns = dict(state["turns"])
        self._timeline.restore(state["timeline"])

    def _accept(self, message: Message) -> Message:
        """A copy of ``message`` for its node, with the ids that a SuperLink would set."""
        node_id = message.metadata.dst_node_id
        if node_id not in self._node_ids:
            raise ConfigError(f"no node {node_id} among the {len(self._node_ids)} of this grid")
        self._sent += 1
        message_id = f"message-{self._sent}"
        stamp(message, run_id=self._run_id, src_node_id=SERVER_NODE_ID, message_id=message_id)
        return copy_message(message)

    def _exchange(self, message: Message, size: Traffic) -> Exchange:
        metadata = message.metadata
        node_id, group = metadata.dst_node_id, metadata.group_id
        count = self._turns[node_id] = self._turns.get(node_id, 0) + 1
        turn = int(group) if group.isdecimal() else count
        return Exchange(
            key=int(metadata.message_id.removeprefix("message-")),
            node_id=node_id,
            flow=(node_id, turn, metadata.message_type),
            download=size,
            vanishes=self._drop is not None and self._drop(node_id, turn),
            sent_s=self.now_s,
        )

    def _forget(self, keep: int) -> None:
        """Drop the oldest samples but ``keep``, apart from those that may still change."""
        spare = len(self._samples) - keep
        for message_id in list(itertools.islice(self._samples, max(0, spare))):
            if message_id not in self._pending:
                del self._samples[message_id]

    def _is_due(self, limit_s: float) -> bool:
        event_s = self._timeline.next_event_s()
        return event_s <= limit_s and event_s < math.inf

    def _has_failed(self, exchange: Exchange) -> bool:
        pending = self._pending.get(f"message-{exchange.key}")
        return exchange.lost or bool(pending and pending.reply and pending.reply.has_error())

    def _unanswered(self, message_ids: Iterable[str]) -> set[int]:
        """Keys of the exchanges that go on."""
        exchanges = [self._pending[message_id].exchange for message_id in message_ids]
        return {exchange.key for exchange in exchanges if exchange.ended_s is None}

    def _step(self) -> list[Exchange]:
        ended = self._timeline.step()
        for exchange in ended:
            message_id = f"message-{exchange.key}"
            pending = self._pending.get(message_id)
            if pending is None:
                continue
            if pending.cancelled:
                del self._pending[message_id]
            else:
                self._arrived[message_id] = None
        return ended

    def _outcome_of(self, exchange: Exchange) -> Outcome:
        pending = self._pending[f"message-{exchange.key}"]
        reply = self._await(pending)
        if not pending.cancelled:
            pending.reply = reply
        compute_s = 0.0 if reply.has_error() else self._compute_s(exchange.node_id, reply)
        return upload(reply), compute_s

    def _await(self, pending: _Pending) -> Message:
        """The real reply; an exception of the client's becomes a reply that carries it."""
        try:
            reply = pending.future.result()
        except Exception as error:
            reason = "".join(traceback.format_exception(error))
            reply = Message(Error(CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=pending.message)
        return reply

    def _reply(self, pending: _Pending) -> Message:
        exchange, node_id = pending.exchange, pending.exchange.node_id
        if exchange.lost:
            reason = f"node {node_id} unavailable: no sign of life by {exchange.ended_s:.1f} s"
            reply = Message(Error(NODE_UNAVAILABLE, reason), reply_to=pending.message)
        else:
            reply = pending.reply or self._await(pending)
        stamp(reply, run_id=self._run_id, src_node_id=node_id, message_id=f"reply-{exchange.key}")
        return reply


def _check_server(way: str, rate: RateCurve | float | None) -> None:
    if isinstance(rate, RateCurve):
        if rate.dead_from_s() < math.inf:
            raise ConfigError(
                f"server_{way}_bps must not be 0 for good, as it is from {rate.dead_from_s()} s on"
            )
    elif rate is not None and not 0 < rate < math.inf:
        raise ConfigError(f"server_{way}_bps must be above 0, or None for no limit: {rate}")
