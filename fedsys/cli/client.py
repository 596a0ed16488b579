"""``fedsys client``: a real device that takes part."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsys.cli.server import read_passphrase, say, stop_on_signal
from fedsys.deploy.enrolment import Enrolment
from fedsys.deploy.systemd import SYSTEM_FOLDER, UNIT_NAME, install_unit, service_unit
from fedsys.errors import ConfigError

if TYPE_CHECKING:
    from fedsys.deploy.client import Place

client_app = typer.Typer(no_args_is_help=True, help="A device that takes part.")


@client_app.command("join")
def join(
    enrolment: Annotated[Path, typer.Argument(help="The file that the server made.")],
    data: Annotated[
        Path | None, typer.Option(help="Folder of the data, in place of task.options.folder.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto or cpu.")] = "auto",
    state: Annotated[
        Path | None, typer.Option(help="Folder for residuals and models; it must last.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads that training may use.")] = 1,
    memory: Annotated[str, typer.Option(help="Limit in the systemd unit, as systemd has it.")] = (
        "2G"
    ),
    passphrase_file: Annotated[
        Path | None, typer.Option(help="Its first line unlocks the device's key.")
    ] = None,
    install_service: Annotated[
        bool, typer.Option("--install-service", help="Write a systemd unit, and do not join.")
    ] = False,
) -> None:
    """Join the server, and stay: outages, restarts and crashes are overcome."""
    if device not in ("auto", "cpu"):
        raise ConfigError(f"--device {device}: must be auto or cpu")
    if data is not None and not data.exists():
        raise ConfigError(f"--data {data}: there is no such file or folder")
    # Imported here, because it brings Flower, which the other commands start without.
    from fedsys.deploy.client import Client, Place

    passphrase = None if passphrase_file is None else read_passphrase(passphrase_file)
    found = Enrolment.load(enrolment).unlocked(passphrase)
    place = Place(
        state=(state or default_state(found.node)).absolute(),
        data=None if data is None else data.absolute(),
        threads=threads,
        device=device,
    )
    if install_service:
        command = _command(enrolment, place, passphrase_file)
        _install(found.node, command, threads=threads, memory=memory)
        return
    Client(found, place, say=say).serve(stop_on_signal())


def default_state(node: str) -> Path:
    """Where a device keeps its state unless told otherwise."""
    return Path.home() / ".local" / "state" / "fedsys" / node


def _command(enrolment: Path, place: "Place", passphrase_file: Path | None) -> list[str]:
    """The command line that does the same without ``--install-service``."""
    command = [sys.executable, "-m", "fedsys.cli.main", "client", "join"]
    command += [str(enrolment.absolute()), "--state", str(place.state)]
    command += ["--threads", str(place.threads), "--device", place.device]
    if place.data is not None:
        command += ["--data", str(place.data)]
    if passphrase_file is not None:
        command += ["--passphrase-file", str(passphrase_file.absolute())]
    return command


def _install(node: str, command: list[str], *, threads: int, memory: str) -> None:
    unit = service_unit(node, shlex.join(command), threads=threads, memory=memory)
    path = install_unit(unit, UNIT_NAME.format(node=node))
    flag = "" if path.is_relative_to(SYSTEM_FOLDER) else "--user "
    print(f"{path}: written; start it with 'systemctl {flag}enable --now {path.name}'")
