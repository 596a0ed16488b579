"""What strangers may reach of a SuperLink, and who may give it orders.

Devices' port: the Fleet API alone, where each request is signed with an enrolled key. Loopback:
everything, but the control API asks for the admin token. A device's question for work is kept here
until there is some, so that work is there at once and an idle link carries next to nothing.
"""

import asyncio
import contextlib
import hashlib
import hmac
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any

import uvicorn

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

FLEET = "/v1/fleet/"
CONTROL = "/v1/control/"
PULL = "/v1/fleet/pull-messages"
HEARTBEAT = "/v1/fleet/send-node-heartbeat"
ENROLLED_ONLY = ("register-node", "unregister-node")
"""Devices do neither here: the server's owner enrols and revokes."""
HOLD_S = 20.0
"""How long a question is kept; Flower's client waits 30 s for an answer."""
LOOK_S = 0.15
GIVEN_S = 120.0
"""Work that got lost on its way is sent again for so long."""
MAX_BODY_BYTES = 64 << 20
IDLE_S = 60
PUBLIC_KEY = b"flwr-public-key"


@dataclass(frozen=True, slots=True)
class _Given:
    """Work that a device was sent, and has not been heard of since."""

    events: list[Event]
    at_s: float


class FleetOnly:
    """Lets through what an enrolled device needs, and logs who is refused.

    ``knows`` says whether a public key is one of an enrolled device. Flower asks that, too, but
    after it has read and parsed what a stranger sends, and in one case with an answer that it also
    gives to a device that comes back too soon.
    """

    def __init__(
        self, app: App, knows: Callable[[bytes], bool], log: Callable[[str], None]
    ) -> None:
        self._app = app
        self._knows = knows
        self._log = log
        self._given: dict[bytes, _Given] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return
        path, peer = scope["path"], (scope.get("client") or ("?",))[0]
        if not path.startswith(FLEET) or path.removeprefix(FLEET) in ENROLLED_ONLY:
            self._log(f"refused: {peer} asked for {path[:80]!r}, which devices may not")
            await _answer(send, 404)
            return
        key = _key(scope)
        if not key or not await asyncio.to_thread(self._knows, key):
            who = f"{peer}, {_fingerprint(key)}"
            self._log(f"refused: {who}: {'unknown or revoked key' if key else 'no key'}")
            await _answer(send, 401)
            return
        body = await _body(receive)
        if body is None:
            self._log(f"refused: {peer} sent more than {MAX_BODY_BYTES} bytes to {path[:80]!r}")
            await _answer(send, 413)
            return
        if path not in (PULL, HEARTBEAT):
            self._given.pop(key, None)  # it asks for what it was given, so it has it
        await self._pass(scope, receive, body, send, key)

    async def _pass(
        self, scope: Scope, receive: Receive, body: bytes, send: Send, key: bytes
    ) -> None:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + (HOLD_S if scope["path"] == PULL else 0.0)
        gone = asyncio.ensure_future(_until_gone(receive)) if scope["path"] == PULL else None
        try:
            while True:
                events = await _ask(self._app, scope, body)
                if scope["path"] == PULL:
                    events = self._or_given_before(key, events, loop.time())
                is_empty = events[0].get("status") == 200 and not any(
                    event.get("body") for event in events
                )
                if not is_empty or loop.time() >= until_s or (gone is not None and gone.done()):
                    break
                await asyncio.sleep(LOOK_S)
        finally:
            if gone is not None:
                gone.cancel()
        if events[0].get("status") == 401:  # 403 is about a run that has ended
            who = f"{(scope.get('client') or ('?',))[0]}, {_fingerprint(key)}"
            self._log(f"refused: {who}: a false signature, or a clock that is off")
        for event in events:
            await send(event)

    def _or_given_before(self, key: bytes, events: list[Event], now_s: float) -> list[Event]:
        """``events``, or the answer before where that got lost on its way.

        Flower gives each message out once. A device that asks again, and has asked for nothing of
        it, never got it: its connection broke under the answer.
        """
        if events[0].get("status") != 200:
            return events
        if any(event.get("body") for event in events):
            self._given[key] = _Given(events, now_s)
            return events
        given = self._given.get(key)
        return events if given is None or now_s - given.at_s > GIVEN_S else given.events


class AdminOnly:
    """Asks for the token before the control API; the rest is as Flower has it."""

    def __init__(self, app: App, token: str, log: Callable[[str], None]) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, or the life of the server."""
        if scope["type"] == "http" and scope["path"].startswith(CONTROL):
            given = _header(scope, b"authorization")
            if not hmac.compare_digest(given, self._expected):
                self._log(f"refused: {scope['path'][:80]!r} without the admin token")
                await _answer(send, 401)
                return
        await self._app(scope, receive, send)


class _Beside(uvicorn.Server):
    """A server that leaves signals to the one beside it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def serve(
    app: App,
    *,
    public: tuple[str, int],
    token: str,
    knows: Callable[[bytes], bool],
    options: dict[str, Any],
) -> None:
    """Serve ``app`` on loopback as ``options`` say, and its Fleet API at ``public``."""
    common = options | {"access_log": False, "timeout_keep_alive": IDLE_S, "ws": "none"}
    for name in ("reload", "workers"):
        common.pop(name, None)
    host, port = public
    inside = _Announcing(uvicorn.Config(AdminOnly(app, token, _say), **common))
    outside = _Beside(
        uvicorn.Config(
            FleetOnly(app, knows, _say),
            **(common | {"host": host, "port": port, "lifespan": "off", "server_header": False}),
        )
    )
    asyncio.run(_both(inside, outside))


class _Announcing(uvicorn.Server):
    """A server that says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: Any = None) -> None:
        """Start, and say so."""
        await super().startup(sockets)
        self.listening.set()


async def _both(inside: _Announcing, outside: uvicorn.Server) -> None:
    first = asyncio.create_task(inside.serve())
    listening = asyncio.create_task(inside.listening.wait())
    await asyncio.wait({first, listening}, return_when=asyncio.FIRST_COMPLETED)
    listening.cancel()
    second = asyncio.create_task(outside.serve())
    await asyncio.wait({first, second}, return_when=asyncio.FIRST_COMPLETED)
    inside.should_exit = outside.should_exit = True
    outside.force_exit = True  # questions that are kept would keep it
    await asyncio.gather(first, second)


async def _ask(app: App, scope: Scope, body: bytes) -> list[Event]:
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


async def _body(receive: Receive) -> bytes | None:
    """All of the request's body; None where it is too long."""
    parts: list[bytes] = []
    size_bytes = 0
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            return b""
        parts.append(event.get("body", b""))
        size_bytes += len(parts[-1])
        if size_bytes > MAX_BODY_BYTES:
            return None
        if not event.get("more_body"):
            return b"".join(parts)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _answer(send: Send, status: int) -> None:
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def _header(scope: Scope, name: bytes) -> bytes:
    return next((value for key, value in scope["headers"] if key == name), b"")


def _key(scope: Scope) -> bytes:
    """The public key that a request claims to come from; empty where it claims none."""
    try:
        return b64decode(_header(scope, PUBLIC_KEY), validate=True)
    except ValueError:
        return b""


def _fingerprint(key: bytes) -> str:
    return f"key {hashlib.sha256(key).hexdigest()[:16]}" if key else "no key"


def _say(line: str) -> None:
    print(line, flush=True)
