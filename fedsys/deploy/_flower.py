"""Everything private of Flower that a deployment touches, in one place; checked against flwr 1.42.

Three of Flower's processes run from here, each with settings that come as one line of JSON on its
standard input, so that no key is in a file, an argument or the environment:

    python -m fedsys.deploy._flower superlink | supernode | tasks

A process ends when its standard input does: whoever started it is then gone.
"""

import contextlib
import hashlib
import importlib
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, cast

from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from flwr.app import Message
from flwr.proto import control_pb2
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from fedsys.errors import DeployError

TESTED = "1.42."
POLL_S = 0.05
"""In place of Flower's 3 s and 1 s between two looks at something on the same machine."""
END_S = 5.0
ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": str(POLL_S),
}
CHUNK_BYTES = "FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE"
PUSHES = "FLWR_PRIVATE_MAX_CONCURRENT_OBJ_PUSHES"
PULLS = "FLWR_PRIVATE_MAX_CONCURRENT_OBJ_PULLS"
Settings = dict[str, Any]


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


def limit_chunks(chunk_bytes: int) -> None:
    """Cut arrays that this process sends from now on into chunks of at most ``chunk_bytes``."""
    _module("flwr.app.message.array").FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE = chunk_bytes


def _module(name: str) -> Any:
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

    from fedsys.deploy.gate import serve

    module = _module("flwr.superlink.cli.flower_superlink")
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
    module._parse_superlink_lifespan_config = lambda: config
    public = (str(settings["host"]), int(settings["port"]))

    def run(app: Any, **options: Any) -> None:
        serve(app, public, str(settings["token"]), options)

    module.uvicorn = types.SimpleNamespace(run=run)
    _start_tasks(port, secret, files[0], ["strategies.server_app", "clients.server_side"])
    module.flower_superlink()


def supernode(settings: Settings) -> None:
    """A SuperNode that asks again at once, and ends when it has lost what it needs.

    Flower sleeps 3 s after each question for work; the server's gate keeps the question until
    there is an answer, so there is no need to. Flower's own process stays, idle, when the loop
    that asks has ended: here it ends, and the supervisor starts another.
    """
    from fedsys.clock import WallClock
    from fedsys.deploy.refusals import explained

    module = _module("flwr.supernode.cli.flower_supernode")
    fleet = _module("flwr.supernode.fleet_http_connection")
    loop = _module("flwr.supernode.start_client_internal")
    key = cast(Any, load_ssh_private_key(settings["private_key"].encode(), None))
    secret, port = secrets.token_bytes(32), int(settings["runtime_port"])
    config = module.SuperNodeLifespanConfig(
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
    module._parse_supernode_lifespan_config = lambda: config
    clock = WallClock()
    loop.time = types.SimpleNamespace(sleep=lambda s: clock.sleep_s(min(s, POLL_S)))
    fleet.NodeAuthHttpInterceptor = explained(fleet.NodeAuthHttpInterceptor)
    _start_tasks(port, secret, None, ["clients.client_app"])
    module.flower_supernode()
    print("the SuperNode's loop has ended", flush=True)
    os._exit(1)


def tasks(settings: Settings) -> None:
    """Starts a process for each task, as Flower's SuperExec does, but from a warm one.

    Flower starts a new Python for each message, which then imports flwr and torch for seconds, and
    gives it its token as an argument. Here it is forked from a process that has imported both.
    """
    nursery = _Nursery(settings["preload"])
    module = _module("flwr.supercore.superexec.run_superexec")
    module.get_executor = lambda *args, **kwargs: nursery
    module.run_superexec(
        runtime_api_address=settings["runtime_address"],
        insecure=settings["root_certificates"] is None,
        root_certificates_path=settings["root_certificates"],
        superexec_auth_secret=bytes.fromhex(settings["secret"]),
        parent_pid=os.getppid(),
    )


def nursery(settings: Settings) -> None:
    """Reads a task a line, and forks a process for each that has all modules already."""
    for name in ("flwr.superlink.runtime", "flwr.supernode.runtime.run_clientapp"):
        _module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for name in settings["preload"]:
        _module(name)
    parent_pid = os.getppid()
    for line in sys.stdin:
        if os.fork() == 0:
            _run_task(json.loads(line), parent_pid)


class _Nursery:
    """Flower's executor, as the SuperExec uses it."""

    def __init__(self, preload: list[str]) -> None:
        self._preload = preload
        self._process = self._start()

    def get_eligible_capacity(self, supported: set[Any], **_: Any) -> tuple[set[Any], set[str]]:
        """Whatever comes."""
        return supported, set()

    def launch(self, spec: Any) -> Any:
        """Have the task's process forked."""
        from flwr.supercore.superexec.executor.types import LaunchResult

        task = {
            "kind": str(spec.task_type),
            "runtime_address": spec.runtime_api_address,
            "token": spec.token,
            "insecure": spec.insecure,
            "root_certificates": spec.root_certificates_path,
        }
        for _ in range(2):
            try:
                _tell(self._process, task)
                return LaunchResult.accepted()
            except OSError:
                self._process = self._start()
        return LaunchResult.failed("the process that forks tasks cannot be reached")

    def reconcile(self) -> None:
        """Nothing to do between two looks."""

    def close(self) -> None:
        """End the process that forks."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _start(self) -> "subprocess.Popen[str]":
        return start("nursery", {"preload": self._preload})


def _run_task(task: dict[str, Any], parent_pid: int) -> None:
    """Be the process of one task; does not return."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    certificates = task["root_certificates"] and Path(task["root_certificates"]).read_bytes()
    common = {
        "runtime_api_address": task["runtime_address"],
        "token": task["token"],
        "insecure": task["insecure"],
        "certificates": certificates or None,
        "parent_pid": parent_pid,
        "runtime_dependency_install": False,
    }
    code = 1
    try:
        if task["kind"] == "flwr-clientapp":
            from flwr.supernode.runtime.run_clientapp import run_clientapp

            run_clientapp(**common)
        elif task["kind"] == "flwr-serverapp":
            _run_serverapp(common)
        else:
            print(f"no task of kind {task['kind']} is run here", flush=True)
    except SystemExit as end:
        code = int(end.code or 0) if isinstance(end.code, int | None) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run_serverapp(common: dict[str, Any]) -> None:
    from queue import Queue

    from flwr.supercore.logger import mirror_output_to_queue
    from flwr.superlink.runtime import run_serverapp

    log: Queue[str | None] = Queue()
    mirror_output_to_queue(log)
    run_serverapp(log_queue=log, **common)


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
        _end_soon()

    threading.Thread(target=watch, daemon=True).start()


def start(
    name: str,
    settings: Settings,
    *,
    environment: dict[str, str] | None = None,
    output: IO[bytes] | int | None = None,
) -> "subprocess.Popen[str]":
    """Start one of this module's processes; its standard input stays open as long as this one."""
    process = subprocess.Popen(
        [sys.executable, "-m", "fedsys.deploy._flower", name],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT if output is not None else None,
        env=environment,
        text=True,
    )
    with contextlib.suppress(OSError):  # it died at once, which its exit code tells
        _tell(process, settings)
    return process


def _tell(process: "subprocess.Popen[str]", settings: Settings) -> None:
    if process.stdin is None:
        raise OSError("no standard input")
    process.stdin.write(json.dumps(settings) + "\n")
    process.stdin.flush()


def _end_soon() -> None:
    """Ask this process to end, and see to it that it does."""
    timer = threading.Timer(END_S, os._exit, (1,))
    timer.daemon = True
    timer.start()
    os.kill(os.getpid(), signal.SIGTERM)


def _watch_parent() -> None:
    def watch() -> None:
        while os.read(0, 1 << 16):
            pass
        _end_soon()

    threading.Thread(target=watch, daemon=True).start()


_PROCESSES: dict[str, Callable[[Settings], None]] = {
    "superlink": superlink,
    "supernode": supernode,
    "tasks": tasks,
    "nursery": nursery,
}


def _first_line() -> Iterator[bytes]:
    while (byte := os.read(0, 1)) not in (b"", b"\n"):
        yield byte


def main() -> None:
    """Be the process that the first argument names."""
    check_version()
    name = sys.argv[1]
    settings = json.loads(b"".join(_first_line()))
    if name != "nursery":
        _watch_parent()
    _PROCESSES[name](settings)


if __name__ == "__main__":
    main()
