"""The proxy over HTTP: look at nodes, and do things to them while traffic runs.

Starlette and uvicorn come with Flower. Who reaches the port may do everything that the command
line may, reading link files included, so it listens on the loopback unless told otherwise.
"""

import asyncio
import contextlib
import json
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from fedsys.errors import ConfigError, LinkError
from netem.proxy.actions import parse_action
from netem.proxy.address import Address, bound_socket
from netem.proxy.schedule import ALL_NODES
from netem.proxy.server import ShapingProxy

MAX_BODY_BYTES = 1 << 16
_LOOPBACK = ("127.0.0.1", "localhost")


class _Server(uvicorn.Server):
    """Leaves signals to whoever runs the proxy."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Control:
    """``async with Control(proxy, listen)`` serves HTTP while the block runs.

    Raises LinkError where the port cannot be had.
    """

    def __init__(self, proxy: ShapingProxy, listen: Address) -> None:
        self.address = listen
        self._proxy = proxy
        self._server = _Server(
            uvicorn.Config(
                self._app(),
                http="h11",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=1,
            )
        )
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Control":
        try:
            sock = bound_socket(self.address)
            sock.listen()
        except OSError as error:
            raise LinkError(
                f"control: cannot listen on {self.address}: {error.strerror}"
            ) from error
        self.address = Address(self.address.host, sock.getsockname()[1])
        self._task = asyncio.create_task(self._server.serve(sockets=[sock]))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.should_exit = True
        if self._task is not None:
            await self._task

    def _app(self) -> Starlette:
        # A page in a browser must not reach the port by a name that it resolves to 127.0.0.1.
        local = self.address.host in _LOOPBACK
        hosts = Middleware(TrustedHostMiddleware, allowed_hosts=[*_LOOPBACK] if local else ["*"])
        return Starlette(
            routes=[
                Route("/nodes", self._nodes, methods=["GET"]),
                Route("/nodes/{name}", self._node, methods=["GET"]),
                Route("/nodes/{name}", self._act, methods=["POST"]),
            ],
            middleware=[hosts],
            exception_handlers={HTTPException: _refusal},
        )

    async def _nodes(self, request: Request) -> JSONResponse:
        return JSONResponse({"now_s": self._proxy.now_s, "nodes": self._described(ALL_NODES)})

    async def _node(self, request: Request) -> JSONResponse:
        name = self._name(request)
        return JSONResponse(self._described(name)[name])

    async def _act(self, request: Request) -> JSONResponse:
        name = self._name(request, or_all=True)
        table = await _body(request)
        try:
            await self._proxy.apply(name, parse_action("action", table))
        except ConfigError as error:
            raise HTTPException(400, str(error)) from error
        except LinkError as error:
            raise HTTPException(409, str(error)) from error
        return JSONResponse({"nodes": self._described(name)})

    def _name(self, request: Request, or_all: bool = False) -> str:
        name: str = request.path_params["name"]
        if name not in self._proxy.ports and not (or_all and name == ALL_NODES):
            raise HTTPException(404, f"no node '{name}'; there are {', '.join(self._proxy.ports)}")
        return name

    def _described(self, name: str) -> dict[str, Any]:
        return {
            node: {"address": str(address), **self._proxy.count(node).as_json()}
            for node, address in self._proxy.ports.items()
            if name in (node, ALL_NODES)
        }


async def _body(request: Request) -> dict[str, Any]:
    """The JSON object in a request, read no further than it may go."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind != "application/json":
        raise HTTPException(415, f"send application/json, not {kind or 'nothing'}")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise HTTPException(413, f"a request has at most {MAX_BODY_BYTES} bytes")
    try:
        table = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"not JSON: {error}") from error
    if not isinstance(table, dict):
        raise HTTPException(400, 'send an object such as {"action": "cut"}')
    return table


async def _refusal(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)
