"""Codecs for any Flower strategy: ``strategy.start(grid=CodecGrid(grid, uplink="..."))``.

The strategy below sees plain records and does not know that they were packed; the grid above moves
packets and does not know what is in them.
"""

from collections.abc import Iterable

from flwr.app import Array, ArrayRecord, Error, Message
from flwr.serverapp import Grid

from fedsys._flwr_private import CLIENT_APP_RAISED_EXCEPTION, Run
from fedsys.config.schema import CodecConfig
from fedsys.errors import WireError
from fedsys.middleware.control import RECORD, unwrap
from fedsys.middleware.server import Received, ServerCodec
from fedsys.types import F32
from fedsys.wire.schema import Schema


class CodecGrid(Grid):
    """A Grid that packs every model it sends and unpacks every update it receives.

    ``uplink`` and ``downlink`` are codec specs such as ``topk(0.05)|int8``. Error feedback is on
    unless ``error_feedback=False``. Clients need ``ClientApp(mods=[codec_mod])``. An update that
    does not decode comes back as an error reply that names the reason, and the round goes on.
    """

    def __init__(
        self,
        grid: Grid,
        *,
        uplink: str = "topk(0.05)|int8",
        downlink: str = "none",
        error_feedback: bool = True,
        seed: int = 0,
    ) -> None:
        self._grid = grid
        self._config = CodecConfig(uplink=uplink, downlink=downlink, error_feedback=error_feedback)
        self._seed = seed
        self._codec: ServerCodec | None = None
        self._sent: dict[str, tuple[int, int, F32]] = {}

    def set_run(self, run: Run) -> None:
        """Passed on."""
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        """The inner grid's run."""
        return self._grid.run

    def create_message(self, *args: object, **kwargs: object) -> Message:
        """Passed on."""
        return self._grid.create_message(*args, **kwargs)  # type: ignore[arg-type]

    def get_node_ids(self) -> Iterable[int]:
        """The inner grid's nodes."""
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Pack and send; the ids of the messages."""
        packed = [self._pack(message) for message in messages]
        ids = list(self._grid.push_messages(message for message, _ in packed))
        for message_id, (_, note) in zip(ids, packed, strict=True):
            if note is not None:
                self._sent[message_id] = note
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Receive and unpack, one at a time as the caller asks for them."""
        for reply in self._grid.pull_messages(message_ids):
            yield self._unpack(reply)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Pack, send, wait as the inner grid does, and unpack."""
        packed = [self._pack(message) for message in messages]
        sent = [message for message, _ in packed]
        replies = list(self._grid.send_and_receive(sent, timeout=timeout))
        for message, note in packed:
            if note is not None:
                self._sent[message.metadata.message_id] = note
        return [self._unpack(reply) for reply in replies]

    def _pack(self, message: Message) -> tuple[Message, tuple[int, int, F32] | None]:
        records = message.content.array_records if message.has_content() else {}
        if len(records) != 1:
            return message, None
        (name, record), node = next(iter(records.items())), message.metadata.dst_node_id
        arrays = {key: array.numpy() for key, array in record.items()}
        schema = Schema.of(arrays, self._config.raw)
        if self._codec is None or self._codec.schema != schema:
            holds = self._config.downlink != "none"
            self._codec = ServerCodec(schema, self._config, self._seed, holds)
        version = self._codec.advance(arrays, self._config.downlink)
        content = message.content.copy()
        content[name], content[RECORD] = self._codec.records_for(node, self._config.uplink)
        message.content = content
        sent = self._codec.downlink.sent
        return message, None if sent is None else (node, version, sent)

    def _unpack(self, reply: Message) -> Message:
        note = self._sent.pop(reply.metadata.reply_to_message_id, None)
        if note is None or self._codec is None:
            return reply
        node, version, sent = note
        if reply.has_error():
            self._codec.forget(node)
            return reply
        self._codec.seen(node, version)
        found = unwrap(reply.content)
        if found is None:
            return reply
        try:
            received = self._codec.receive(reply.content, version, self._config.uplink, sent)
        except WireError as error:
            reason = f"update of node {node} refused: {error}"
            return _error_reply(reply, reason)
        self._codec.accept(node, version)
        content = reply.content.copy()
        content.pop(RECORD, None)
        content[found[0]] = self._record(sent, received)
        reply.content = content
        return reply

    def _record(self, sent: F32, received: Received) -> ArrayRecord:
        """The model that the client trained, as it would have sent it without codecs."""
        if self._codec is None:
            raise ValueError("nothing was sent yet")
        arrays = received.exact
        if arrays is None:
            flat, schema = sent.copy(), self._codec.schema
            received.update.add_to(flat, 1.0)
            arrays = schema.join(flat, bytes(schema.raw_n_bytes)) | received.raw
        return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def _error_reply(reply: Message, reason: str) -> Message:
    """An error in place of ``reply``, from the same node and to the same message."""
    return Message(  # type: ignore[call-overload,no-any-return]
        error=Error(CLIENT_APP_RAISED_EXCEPTION, reason), metadata=reply.metadata
    )
