"""Codecs for any Flower strategy: ``strategy.start(grid=CodecGrid(grid, uplink="..."))``.

The strategy above sees plain records and does not know that they were packed; the grid below moves
packets and does not know what is in them.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flwr.app import Array, ArrayRecord, Message
from flwr.serverapp import Grid

from fedsys._flwr_private import Run, error_instead, with_content
from fedsys.codecs._chain import parse
from fedsys.config.schema import CodecConfig, FirstModel
from fedsys.errors import ConfigError, WireError
from fedsys.middleware.conform import conform
from fedsys.middleware.control import RECORD, array_records, unwrap
from fedsys.middleware.envelope import piece_bytes_for, seal, unsealed_reply
from fedsys.middleware.server import Received, ServerCodec
from fedsys.types import F32
from fedsys.wire.schema import Schema


@dataclass(frozen=True, slots=True)
class _Note:
    """What went out in a message, to read its reply by."""

    node: int
    version: int
    codec: ServerCodec
    sent: F32
    """The model as the client got it, float32 [n]."""
    owed: F32 | None
    """The strategy's model minus that, float32 [n]; None where the client got it bit for bit."""


_LOG = logging.getLogger(__name__)


class CodecGrid(Grid):
    """A Grid that packs every model it sends and unpacks every update it receives.

    ``uplink`` and ``downlink`` are codec specs such as ``topk(0.05)|int8``. Error feedback is on
    unless ``error_feedback=False``. Clients need ``ClientApp(mods=[codec_mod])``. An update that
    does not decode comes back as an error reply that names the reason, and the round goes on.

    What a strategy gets for a client is its own model plus that client's update. So what a
    downlink codec dropped is still in the strategy's model, and goes out with the next one.
    """

    def __init__(
        self,
        grid: Grid,
        *,
        uplink: str = "topk(0.05)|int8",
        downlink: str = "none",
        first_model: FirstModel = "int8",
        key_frames: bool = True,
        error_feedback: bool = True,
        seed: int = 0,
    ) -> None:
        """Raises ConfigError for a spec that names no codec.

        ``first_model`` is the codec of the first model, unless ``downlink`` is ``none``. With
        ``key_frames`` the whole model goes out again where that is less than what clients lack.
        """
        self._grid = grid
        self._config = CodecConfig(
            uplink=parse(uplink).spec,
            downlink=parse(downlink).spec,
            first_model=first_model,
            key_frames=key_frames,
            error_feedback=error_feedback,
        )
        self._seed = seed
        self._codec: ServerCodec | None = None
        self._current: list[Array] = []
        self._owed: F32 | None = None
        self._notes: dict[str, _Note] = {}
        self._asked: dict[int, int] = {}
        self._has_read = False
        """Whether any client has answered with a packet, or it was said that none has."""

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
        """Pack and send; the ids of the messages. The messages themselves stay as they are."""
        packed = self._packed(messages)
        ids = self._grid.push_messages([message for message, _ in packed])
        self._remember(packed)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Receive and unpack."""
        return [self._unpack(reply) for reply in self._grid.pull_messages(message_ids)]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Pack, send, wait as the inner grid does, and unpack."""
        packed = self._packed(messages)
        sent = [message for message, _ in packed]
        replies = self._grid.send_and_receive(sent, timeout=timeout)
        self._remember(packed)
        return [self._unpack(reply) for reply in replies]

    def _packed(self, messages: Iterable[Message]) -> list[tuple[Message, _Note | None]]:
        cohort = list(messages)
        nodes = [message.metadata.dst_node_id for message in cohort if _records(message)]
        return [self._pack(message, nodes) for message in cohort]

    def _pack(self, message: Message, nodes: Sequence[int]) -> tuple[Message, _Note | None]:
        """``nodes`` are all who get a model now."""
        records = _records(message)
        if not records:
            return message, None
        if len(records) > 1:
            names = ", ".join(records)
            raise ConfigError(f"CodecGrid packs one ArrayRecord a message, this one has: {names}")
        ((name, record),) = records.items()
        codec, node = self._advance(record, nodes), message.metadata.dst_node_id
        content, version = message.content.copy(), codec.downlink.version
        content[name], content[RECORD] = codec.records_for(node, self._config.uplink)
        if message.metadata.message_type.startswith("train"):
            self._asked[node] = version
        note = _Note(node, version, codec, codec.downlink.model(), self._owed)
        sent = seal(content, codec.piece_bytes) if codec.piece_bytes else content
        return with_content(message, sent), note

    def _advance(self, record: ArrayRecord, nodes: Sequence[int]) -> ServerCodec:
        """The codec, with this record as its current model.

        A strategy puts the same Array objects, which nobody changes, into a whole cohort's
        messages.
        """
        codec, current = self._codec, list(record.values())
        if codec is not None and list(map(id, current)) == list(map(id, self._current)):
            return codec
        arrays = {key: array.numpy() for key, array in record.items()}
        shapes = {key: array.shape for key, array in arrays.items()}
        if codec is None or {t.name: t.shape for t in codec.schema.tensors} != shapes:
            schema = Schema.of(arrays, self._config.raw)
            holds, pieces = self._config.downlink != "none", piece_bytes_for(self._grid)
            codec = ServerCodec(schema, self._config, self._seed, holds, piece_bytes=pieces)
        codec.advance(conform(arrays, codec.schema), self._config.downlink, nodes)
        self._codec, self._current, self._owed = codec, current, codec.downlink.owed()
        return codec

    def _remember(self, packed: Iterable[tuple[Message, _Note | None]]) -> None:
        """Keep the notes, and drop those whose replies come too late to be of use."""
        for message, note in packed:
            if note is not None:
                self._notes[message.metadata.message_id] = note
        for message_id, note in list(self._notes.items()):
            behind = note.codec.downlink.version - note.version
            if note.codec is not self._codec or behind > self._config.ring_versions:
                del self._notes[message_id]

    def _unpack(self, reply: Message) -> Message:
        reply = unsealed_reply(reply)
        note = self._notes.pop(reply.metadata.reply_to_message_id, None)
        if reply.has_error():
            if note is not None:
                note.codec.forget(note.node)
                if not self._has_read:
                    self._has_read = True
                    _LOG.warning(
                        "node %d failed: %s (CodecGrid needs ClientApp(mods=[codec_mod]) there)",
                        note.node,
                        reply.error.reason,
                    )
            return reply
        found = unwrap(reply.content)
        self._has_read |= found is not None
        if note is not None:
            note.codec.seen(note.node, note.version)
        if found is None:
            return reply
        try:
            arrays = self._received(reply, note)
        except WireError as error:
            source = reply.metadata.src_node_id
            return error_instead(reply, f"update of node {source} refused: {error}")
        content = reply.content.copy()
        content.pop(RECORD, None)
        content[found[0]] = arrays
        return with_content(reply, content)

    def _received(self, reply: Message, note: _Note | None) -> ArrayRecord:
        """The model that the client trained, as it would have sent it without codecs."""
        if note is None:
            raise WireError("nobody knows any more which model it belongs to")
        if self._config.error_feedback and self._asked[note.node] > note.version:
            # It was then told that this update had not come, and took it back into its residual.
            raise WireError(f"late: the node was asked for model {self._asked[note.node]} since")
        received = note.codec.receive(reply.content, note.version, self._config.uplink, note.sent)
        note.codec.accept(note.node, note.version)
        return _record(note, received)


def _records(message: Message) -> dict[str, ArrayRecord]:
    return array_records(message.content) if message.has_content() else {}


def _record(note: _Note, received: Received) -> ArrayRecord:
    arrays = received.exact
    if arrays is None or note.owed is not None:
        flat, schema = note.sent.copy(), note.codec.schema
        if note.owed is not None:
            flat += note.owed
        received.update.add_to(flat, 1.0)
        arrays = schema.join(flat, bytes(schema.raw_n_bytes)) | received.raw
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})
