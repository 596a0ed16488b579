"""Replies of devices, taken from Flower piece by piece, without waiting and without filling memory.

Flower's own grid is told of a reply as soon as a device begins to send it, and then waits until all
of it is there, with pauses that grow to 10 s, for up to two hours: no deadline holds meanwhile, and
nobody else's reply is seen. Here each look takes what has come. Pieces go into a file, so that
memory does not grow with the number of devices.
"""

import os
import tempfile
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from flwr.app import Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_from_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from fedsys._flwr_private import Run
from fedsys.clock import WallClock
from fedsys.deploy._flower import news_of_replies

PAUSE_S = 0.01
"""Between two looks, at least."""
BUSY_PAUSE_S = 0.1
"""The same where a look found much that is only under way: the server has other work."""
MISSES = 16
"""Replies that are asked for in vain in one look; a server with hundreds under way has other work.
"""
Span = tuple[int, int]
"""Where in the file, and how many bytes."""


class KeptReply(Message):
    """A reply whose content is read from a file each time that somebody asks for it."""

    def __init__(
        self, announced: Message, sizes: Sequence[int], read: Callable[[], RecordDict]
    ) -> None:
        """``sizes`` are the bytes of its objects."""
        super().__init__(content=RecordDict(), metadata=announced.metadata)  # type: ignore[call-overload]
        self.__dict__.update(_read=read, _traffic=(len(sizes), sum(sizes)))

    @property
    def traffic(self) -> tuple[int, int]:
        """Number of its objects, and their bytes."""
        return cast(tuple[int, int], self.__dict__["_traffic"])

    @property
    def content(self) -> RecordDict:
        """The records, new ones each time."""
        return cast(Callable[[], RecordDict], self.__dict__["_read"])()

    @content.setter
    def content(self, value: RecordDict) -> None:
        self.__dict__["_read"] = lambda: value


class _Spool:
    """A file without a name: it is gone with this object, or this process, however that ends."""

    def __init__(self, folder: Path | None) -> None:
        self._handle, name = tempfile.mkstemp(dir=folder)
        os.unlink(name)
        self._end = 0

    def __del__(self) -> None:
        os.close(self._handle)

    def write(self, data: bytes) -> Span:
        """Add ``data``; OSError where the disk is full."""
        begin, left = self._end, memoryview(data)
        while left:
            left = left[os.pwrite(self._handle, left, self._end + len(data) - len(left)) :]
        self._end += len(data)
        return begin, len(data)

    def read(self, span: Span) -> bytes:
        """What was added."""
        begin, size_bytes = span
        return os.pread(self._handle, size_bytes, begin)


@dataclass(slots=True)
class _Coming:
    """A reply that a device has begun to send."""

    announced: Message
    objects: list[str]
    """All its objects, itself first."""
    file: _Spool
    spans: dict[str, Span] = field(default_factory=dict)

    @property
    def missing(self) -> list[str]:
        """What has not come yet."""
        return [one for one in self.objects if one not in self.spans]


class Replies:
    """Replies, round after round."""

    def __init__(self, grid: Grid, clock: WallClock, spool: Path | None = None) -> None:
        """``spool`` is the folder of the file; the system's own for such files unless given."""
        self._grid: Any = grid
        self._clock = clock
        self._seen = -1
        self._is_behind = False
        self._confirming = ThreadPoolExecutor(1)
        self._spool = spool
        self._coming: dict[str, _Coming] = {}
        self._file = _Spool(spool)

    def begin(self, awaited: Collection[str] = ()) -> None:
        """A new round: of what is under way, only replies to ``awaited`` go on."""
        self._coming = {name: one for name, one in self._coming.items() if name in awaited}
        # A new file, because earlier replies may still be read from the old one, or written to it.
        self._file = _Spool(self._spool)

    def look(self, message_ids: Iterable[str]) -> list[Message]:
        """Those replies to these messages that are there as a whole by now."""
        waiting = set(message_ids) - self._coming.keys()
        if waiting:
            self._announced(waiting)
        found: list[Message] = []
        misses = 0
        for message_id, coming in list(self._coming.items()):
            reply = self._take(coming)
            if reply is not None:
                found.append(reply)
                continue
            self._coming[message_id] = self._coming.pop(message_id)  # the last in the next look
            misses += 1
            if misses == MISSES:
                break
        self._is_behind = misses == MISSES
        return found

    def wait(self, look_s: float, limit_s: float) -> None:
        """Until devices have sent something since the last look, and ``limit_s`` at most."""
        pause_s = BUSY_PAUSE_S if self._is_behind else PAUSE_S
        self._clock.sleep_s(min(pause_s, limit_s))
        left_s = limit_s - pause_s
        if self._is_behind or left_s <= 0:
            return
        try:
            self._seen = news_of_replies(self._client, self._seen, left_s)
        except OSError:
            self._clock.sleep_s(min(look_s, left_s))

    @property
    def _client(self) -> Any:
        return self._grid._runtime_client

    @property
    def _run_id(self) -> int:
        return int(cast(Run, self._grid._run).run_id)

    def _announced(self, message_ids: set[str]) -> None:
        """Learn who has begun to send."""
        answer = self._client.PullMessages(PullAppMessagesRequest(message_ids=message_ids))
        trees = answer.message_object_trees
        for message, tree in zip(answer.messages_list, trees, strict=True):
            objects = list(dict.fromkeys(one.object_id for one in iterate_object_tree(tree)))
            coming = _Coming(message_from_proto(message), objects, self._file)
            self._coming[coming.announced.metadata.reply_to_message_id] = coming

    def _take(self, coming: _Coming) -> Message | None:
        """All that has come of a reply; the reply itself once it is whole."""
        for object_id in coming.missing:
            request = PullObjectRequest(
                node=self._grid.node, run_id=self._run_id, object_id=object_id
            )
            answer = self._client.PullObject(request)
            if not answer.object_found:
                return self._lost(coming)
            if not answer.object_available:
                return None
            coming.spans[object_id] = coming.file.write(answer.object_content)
        return self._whole(coming)

    def _whole(self, coming: _Coming) -> Message:
        metadata = coming.announced.metadata
        del self._coming[metadata.reply_to_message_id]
        confirmed = ConfirmMessageReceivedRequest(
            node=self._grid.node, run_id=self._run_id, message_object_id=metadata.message_id
        )
        # The server may forget it now; nobody waits for that.
        self._confirming.submit(self._client.ConfirmMessageReceived, confirmed)
        message_id, objects, file = metadata.message_id, coming.objects, coming.file
        spans = [coming.spans[one] for one in objects]

        def inflate() -> Message:
            contents = dict(zip(objects, map(file.read, spans), strict=True))
            return cast(Message, inflate_object_from_contents(message_id, contents))

        first = inflate()
        if first.has_error():
            first.metadata.__dict__["_message_id"] = message_id
            return first
        sizes = [size_bytes for _, size_bytes in spans]
        return KeptReply(coming.announced, sizes, lambda: inflate().content)

    def _lost(self, coming: _Coming) -> Message:
        """Flower forgets what has not come as a whole three minutes after its last piece."""
        del self._coming[coming.announced.metadata.reply_to_message_id]
        reason = f"the update broke off: {len(coming.spans)} of {len(coming.objects)} pieces came"
        error = Error(ErrorCode.MESSAGE_UNAVAILABLE, reason)
        return Message(error=error, metadata=coming.announced.metadata)  # type: ignore[call-overload,no-any-return]


class PlainReplies:
    """The same for a grid that is not Flower's own over HTTP."""

    def __init__(self, grid: Grid, clock: WallClock) -> None:
        self._grid = grid
        self._clock = clock

    def begin(self, awaited: Collection[str] = ()) -> None:
        """Nothing is kept."""

    def look(self, message_ids: Iterable[str]) -> list[Message]:
        """What the grid has."""
        return list(self._grid.pull_messages(message_ids))

    def wait(self, look_s: float, limit_s: float) -> None:
        """Nobody tells when there is more."""
        self._clock.sleep_s(min(look_s, limit_s))


def replies_of(grid: Grid, clock: WallClock, spool: Path | None) -> Replies | PlainReplies:
    """The way to take replies from ``grid``."""
    if hasattr(grid, "_runtime_client"):
        return Replies(grid, clock, spool)
    return PlainReplies(grid, clock)
