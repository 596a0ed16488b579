"""A real network as strategies see it: deadlines, a clock, and what went over the wire."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from flwr.app import ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from fedsys._flwr_private import Run
from fedsys.clock import WallClock
from fedsys.closing import Closing
from fedsys.deploy import _flower
from fedsys.deploy._replies import KeptReply, replies_of
from fedsys.errors import WireError
from fedsys.middleware.envelope import unseal
from fedsys.types import LinkSample, Quorum

LOOK_S = 0.1
"""Between two looks for replies where nobody says that there are some; Flower's grid sleeps 3 s."""
MAX_LOOK_S = 1.0
"""The same where the server says so: it does not say that a device has gone."""
LOOK_FRACTION = 0.02
"""Of the time that a round has taken so far: what looking rarely may add to it."""
GRACE_S = 30.0
"""In every deadline: processes start, and models load."""
START_S = 300.0
"""In the first one: how long the devices need is not known yet."""
MARGIN = 4.0
"""Deadline over what was measured; links fade and devices get warm."""
HEAD_BYTES = 916
"""Of one object's request from a device: head with key and signature, framing of HTTP and TLS."""
ANSWER_BYTES = 207
"""Of its answer."""
REQUESTS = 4
"""Of a message beside its objects: asked for, confirmed, announced, and the next question."""


@dataclass(slots=True)
class _Sent:
    """A message that is under way, or whose reply has come."""

    sent_s: float
    down_bytes: int
    down_objects: int
    local_steps: int
    sample: LinkSample | None = None


class WireGrid(Grid):
    """Flower's grid, looked at when something has come, with a deadline for everything.

    ``now_s`` is seconds of the run, those before a resume included. A round without a deadline of
    its own ends after ``MARGIN`` times what the slowest device would need by what was measured.
    Strategies number the devices from 1, as in a simulation; ``places`` has Flower's numbers.
    """

    def __init__(
        self,
        inner: Grid,
        *,
        places: Mapping[int, int],
        piece_bytes: int,
        model_bytes: int,
        exchange_bps: float,
        begin_s: float = 0.0,
        clock: WallClock | None = None,
        spool: Path | None = None,
    ) -> None:
        """``spool`` is the folder where replies of a round are kept until they are added up."""
        self.piece_bytes = piece_bytes
        self.sent_bytes = (0, 0)
        """(down, up) since the start, estimated from the objects of each message."""
        self._inner = inner
        self._places = dict(places)
        self._clock = clock or WallClock()
        self._replies = replies_of(inner, self._clock, spool)
        self._zero_s = self._clock.now_s() - begin_s
        self._network_s = START_S / MARGIN + 8 * model_bytes / exchange_bps
        self._step_s = 0.0
        self._is_first = True
        self._sent: dict[str, _Sent] = {}
        self._deadline_s = self.default_deadline_s(0)

    @property
    def now_s(self) -> float:
        """Seconds of the run."""
        return self._clock.now_s() - self._zero_s

    def set_run(self, run: Run) -> None:
        """Passed on."""
        self._inner.set_run(run)

    @property
    def run(self) -> Run:
        """The inner grid's run."""
        return self._inner.run

    def create_message(self, *args: object, **kwargs: object) -> Message:
        """Passed on."""
        return self._inner.create_message(*args, **kwargs)  # type: ignore[arg-type]

    def get_node_ids(self) -> Iterable[int]:
        """The devices that are connected, as strategies number them."""
        online = set(self._inner.get_node_ids())
        return [node for node, flower_id in self._places.items() if flower_id in online]

    def default_deadline_s(self, local_steps: int) -> float:
        """How long a round of so many local steps may take."""
        return GRACE_S + MARGIN * (self._network_s + local_steps * self._step_s)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send; messages that nobody has fetched by the deadline are dropped."""
        messages = list(messages)
        steps = [_local_steps(message) for message in messages]
        self._deadline_s = self.default_deadline_s(max(steps, default=0))
        for message in messages:
            message.metadata.ttl = self._deadline_s
            _flower.readdress(message, self._places[message.metadata.dst_node_id])
        sent_s = self.now_s
        self._sent = {name: sent for name, sent in self._sent.items() if sent.sample is None}
        self._replies.begin(self._sent)
        ids = list(self._inner.push_messages(messages))
        for message, local_steps in zip(messages, steps, strict=True):
            count, size_bytes = _flower.objects_of(message)
            down = size_bytes + (count + REQUESTS) * ANSWER_BYTES
            self._sent[message.metadata.message_id] = _Sent(sent_s, down, count, local_steps)
            self._add(down, 0)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Replies that have come, each measured."""
        replies = self._replies.look(message_ids)
        for reply in replies:
            self._measure(reply)
        return replies

    def receive(
        self,
        message_ids: Iterable[str],
        *,
        timeout: float | None = None,
        quorum: Quorum | None = None,
        late: Iterable[str] = (),
    ) -> list[Message]:
        """Replies to these messages until all have come or time is up.

        With ``quorum`` that may be before. Replies to ``late``, messages of earlier rounds, are
        taken, too, and not waited for.
        """
        own = {message_id for message_id in message_ids if message_id}
        others = set(late)
        begin_s = self.now_s
        until_s = begin_s + (self._deadline_s if timeout is None else timeout)
        closing = Closing(quorum, begin_s, len(own), len(others), until_s)
        replies: list[Message] = []
        while True:
            found = list(self.pull_messages(own | others))
            replies += found
            for reply in found:
                message_id = reply.metadata.reply_to_message_id
                tell = closing.failed if reply.has_error() else closing.answered
                tell(self.now_s, own=message_id in own, late=message_id in others)
                own.discard(message_id)
                others.discard(message_id)
            if not closing.is_waiting or self.now_s >= closing.until_s:
                break
            look_s = max(LOOK_S, LOOK_FRACTION * (self.now_s - begin_s))
            self._replies.wait(look_s, min(MAX_LOOK_S, closing.until_s - self.now_s))
        return replies

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Both."""
        return self.receive(self.push_messages(messages), timeout=timeout)

    def cancel(self, message_ids: Iterable[str]) -> None:
        """Give these replies up."""
        for message_id in message_ids:
            self._sent.pop(message_id, None)

    def measured(self, message_id: str) -> LinkSample | None:
        """What the exchange took. Times of the link are its share by bytes, not measured alone."""
        sent = self._sent.get(message_id)
        if sent is None:
            return None
        return sent.sample or LinkSample(downlink_bytes=sent.down_bytes, uplink_bytes=0)

    def _measure(self, reply: Message) -> None:
        sent = self._sent.get(reply.metadata.reply_to_message_id)
        if sent is None:
            return
        arrival_s = self.now_s
        count, size_bytes = _traffic(reply)
        # The device asks for each object that it gets in a signed request of its own.
        up = size_bytes + (count + sent.down_objects + REQUESTS) * HEAD_BYTES
        down = sent.down_bytes + count * ANSWER_BYTES
        self._add(count * ANSWER_BYTES, up)
        if reply.has_error():
            sent.sample = LinkSample(downlink_bytes=down, uplink_bytes=up, arrival_s=arrival_s)
            return
        train_s = min(_figure(reply, "train-seconds"), arrival_s - sent.sent_s)
        network_s = arrival_s - sent.sent_s - train_s
        share = down / (down + up)
        sent.sample = LinkSample(
            downlink_bytes=down,
            uplink_bytes=up,
            download_s=network_s * share,
            train_s=train_s,
            upload_s=network_s * (1 - share),
            arrival_s=arrival_s,
        )
        self._learn(network_s, train_s / max(1, sent.local_steps))

    def _learn(self, network_s: float, step_s: float) -> None:
        """Remember the slowest; the guess at the start is forgotten."""
        if self._is_first:
            self._is_first, self._network_s = False, 0.0
        self._network_s = max(self._network_s, network_s)
        self._step_s = max(self._step_s, step_s)

    def _add(self, down: int, up: int) -> None:
        self.sent_bytes = (self.sent_bytes[0] + down, self.sent_bytes[1] + up)


def _traffic(reply: Message) -> tuple[int, int]:
    """Number of objects of a reply, and their bytes; an error may never have been on the wire."""
    if reply.has_error():
        return 0, 0
    return reply.traffic if isinstance(reply, KeptReply) else _flower.objects_of(reply)


def _local_steps(message: Message) -> int:
    config = unseal(message.content).get("config") if message.has_content() else None
    value = config.get("local-steps") if isinstance(config, ConfigRecord) else None
    return value if isinstance(value, int) else 0


def _figure(reply: Message, name: str) -> float:
    """A figure that a device reports; 0 where it does not, or what it sends cannot be read."""
    try:
        metrics = unseal(reply.content).get("metrics")
    except WireError:
        return 0.0
    value = metrics.get(name) if isinstance(metrics, MetricRecord) else None
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e9 else 0.0
