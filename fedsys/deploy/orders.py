"""What ``fedsys run`` tells the ServerApp beside the experiment: a file in the server's folder.

The run's configuration goes to every device, so it holds the experiment, the protocol and the name
of this file, and nothing of the server.
"""

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from fedsys.deploy.pace import Pace
from fedsys.deploy.private import make_private_folder, write_private
from fedsys.errors import ConfigError

HOME = "FEDSYS_SERVER_HOME"
"""Environment variable that names the server's folder to the ServerApp."""
PROTOCOL = 1
"""Of messages between this server and its devices; equal on both sides."""
END_S = 60.0
"""That a ServerApp may take to end after it was told to stop."""
ORDER, PROTOCOL_KEY = "order", "protocol"
"""Keys of the run configuration, beside ``experiment``."""

APP = """\
[project]
name = "fedsys-run"
version = "{version}"
description = "Runs the fedsys that is installed"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedsys"

[tool.flwr.app.components]
serverapp = "strategies.server_app:app"
clientapp = "clients.client_app:app"

[tool.flwr.app.config]
experiment = ""
order = ""
protocol = 0
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """How one run is done."""

    folder: str
    """The run folder, as an absolute path."""
    nodes: dict[int, int]
    """Flower's number of each device that takes part, to its part of the data."""
    chunk_bytes: int
    """Largest piece of a message; what the weakest device's link takes in ten seconds."""
    exchange_bps: float
    """Of the weakest device: bits a second, up and down one after the other."""
    keep_every_rounds: int = 0
    """Checkpoints that are kept to roll back to; 0 keeps none."""

    @classmethod
    def of(
        cls, folder: Path, nodes: dict[int, int], paces: Mapping[int, Pace], keep_every_rounds: int
    ) -> "Order":
        """For these devices, with the pace of each."""
        return cls(
            keep_every_rounds=keep_every_rounds,
            folder=str(folder.absolute()),
            nodes=nodes,
            chunk_bytes=min(pace.chunk_bytes for pace in paces.values()),
            exchange_bps=min(1e6 * 8 / pace.exchange_s(1_000_000) for pace in paces.values()),
        )

    @property
    def folder_path(self) -> Path:
        """The run folder."""
        return Path(self.folder)

    def save(self, home: Path) -> str:
        """Write it into the server's folder; the name to find it by."""
        make_private_folder(home / "orders")
        name = secrets.token_hex(8)
        write_private(home / "orders" / f"{name}.json", json.dumps(asdict(self)).encode())
        return name

    @classmethod
    def load(cls, name: str) -> "Order":
        """Read it where the ServerApp runs. Raises ConfigError where there is none."""
        home = os.environ.get(HOME, "")
        if not home or not name.isalnum():
            raise ConfigError("this run was not started by 'fedsys run'")
        path = Path(home) / "orders" / f"{name}.json"
        try:
            content = json.loads(path.read_text())
            content["nodes"] = {int(node): part for node, part in content["nodes"].items()}
            return cls(**content)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ConfigError(f"{path}: cannot be read: {error}") from error


def write_app(folder: Path, version: str) -> None:
    """Make the Flower app that stands for the installed fedsys."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(APP.format(version=version), encoding="utf-8")


def check_protocol(run_config: Mapping[str, object]) -> None:
    """Raise ConfigError on a device whose fedsys does not speak as the server's does."""
    theirs = run_config.get(PROTOCOL_KEY, PROTOCOL)
    if theirs != PROTOCOL:
        raise ConfigError(
            f"the server speaks protocol {theirs}, this device {PROTOCOL}: install the fedsys that "
            "the server has"
        )
