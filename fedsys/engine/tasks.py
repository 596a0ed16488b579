"""Work that was given to a pool, and the futures by which its results are had."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from flwr.app import Message

from fedsys._flwr_private import CommonContent
from fedsys.engine.crew import WorkerDied
from fedsys.engine.serving import Block, Call, Order
from fedsys.engine.shared import Segment

Pump = Callable[[float | None], None]
"""Waits for answers, at most so many seconds."""
R = TypeVar("R")


class Pumped(Future[R]):
    """A future whose pool works on while its result is waited for, in the thread that asks."""

    def __init__(self, pump: Pump) -> None:
        super().__init__()
        self._pump = pump

    def result(self, timeout: float | None = None) -> R:
        """What came of it; raises what went wrong."""
        self._wait(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What ``result`` would raise, or None."""
        self._wait(timeout)
        return super().exception(0)

    def _wait(self, timeout: float | None) -> None:
        if timeout is not None and not self.done():
            self._pump(timeout)
        while timeout is None and not self.done():
            self._pump(None)


class Reply(Pumped[Message]):
    """The reply to one message."""

    def __init__(self, pump: Pump, message: Message) -> None:
        super().__init__(pump)
        self.message = message
        self.node_id = message.metadata.dst_node_id


@dataclass(slots=True, eq=False)
class Task:
    """What a worker does in one go: a block of messages, or a call."""

    replies: Sequence[Reply] = ()
    call: Call | None = None
    outcome: Pumped[Any] | None = None
    """Of a call."""
    together: bool = False
    attempts: int = 0
    """Workers that died of it."""
    key: int = 0
    segment: Segment | None = None
    filling: int = 0
    body: bytes = b""

    def work(self, order: Callable[[Message], Order]) -> Block | Call:
        """What the worker is to be told; ``order`` adds to a message what its node knows."""
        if self.call is not None:
            return self.call
        contents = [reply.message.content for reply in self.replies if reply.message.has_content()]
        wishes = {content.sums for content in contents if isinstance(content, CommonContent)}
        agreed = self.together and len(wishes) == 1 and len(contents) == len(self.replies)
        return Block(
            orders=[order(reply.message) for reply in self.replies],
            together=self.together,
            sums=wishes.pop() if agreed else None,
        )

    def singles(self) -> "list[Task]":
        """The same, one message at a time."""
        if self.call is not None:
            return [Task(call=self.call, outcome=self.outcome, attempts=self.attempts)]
        return [Task(replies=[reply], attempts=self.attempts) for reply in self.replies]

    def give_up(self, reason: str) -> None:
        """Blame the message, or the call, for what happened to its workers."""
        for reply in self.replies:
            reply.set_exception(WorkerDied(f"{reason} at a message to node {reply.node_id}"))
        if self.outcome is not None and self.call is not None:
            self.outcome.set_exception(WorkerDied(f"{reason} at a call of {self.call.name}"))
