"""Everything private of Flower that a deployment touches, in one place; checked against flwr 1.42.

What forks tasks is in ``_warm``, how processes are started in ``_process``.
"""

import hashlib
import importlib
import os
import secrets
import socket
import threading
import types
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import httpx
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from flwr.app import Message
from flwr.proto import control_pb2
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatResponse
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from fedsys.clock import WallClock
from fedsys.deploy._process import Settings, end_soon, start
from fedsys.deploy.bell import Bell
from fedsys.deploy.handshake import proxy_for
from fedsys.deploy.quiet import quiet
from fedsys.deploy.refusals import explained
from fedsys.deploy.runtime import REPLIES, DeviceTasks
from fedsys.deploy.spare import spared
from fedsys.errors import DeployError

TESTED = "1.42."
POLL_S = 0.05
"""In place of Flower's 3 s and 1 s between two looks at something on the same machine, where
nothing tells before that it is there."""
ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.01",  # the question itself is kept
}
TASK_BEAT_S = 10
"""Flower's is 30 s, on the same machine as well."""
KEEP_S = 50.0
"""The server keeps them for 60 s."""
PRAGMAS = {"cache_size": "-4000", "mmap_size": "0"}
"""Of SQLite. Flower gives each of up to 30 connections 64 MB, where updates pass through once."""
CHUNK_BYTES = "FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE"
PUSHES = "FLWR_PRIVATE_MAX_CONCURRENT_OBJ_PUSHES"
PULLS = "FLWR_PRIVATE_MAX_CONCURRENT_OBJ_PULLS"


def check_version() -> None:
    """Raise DeployError unless this is the Flower whose private parts are known here."""
    found = version("flwr")
    if not found.startswith(TESTED):
        raise DeployError(f"flwr {found} is installed; deployments need flwr {TESTED}*")


def key_bytes(public_key: str) -> bytes:
    """Flower's form of a public key in OpenSSH's."""
    return public_key_to_bytes(cast(Any, load_ssh_public_key(public_key.encode())))


class Bearer:
    """Adds the admin token to each request to the control API."""

    def __init__(self, token: str) -> None:
        self._token = token

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        """Add the header and go on."""
        context.request.headers["authorization"] = f"Bearer {self._token}"
        return call_next(context)


def control_client(port: int, authority: bytes, token: str) -> ControlHttpClient:
    """A client for the control API of a SuperLink on this machine."""
    return ControlHttpClient.from_server_address(
        f"127.0.0.1:{port}",
        False,
        authority,
        [RuntimeVersionHttpInterceptor(component_name="fedsys"), Bearer(token)],
    )


def start_run(client: ControlHttpClient, app: Path, config: dict[str, Any]) -> int:
    """Send the app in folder ``app`` and start it; Flower's number of the run."""
    from flwr.cli.build import build_fab_from_disk
    from flwr.common.serde import fab_to_proto, user_config_to_proto

    data = build_fab_from_disk(app)
    fab = Fab(hashlib.sha256(data).hexdigest(), data, {})
    request = control_pb2.StartRunRequest(
        fab=fab_to_proto(fab), override_config=user_config_to_proto(config)
    )
    response = client.StartRun(request)
    if not response.HasField("run_id"):
        raise DeployError(f"the SuperLink did not start the run: {response.note}")
    return int(response.run_id)


def objects_of(message: Message) -> tuple[int, int]:
    """Number of the objects that Flower moves for ``message``, and their bytes in all."""
    from flwr.supercore.inflatable.inflatable_object import (
        get_all_nested_objects,
        no_object_id_recompute,
    )

    with no_object_id_recompute():
        found = get_all_nested_objects(message)
        return len(found), sum(len(value.deflate()) for value in found.values())


def readdress(message: Message, node_id: int) -> None:
    """Send it to another node; ``Metadata`` has no setter for that."""
    message.metadata.__dict__["_dst_node_id"] = node_id


def limit_chunks(chunk_bytes: int) -> None:
    """Cut arrays that this process sends from now on into chunks of at most ``chunk_bytes``."""
    module("flwr.app.message.array").FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE = chunk_bytes


def pull_after(first_s: float, limit_s: float) -> None:
    """How soon this process asks again for an object that is not there yet; Flower: 1 to 10 s."""
    pull = module("flwr.supercore.inflatable.inflatable_utils")
    for function in (pull.pull_objects, pull.pull_and_inflate_object_from_tree):
        function.__kwdefaults__.update(initial_backoff=first_s, backoff_cap=limit_s)


def news_of_replies(client: Any, seen: int, timeout_s: float) -> int:
    """Wait until devices have sent something to the server whose runtime API ``client`` asks.

    ``seen`` is what was returned last, -1 at first. Raises OSError where the server is away.
    """
    url = f"{client._base_url}{REPLIES}?seen={seen}&hold_ms={1000 * timeout_s:.0f}"
    try:
        answer = client._client.get(url)
        answer.raise_for_status()
    except httpx.HTTPError as error:
        raise OSError(str(error)) from error
    return int(answer.text)


def notice_dead_tasks(name: str) -> None:
    """Have the module ``name`` take a task for dead, or say that it lives, on a shorter beat.

    A process that was killed, often for its memory, is noticed in 20 s in place of 60.
    """
    module(name).HEARTBEAT_DEFAULT_INTERVAL = TASK_BEAT_S


def module(name: str) -> Any:
    """A module by name: several packages of Flower have a function of the name of a module."""
    return importlib.import_module(name)


def superlink(settings: Settings) -> None:
    """A SuperLink whose devices' port serves the Fleet API alone.

    Flower serves all of its APIs on one port, and without accounts anybody may use them: whoever
    reaches it could run programs on the server and on all devices. Here the control and the
    runtime API are on loopback, the first asks for a token, the second for a secret.
    """
    from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin
    from flwr.superlink.config_loader import SuperLinkLifespanConfig

    from fedsys.deploy._state import devices_of
    from fedsys.deploy.gate import serve

    link = module("flwr.superlink.cli.flower_superlink")
    home, port = Path(settings["home"]), int(settings["control_port"])
    files = [str(home / name) for name in ("ca.crt", "server.crt", "server.key")]
    authority, certificate, key = (Path(file).read_bytes() for file in files)
    secret = secrets.token_bytes(32)
    config = SuperLinkLifespanConfig(
        control_address=f"127.0.0.1:{port}",
        health_server_address=None,
        host="127.0.0.1",
        port=port,
        insecure=False,
        certificates=(authority, certificate, key),
        superexec_auth_secret=secret,
        authn_plugin=NoOpControlAuthnPlugin(),
        event_log_plugin=None,
        fleet_event_log_plugin=None,
        enable_event_log=False,
        artifact_provider=None,
        enable_supernode_auth=True,
        fleet_api_type="grpc-rere",
        fleet_api_address=None,
        simulation=False,
        ssl_ca_certfile=files[0],
        ssl_certfile=files[1],
        ssl_keyfile=files[2],
        database=str(home / "state.db"),
        isolation="process",
        runtime_dependency_install=False,
    )
    notice_dead_tasks("flwr.supercore.corestate.sql_corestate")
    _spare_memory()
    main = module("flwr.superlink.main")
    every = main._get_middleware
    main._get_middleware = lambda: spared(every())
    link._parse_superlink_lifespan_config = lambda: config
    public = (str(settings["host"]), int(settings["port"]))

    def run(app: Any, **options: Any) -> None:
        serve(
            app,
            public=public,
            token=str(settings["token"]),
            devices=devices_of(app.state.linkstate_factory),
            options=options,
        )

    link.uvicorn = types.SimpleNamespace(run=run)
    _start_tasks(port, secret, files[0], ["strategies.server_app", "clients.server_side"])
    link.flower_superlink()


def _spare_memory() -> None:
    """Keep the database's pages in the kernel's cache alone."""
    mixin = module("flwr.supercore.sql_mixin")
    mixin.SQLITE_PRAGMAS = tuple((dict(mixin.SQLITE_PRAGMAS) | PRAGMAS).items())


def supernode(settings: Settings) -> None:
    """A SuperNode that asks again at once, and ends when it has lost what it needs.

    Flower sleeps 3 s after each question for work; the server's gate keeps the question until
    there is an answer, so there is no need to. Flower's own process stays, idle, when the loop
    that asks has ended: here it ends, and the supervisor starts another.
    """
    node = module("flwr.supernode.cli.flower_supernode")
    loop = module("flwr.supernode.start_client_internal")
    key = cast(Any, load_ssh_private_key(settings["private_key"].encode(), None))
    secret, port = secrets.token_bytes(32), int(settings["runtime_port"])
    config = node.SuperNodeLifespanConfig(
        server_address=settings["address"],
        root_certificates=settings["authority"].encode(),
        insecure=False,
        authentication_keys=(key, key.public_key()),
        max_retries=None,
        max_wait_time=None,
        node_config=settings["node_config"],
        isolation="process",
        runtime_certificates=None,
        runtime_root_certificates_path=None,
        health_server_address=None,
        trusted_entities=None,
        superexec_auth_secret=secret,
        runtime_dependency_install=False,
        host="127.0.0.1",
        port=port,
        runtime_ssl_certfile=None,
        runtime_ssl_keyfile=None,
    )
    notice_dead_tasks("flwr.supercore.corestate.in_memory_corestate")
    node._parse_supernode_lifespan_config = lambda: config
    clock = WallClock()
    loop.time = types.SimpleNamespace(sleep=_told_of_tasks(node))
    speak_as_a_device(settings["address"], clock)
    state = module("flwr.supernode.nodestate.in_memory_nodestate").InMemoryNodeState
    # Called once connected; one that is refused need not import all that tasks need.
    state.set_node_id = _followed(
        state.set_node_id, lambda: _start_tasks(port, secret, None, ["clients.client_app"])
    )
    node.flower_supernode()
    print("the SuperNode's loop has ended", flush=True)
    os._exit(1)


def speak_as_a_device(address: str, clock: WallClock) -> None:
    """Have this process talk to the server at ``address`` (HOST:PORT) as a weak link needs it."""
    fleet = module("flwr.supernode.fleet_http_connection")
    # Each question is a kilobyte on the link; a message's pieces come within a second of its head.
    pull_after(0.3, 3.0)
    fleet.NodeAuthHttpInterceptor = explained(quiet(fleet.NodeAuthHttpInterceptor, _beat, clock))
    _lasting_connections(address)


def _told_of_tasks(node: Any) -> Callable[[float], None]:
    """Have the SuperNode's runtime API tell tasks when there is something for them.

    What is returned sleeps until a task has left something, and not long in any case.
    """
    tasks, pieces, replies = Bell(), Bell(), Bell()
    state = module("flwr.supercore.corestate.in_memory_corestate").InMemoryCoreState
    store = module("flwr.supercore.object_store.in_memory_object_store").InMemoryObjectStore
    state.create_task = _followed(state.create_task, tasks.ring)
    store.put = _followed(store.put, pieces.ring)
    own, plain = types.ModuleType("uvicorn"), node.uvicorn.Config
    own.__dict__.update(node.uvicorn.__dict__)

    def config(*, app: Any, **options: Any) -> Any:
        told = DeviceTasks(app, tasks=tasks, pieces=pieces, replies=replies)
        return plain(app=told, **options)

    own.__dict__["Config"] = config
    node.uvicorn = own
    seen = 0

    def sleep(seconds: float) -> None:
        nonlocal seen
        replies.wait(seen, min(seconds, POLL_S))
        seen = replies.rung

    return sleep


def _followed(method: Callable[..., Any], then: Callable[[], None]) -> Callable[..., Any]:
    """``method``, and ``then``."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        found = method(*args, **kwargs)
        then()
        return found

    return wrapped


def _beat(request: httpx.Request) -> httpx.Response:
    """What the server answers to a heartbeat."""
    content = SendNodeHeartbeatResponse(success=True).SerializeToString()
    return httpx.Response(200, content=content, request=request)


def _lasting_connections(address: str) -> None:
    """Keep idle connections, and notice dead ones.

    httpx drops one that was idle for 5 s, and a new one costs 3 kB of TLS. The kernel gives one up
    that has not been answered for half a minute, however long an answer may otherwise take.
    """
    client = module("flwr.supercore.protobuf.client")
    limits = httpx.Limits(keepalive_expiry=KEEP_S)
    # With a transport of its own a client does not look for proxies in the environment.
    is_direct = not proxy_for(address)

    def made(*, verify: Any, **options: Any) -> httpx.Client:
        if not is_direct:
            return httpx.Client(verify=verify, limits=limits, **options)
        transport = httpx.HTTPTransport(
            verify=verify, limits=limits, socket_options=_socket_options()
        )
        return httpx.Client(transport=transport, **options)

    own = types.ModuleType("httpx")
    own.__dict__.update(httpx.__dict__, Client=made)
    client.httpx = own


def _socket_options() -> list[tuple[int, int, int]]:
    """What this machine's kernel knows of them."""
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    for name, value in (
        ("TCP_KEEPIDLE", 20),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 30_000),
    ):
        if (number := getattr(socket, name, None)) is not None:
            options.append((socket.IPPROTO_TCP, number, value))
    return options


def _start_tasks(
    port: int, secret: bytes, root_certificates: str | None, preload: list[str]
) -> None:
    """Start ``tasks`` for the runtime API on ``port``; without it this process ends too."""
    child = start(
        "tasks",
        {
            "runtime_address": f"127.0.0.1:{port}",
            "secret": secret.hex(),
            "root_certificates": root_certificates,
            "preload": preload,
        },
    )

    def watch() -> None:
        child.wait()
        print("the process that starts tasks has ended", flush=True)
        end_soon()

    threading.Thread(target=watch, daemon=True).start()
