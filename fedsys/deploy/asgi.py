"""Requests and answers as ASGI has them, taken apart and put together."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

SLICE_BYTES = 1 << 16


async def ask(app: App, scope: Scope, body: bytes) -> list[Event]:
    """The app's whole answer to one request."""
    events: list[Event] = []
    sent = False

    async def receive() -> Event:
        nonlocal sent
        if sent:
            await asyncio.Event().wait()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(event: Event) -> None:
        events.append(event)

    # Flower's middleware leaves marks in it.
    await app(dict(scope) | {"state": dict(scope.get("state", {}))}, receive, send)
    return events


async def read_body(receive: Receive, max_bytes: int) -> bytes | None:
    """All of the request's body; None where it is too long."""
    parts: list[bytes] = []
    size_bytes = 0
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            return b""
        parts.append(event.get("body", b""))
        size_bytes += len(parts[-1])
        if size_bytes > max_bytes:
            return None
        if not event.get("more_body"):
            return b"".join(parts)


async def until_gone(receive: Receive) -> None:
    """Wait until the asker has gone; the request's body has been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


def answer_of(status: int, body: bytes = b"") -> list[Event]:
    """A whole answer."""
    length = (b"content-length", str(len(body)).encode())
    return [
        {"type": "http.response.start", "status": status, "headers": [length]},
        {"type": "http.response.body", "body": body},
    ]


async def answer(send: Send, status: int, body: bytes = b"") -> None:
    """Send a whole answer."""
    for event in answer_of(status, body):
        await send(event)


async def send_in_slices(send: Send, events: list[Event]) -> None:
    """Send an answer no faster than it is taken.

    What is handed over at once is encrypted at once, into a buffer that the connection keeps.
    """
    body = memoryview(body_of(events))
    await send(events[0])
    for begin in range(0, max(1, len(body)), SLICE_BYTES):
        end = begin + SLICE_BYTES
        part = bytes(body[begin:end])
        await send({"type": "http.response.body", "body": part, "more_body": end < len(body)})


def status_of(events: list[Event]) -> int:
    """Of an answer."""
    return int(events[0].get("status", 0))


def body_of(events: list[Event]) -> bytes:
    """Of an answer."""
    return b"".join(event.get("body", b"") for event in events)


def header(scope: Scope, name: bytes) -> bytes:
    """A header of a request; empty where it has none of that name."""
    return next((value for key, value in scope["headers"] if key == name), b"")
