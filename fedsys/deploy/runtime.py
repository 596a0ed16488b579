"""The runtime API, where tasks come from and where they fetch and leave their messages.

Flower's processes ask it every so often whether there is something for them. Here it is told them
when there is, and they are idle until then.
"""

import asyncio
from dataclasses import dataclass
from urllib.parse import parse_qs

from flwr.proto.message_pb2 import PullObjectResponse

from fedsys.deploy.asgi import (
    App,
    Event,
    Receive,
    Scope,
    Send,
    answer,
    ask,
    body_of,
    read_body,
    status_of,
)
from fedsys.deploy.bell import Bell

RUNTIME = "/v1/runtime/"
ACQUIRE = RUNTIME + "acquire-task"
PULL = RUNTIME + "pull-object"
PUSHES = (RUNTIME + "push-messages", RUNTIME + "push-object")
REPLIES = "/v1/fedsys/replies"
"""Asked by the ServerApp: ``?seen=N&hold_ms=T`` is answered by another number at news."""
TASK_HOLD_S = 1.0
"""A process that starts tasks asks so often while there is none, and does not end sooner."""
HOLD_S = 2.0
"""How long other questions are kept."""
MAX_REQUEST_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class News:
    """What is rung in a server."""

    work: Bell
    """The ServerApp has sent something that is for devices."""
    replies: Bell
    """A device has sent something that is for the ServerApp."""
    tasks: Bell
    """Somebody has given an order, which may be to start a run."""


class _Acquired:
    """Lets through questions for a task when there may be one."""

    def __init__(self, tasks: Bell) -> None:
        self._tasks = tasks
        self._seen = -1

    async def wait(self) -> None:
        """Before a question is passed on: Flower takes each but once."""
        await self._tasks.heard(self._seen, TASK_HOLD_S)
        self._seen = self._tasks.rung


class ServerTasks:
    """A SuperLink's runtime and control API."""

    def __init__(self, app: App, news: News) -> None:
        self._app = app
        self._news = news
        self._acquired = _Acquired(news.tasks)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, or the life of the server."""
        path = scope.get("path", "")
        if path == REPLIES:
            await self._tell(scope, send)
            return
        if path == ACQUIRE:
            await self._acquired.wait()
        await self._app(scope, receive, send)
        if path in PUSHES:
            self._news.work.ring()
        elif path and not path.startswith(RUNTIME):
            self._news.tasks.ring()

    async def _tell(self, scope: Scope, send: Send) -> None:
        """How often devices have sent something, once it is another number than is known."""
        asked = parse_qs(scope["query_string"])
        try:
            seen, hold_ms = (int(asked[name][0]) for name in (b"seen", b"hold_ms"))
        except (KeyError, ValueError):
            await answer(send, 400)
            return
        await self._news.replies.heard(seen, min(hold_ms / 1000, HOLD_S))
        await answer(send, 200, str(self._news.replies.rung).encode())


class DeviceTasks:
    """A SuperNode's runtime API."""

    def __init__(self, app: App, *, tasks: Bell, pieces: Bell, replies: Bell) -> None:
        """``tasks`` and ``pieces`` are rung when there are some, ``replies`` is rung here."""
        self._app = app
        self._pieces = pieces
        self._replies = replies
        self._acquired = _Acquired(tasks)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, or the life of the server."""
        path = scope.get("path", "")
        if path == ACQUIRE:
            await self._acquired.wait()
        if path == PULL:
            body = await read_body(receive, MAX_REQUEST_BYTES)
            for event in await self._piece(scope, body or b""):
                await send(event)
            return
        await self._app(scope, receive, send)
        if path in PUSHES:
            self._replies.ring()

    async def _piece(self, scope: Scope, body: bytes) -> list[Event]:
        """A piece of a message that is still on its way, as soon as it is there."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + HOLD_S
        while True:
            seen = self._pieces.rung
            events = await ask(self._app, scope, body)
            if not _is_under_way(events) or loop.time() >= until_s:
                return events
            await self._pieces.heard(seen, until_s - loop.time())


def _is_under_way(events: list[Event]) -> bool:
    """Whether it is known, and not here."""
    if status_of(events) != 200:
        return False
    said = PullObjectResponse.FromString(body_of(events))
    return said.object_found and not said.object_available
