"""Flower's middleware without what it costs where it does nothing, or answers in one piece.

Eight of them are around each request, all but two for one of three APIs alone, and each has its
tasks and streams, in a thread that all requests share: two thirds of what a small request cost.
"""

from collections.abc import Callable
from typing import Any

from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import Response

from fedsys.deploy.asgi import App, Event, Receive, Scope, Send, body_of, status_of

PREFIXES = {
    "ControlSensitiveResponseMiddleware": "/v1/control/",
    "ControlAuthenticationMiddleware": "/v1/control/",
    "ControlLicenseMiddleware": "/v1/control/",
    "ControlEventLogMiddleware": "/v1/control/",
    "NodeAuthMiddleware": "/v1/fleet/",
    "FleetEventLogMiddleware": "/v1/fleet/",
}
"""Which paths each is about; others are about all."""
SHORT = ("/v1/fleet/", "/v1/runtime/")
"""Paths of which all answers are in one piece."""


def spared(every: list[Middleware]) -> list[Middleware]:
    """The same middleware in the same order."""
    found: list[Middleware] = []
    for one in every:
        kind: Any = one.cls
        options: dict[str, Any] = dict(one.kwargs)
        name = kind.__name__
        if isinstance(kind, type) and issubclass(kind, BaseHTTPMiddleware):
            options |= {"kind": kind, "prefix": PREFIXES.get(name, "/")}
            kind = Spared
        found.append(Middleware(kind, *one.args, **options))
    return found


class Spared:
    """One of them, for the paths that it is about."""

    def __init__(
        self, app: App, kind: Callable[..., BaseHTTPMiddleware], prefix: str, **options: Any
    ) -> None:
        """``kind`` makes it around ``app``; ``prefix`` begins its paths."""
        self._app = app
        self._whole = kind(app, **options)
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, or the life of the server."""
        path = scope.get("path", "")
        if not path.startswith(self._prefix):
            await self._app(scope, receive, send)
            return
        if not path.startswith(SHORT):
            await self._whole(scope, receive, send)
            return
        request = Request(scope, receive)
        response = await self._whole.dispatch_func(request, self._next)
        await response(scope, receive, send)

    async def _next(self, request: Request) -> Response:
        """What is inside of it, and its answer as a whole."""
        body = await request.body()
        events: list[Event] = []

        async def receive() -> Event:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(event: Event) -> None:
            events.append(event)

        await self._app(request.scope, receive, send)
        response = Response(body_of(events), status_of(events))
        response.raw_headers = list(events[0]["headers"])
        return response
