"""``fedsys server``: a real server for real devices, from its keys to its status."""

import json as json_format
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from fedsys.cli.tables import console
from fedsys.deploy.home import ServerHome
from fedsys.deploy.pace import Pace, pace_for
from fedsys.errors import ConfigError

if TYPE_CHECKING:
    from netem.link import Link
    from netem.rate import RateCurve

server_app = typer.Typer(no_args_is_help=True, help="A server for real devices, over TLS.")
Folder = Annotated[Path, typer.Argument(help="The server's folder.")]
PORT = 9440
SPAN_S = 600.0
PAYLOAD = 0.93
"""Of a link's bits, after the headers of IP, TCP, TLS and HTTP."""


@server_app.command("init")
def init(
    folder: Folder,
    host: Annotated[
        list[str], typer.Option(help="Name or address that devices dial; the first goes to them.")
    ],
    port: Annotated[int, typer.Option(min=1, max=65535, help="TCP port of devices.")] = PORT,
) -> None:
    """Make CA, certificate and keys in a folder that only you can read."""
    home = ServerHome.create(folder, host, port)
    print(f"{home.path}: made; start it with 'fedsys server start {folder}'")


@server_app.command("start")
def start(
    folder: Folder,
    listen: Annotated[str, typer.Option(help="Address to listen at.")] = "0.0.0.0",
) -> None:
    """Run the server until Ctrl-C or SIGTERM; it is started again if it fails."""
    home = ServerHome.open(folder)
    # Imported here, because it brings Flower, which the other commands start without.
    from fedsys.deploy.server import Server

    def ready() -> None:
        print(f"listening at {listen}:{home.port} for {', '.join(home.hosts)}", flush=True)

    Server(home, host=listen, say=say).serve(stop_on_signal(), ready)


@server_app.command("enroll")
def enroll(
    folder: Folder,
    name: Annotated[str, typer.Argument(help="Name of the device.")],
    link: Annotated[str, typer.Option(help="Its link, as in an experiment; sizes follow.")] = "lte",
    out: Annotated[Path | None, typer.Option(help="Enrolment file; NAME.enrolment here.")] = None,
    passphrase_file: Annotated[
        Path | None, typer.Option(help="Its first line locks the device's key.")
    ] = None,
) -> None:
    """Make the one file that a device needs to join."""
    home = ServerHome.open(folder)
    path = out or Path(f"{name}.enrolment")
    if path.exists():
        raise ConfigError(f"{path}: is there already; it is not overwritten")
    passphrase = None if passphrase_file is None else read_passphrase(passphrase_file)
    enrolment = home.enrol(name, link=link, pace=link_pace(link), passphrase=passphrase)
    enrolment.save(path)
    print(f"{path}: bring it to the device by a safe way, then 'fedsys client join {path}' there")


@server_app.command("revoke")
def revoke(folder: Folder, name: Annotated[str, typer.Argument(help="Its name.")]) -> None:
    """Do not let a device in any more; counts in a second where the server runs."""
    ServerHome.open(folder).revoke(name)
    print(f"{name} is revoked")


@server_app.command("status")
def status(
    folder: Folder,
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Say whether the server runs, who is there, and what became of runs."""
    found = status_of(ServerHome.open(folder))
    if json:
        print(json_format.dumps(found, indent=2))
        return
    out = console()
    out.print("running" if found["running"] else "not running")
    table = Table("device", "partition", "link", "state")
    for node in found["nodes"]:
        table.add_row(node["name"], str(node["partition"]), node["link"], node["state"])
    out.print(table)
    for run in found["runs"]:
        out.print(f"run {run['run_id']}: {run['status']} {run['details']}".rstrip(), soft_wrap=True)


def status_of(home: ServerHome) -> dict[str, Any]:
    """What ``status`` says, for programs."""
    running, known, runs = home.running(), {}, []
    from fedsys.deploy import _flower
    from fedsys.deploy.control import Control

    if running is not None:
        with Control.of(home) as control:
            known = {node.public_key: node for node in control.nodes()}
            runs = control.runs()
    nodes = []
    for entry in home.nodes():
        node = known.get(_flower.key_bytes(entry.public_key))
        online = "online" if node is not None and node.is_online else "offline"
        nodes.append(
            {
                "name": entry.name,
                "partition": entry.partition,
                "link": entry.link,
                "state": "revoked" if entry.revoked else online,
                "node_id": node.node_id if node is not None else None,
            }
        )
    return {
        "running": running is not None,
        "port": home.port,
        "hosts": list(home.hosts),
        "nodes": nodes,
        "runs": [
            {
                "run_id": run.run_id,
                "status": f"{run.status}:{run.sub_status}".rstrip(":"),
                "details": run.details,
            }
            for run in runs
        ],
    }


def link_pace(link: str) -> Pace:
    """Sizes for a link as an experiment names it; ConfigError for one that there is not."""
    from netem.spec import link_from_text

    return pace_of(link_from_text(link, 0, 1))


def pace_of(link: "Link") -> Pace:
    """Sizes for a link, from the mean of its first ten minutes."""

    def mean_bps(curve: "RateCurve") -> float:
        return min(1e9, max(PAYLOAD * curve.bits_between(0.0, SPAN_S) / SPAN_S, 1.0))

    return pace_for(mean_bps(link.up.curve), mean_bps(link.down.curve))


def read_passphrase(path: Path) -> str:
    """The first line of a file; ConfigError where it is empty or cannot be read."""
    try:
        line = path.read_text(encoding="utf-8").split("\n", 1)[0]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    if not line:
        raise ConfigError(f"{path}: its first line, the passphrase, is empty")
    return line


def stop_on_signal() -> Callable[[], bool]:
    """Becomes true at SIGINT or SIGTERM."""
    asked = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: asked.set())
    return asked.is_set


def say(line: str) -> None:
    """A line at once, also into a pipe."""
    print(line, flush=True)
