"""What strangers may reach of a SuperLink, and who may give it orders.

Devices' port: the Fleet API alone, where each request is signed with an enrolled key. Loopback:
everything, but the control API asks for the admin token. A device's question for work is kept here
until there is some, so that work is there at once and an idle link carries next to nothing.
"""

import asyncio
import contextlib
import hashlib
import hmac
from asyncio.sslproto import SSLProtocol
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import uvicorn

from fedsys.deploy.asgi import (
    App,
    Event,
    Receive,
    Scope,
    Send,
    answer,
    answer_of,
    ask,
    body_of,
    header,
    read_body,
    send_in_slices,
    status_of,
    until_gone,
)
from fedsys.deploy.bell import Bell
from fedsys.deploy.room import Room
from fedsys.deploy.runtime import News, ServerTasks
from fedsys.deploy.work import Work

FLEET = "/v1/fleet/"
CONTROL = "/v1/control/"
PULL = "/v1/fleet/pull-messages"
PULL_OBJECT = "/v1/fleet/pull-object"
PUSHES = ("/v1/fleet/push-messages", "/v1/fleet/push-object")
HEARTBEAT = "/v1/fleet/send-node-heartbeat"
ENROLLED_ONLY = ("register-node", "unregister-node")
"""Devices do neither here: the server's owner enrols and revokes."""
ACTIVATE, GOODBYE = "/v1/fleet/activate-node", "/v1/fleet/deactivate-node"
HOLD_S = 25.0
"""How long a question is kept; see ``fedsys.deploy.quiet``."""
NOTE_S = 10.0
"""Between two notes that a device is there, at least; Flower believes one for 60 s."""
SILENT_S = 25.0
"""A device that is there says something within 23 s; see ``fedsys.deploy.quiet``."""
KEYS_S = 1.0
"""How soon a device that was revoked is a stranger."""
UNKNOWN_S = 0.25
"""How soon one that was enrolled is none."""
AGAIN_S = 0.2
"""Between two questions to Flower for work that is said to be there."""
GIVEN_S = 120.0
"""Work that got lost on its way is sent again for so long."""
MAX_BODY_BYTES = 64 << 20
TLS_BUFFER_BYTES = 1 << 16
"""Of each connection; asyncio's is four times as large, and a device has three connections."""
IDLE_S = 60
PUBLIC_KEY, SIGNATURE = b"flwr-public-key", b"flwr-signature"
MEMORY_BYTES = 64 << 20
"""Of requests that are being read or answered. More of them wait in the senders' kernels: with two
hundred devices it would be two hundred megabytes."""
BODY_S = 120.0
"""How long a request may take to arrive; a device gives it up after 90 s."""
AT_ONCE = 8
"""Requests that Flower works on at once: each holds its body several times over."""
SEEN_S = 320.0
"""Flower takes a signature that is up to 300 s old, or made up to 5 s ahead."""


@dataclass(frozen=True, slots=True)
class _Given:
    """Work that a device was sent, and has not been heard of since."""

    events: list[Event]
    at_s: float


@dataclass(frozen=True, slots=True)
class Devices:
    """What Flower's state says of devices."""

    enrolled: Callable[[], Mapping[bytes, int]]
    """Public keys of devices that may come. Flower asks that, too, but after it has read and
    parsed what a stranger sends, and in one case with an answer that it also gives to a device that
    comes back too soon."""
    alive: Callable[[int], None]
    """Notes that a device is there."""
    gone: Callable[[int], None]
    """Notes that a device is not there any more."""
    with_news: Callable[[], set[int]]
    """Devices for which the whole of a message waits, and those that were revoked. To ask Flower
    itself for every question that is kept, again and again, costs the check of a signature each."""


class FleetOnly:
    """Lets through what an enrolled device needs, and logs who is refused.

    Every request that Flower takes from a device is a sign of life of it.
    """

    def __init__(self, app: App, devices: Devices, log: Callable[[str], None], news: News) -> None:
        self._app = app
        self._devices = devices
        self._news = news
        self._work = Work(devices.with_news, news.work)
        self._keys: Mapping[bytes, int] = {}
        self._keys_s = float("-inf")
        self._heard_s: dict[int, float] = {}
        self._noted_s: dict[int, float] = {}
        self._log = log
        self._given: dict[bytes, _Given] = {}
        self._signatures: dict[bytes, float] = {}
        self._room = asyncio.Semaphore(AT_ONCE)
        self._memory = Room(MEMORY_BYTES)
        self._piece_bytes = 0
        """The largest answer so far to a question for a piece: the next may be as large."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return
        path, peer = scope["path"], (scope.get("client") or ("?",))[0]
        if not path.startswith(FLEET) or path.removeprefix(FLEET) in ENROLLED_ONLY:
            self._log(f"refused: {peer} asked for {path[:80]!r}, which devices may not")
            await answer(send, 404)
            return
        key = _key(scope)
        node = await self._node_of(key)
        if node is None:
            who = f"{peer}, {_fingerprint(key)}"
            self._log(f"refused: {who}: {'unknown or revoked key' if key else 'no key'}")
            await answer(send, 401)
            return
        if self._was_seen(header(scope, SIGNATURE)):
            self._log(f"refused: {peer}, {_fingerprint(key)}: a request that was sent before")
            await answer(send, 401)
            return
        wanted_bytes = self._piece_bytes if path == PULL_OBJECT else _length(scope)
        async with self._memory.taken(wanted_bytes):
            events = await self._answered(scope, receive, key, node)
            if path == PULL_OBJECT:
                self._piece_bytes = max(self._piece_bytes, len(body_of(events)))
            if path in PUSHES:
                self._news.replies.ring()
            if status_of(events) == 200 and path != GOODBYE:
                await self._heard(node)
            if status_of(events) == 401:  # 403 is about a run that has ended
                self._log(f"refused: {_who(scope, key)}: a false signature, or a clock that is off")
            await send_in_slices(send, events)

    async def _answered(self, scope: Scope, receive: Receive, key: bytes, node: int) -> list[Event]:
        """What Flower answers to an enrolled device."""
        path = scope["path"]
        try:
            async with asyncio.timeout(BODY_S):
                body = await read_body(receive, MAX_BODY_BYTES)
        except TimeoutError:
            return answer_of(408)
        if body is None:
            who = _who(scope, key)
            self._log(f"refused: {who} sent more than {MAX_BODY_BYTES} bytes to {path[:80]!r}")
            return answer_of(413)
        if path == PULL:
            return await self._kept(scope, receive, body, key, node)
        if path != HEARTBEAT:
            self._given.pop(key, None)  # it asks for what it was given, so it has it
        async with self._room:
            events = await ask(self._app, scope, body)
        if path == ACTIVATE and status_of(events) not in (200, 401) and self._is_silent(node):
            await asyncio.to_thread(self._devices.gone, node)
            events = await ask(self._app, scope, body)
        return events

    async def _heard(self, node: int) -> None:
        """A sign of life, noted now and then."""
        now_s = self._heard_s[node] = asyncio.get_running_loop().time()
        if now_s - self._noted_s.get(node, float("-inf")) >= NOTE_S:
            self._noted_s[node] = now_s
            await asyncio.to_thread(self._devices.alive, node)

    def _is_silent(self, node: int) -> bool:
        """Whether a device that wants in cannot be one that is there already.

        It was killed, and Flower believes for a minute that it is still there.
        """
        heard_s = self._heard_s.get(node, float("-inf"))
        return asyncio.get_running_loop().time() - heard_s >= SILENT_S

    def _was_seen(self, signature: bytes) -> bool:
        """Whether a request with this signature came before; each is made anew, retries as well.

        Flower takes one again for as long as it takes its time stamp.
        """
        now_s = asyncio.get_running_loop().time()
        while self._signatures:
            oldest = next(iter(self._signatures))
            if now_s - self._signatures[oldest] < SEEN_S:
                break
            del self._signatures[oldest]
        if not signature or signature in self._signatures:
            return bool(signature)
        self._signatures[signature] = now_s
        return False

    async def _kept(
        self, scope: Scope, receive: Receive, body: bytes, key: bytes, node: int
    ) -> list[Event]:
        """The answer to a question for work, once there is some, or it was kept long enough."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + HOLD_S
        gone = asyncio.ensure_future(until_gone(receive))
        pause_s = 0.0
        try:
            while True:
                events = self._or_given_before(key, await ask(self._app, scope, body), loop.time())
                if not _is_empty(events):
                    return events
                await self._heard(node)
                waiting = asyncio.ensure_future(self._work.wait(node, until_s - loop.time()))
                await asyncio.wait({waiting, gone}, return_when=asyncio.FIRST_COMPLETED)
                if not waiting.done() or not waiting.result():
                    waiting.cancel()
                    return events
                await asyncio.sleep(pause_s)
                pause_s = AGAIN_S
        finally:
            gone.cancel()

    async def _node_of(self, key: bytes) -> int | None:
        """Which enrolled device a public key is of."""
        if not key:
            return None
        age_s = asyncio.get_running_loop().time() - self._keys_s
        if age_s >= (KEYS_S if key in self._keys else UNKNOWN_S):
            self._keys = await asyncio.to_thread(self._devices.enrolled)
            self._keys_s = asyncio.get_running_loop().time()
        return self._keys.get(key)

    def _or_given_before(self, key: bytes, events: list[Event], now_s: float) -> list[Event]:
        """``events``, or the answer before where that got lost on its way.

        Flower gives each message out once. A device that asks again, and has asked for nothing of
        it, never got it: its connection broke under the answer.
        """
        if not _is_empty(events):
            if status_of(events) == 200:
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
            given = header(scope, b"authorization")
            if not hmac.compare_digest(given, self._expected):
                self._log(f"refused: {scope['path'][:80]!r} without the admin token")
                await answer(send, 401)
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
    devices: Devices,
    options: dict[str, Any],
) -> None:
    """Serve ``app`` on loopback as ``options`` say, and its Fleet API at ``public``."""
    common = options | {"access_log": False, "timeout_keep_alive": IDLE_S, "ws": "none"}
    for name in ("reload", "workers"):
        common.pop(name, None)
    host, port = public
    SSLProtocol.max_size = TLS_BUFFER_BYTES
    news = News(Bell(), Bell(), Bell())
    inside = _Announcing(uvicorn.Config(AdminOnly(ServerTasks(app, news), token, _say), **common))
    outside = _Beside(
        uvicorn.Config(
            FleetOnly(app, devices, _say, news),
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


def _is_empty(events: list[Event]) -> bool:
    """Whether Flower had nothing to give."""
    return status_of(events) == 200 and not body_of(events)


def _length(scope: Scope) -> int:
    """Bytes of a request's body."""
    said = header(scope, b"content-length")
    return int(said) if said.isdigit() else MAX_BODY_BYTES


def _key(scope: Scope) -> bytes:
    """The public key that a request claims to come from; empty where it claims none."""
    try:
        return b64decode(header(scope, PUBLIC_KEY), validate=True)
    except ValueError:
        return b""


def _who(scope: Scope, key: bytes) -> str:
    return f"{(scope.get('client') or ('?',))[0]}, {_fingerprint(key)}"


def _fingerprint(key: bytes) -> str:
    return f"key {hashlib.sha256(key).hexdigest()[:16]}" if key else "no key"


def _say(line: str) -> None:
    print(line, flush=True)
