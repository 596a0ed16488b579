"""The server's folder: keys, devices, state and logs; nobody but its owner may look into it.

DIR/server.json        name, hosts, port
DIR/ca.crt ca.key      the CA
DIR/server.crt .key    the certificate that devices see
DIR/admin.token        what commands on this machine prove themselves with
DIR/nodes/NAME.json    one device each; NAME.revoked beside it where it may not come again
DIR/running.json       where the server that runs now can be reached
DIR/state.db logs/ flower/   what Flower keeps
"""

import contextlib
import datetime
import json
import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedsys.deploy.enrolment import Enrolment
from fedsys.deploy.pace import Pace
from fedsys.deploy.pki import locked, make_authority, make_node_key, make_server_certificate
from fedsys.deploy.private import make_private_folder, write_private
from fedsys.errors import ConfigError

LOCAL_HOSTS = ("localhost", "127.0.0.1")
"""Always in the certificate: commands on the server's machine dial these."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEntry:
    """One device, as the server knows it."""

    name: str
    public_key: str
    """OpenSSH's format."""
    partition: int
    link: str
    pace: Pace
    revoked: bool = False


@dataclass(frozen=True, slots=True)
class Running:
    """Where a running server listens for commands."""

    pid: int
    """Of the supervisor."""
    control_port: int


@dataclass(frozen=True, slots=True)
class ServerHome:
    """The folder of one server."""

    path: Path
    hosts: tuple[str, ...]
    """Names and addresses that devices dial; the first goes into enrolment files."""
    port: int

    @classmethod
    def create(cls, path: Path, hosts: list[str], port: int) -> "ServerHome":
        """Make CA, certificate and admin token. ConfigError where there is anything already."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ConfigError(f"{path}: is not empty; a server's keys are never overwritten")
        now = datetime.datetime.now(datetime.UTC)
        authority = make_authority(hosts[0] if hosts else "", now)
        names = [*hosts, *(host for host in LOCAL_HOSTS if host not in hosts)]
        certificate = make_server_certificate(authority, names if hosts else [], now)
        make_private_folder(path)
        for folder in ("nodes", "logs", "flower"):
            make_private_folder(path / folder)
        home = cls(path.resolve(), tuple(hosts), port)
        write_private(path / "ca.crt", authority.certificate)
        write_private(path / "ca.key", authority.key)
        write_private(path / "server.crt", certificate.certificate)
        write_private(path / "server.key", certificate.key)
        write_private(path / "admin.token", secrets.token_urlsafe(32).encode())
        # Last, because it makes the folder a server's.
        write_private(path / "server.json", _json({"hosts": hosts, "port": port}))
        return home

    @classmethod
    def open(cls, path: Path) -> "ServerHome":
        """The server whose folder ``path`` is; ConfigError where it is none."""
        try:
            content = json.loads((path / "server.json").read_text())
            home = cls(path.resolve(), tuple(content["hosts"]), int(content["port"]))
        except OSError as error:
            raise ConfigError(
                f"{path}: not a server's folder ({error.strerror}); make one with "
                "'fedsys server init'"
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path}/server.json: cannot be read: {error}") from error
        make_private_folder(home.path)
        return home

    @property
    def token(self) -> str:
        """Proves to the server that a command comes from its owner."""
        return (self.path / "admin.token").read_text()

    def nodes(self) -> list[NodeEntry]:
        """All devices ever enrolled, by partition and name."""
        entries = [self._read(file) for file in (self.path / "nodes").glob("*.json")]
        return sorted(entries, key=lambda entry: (entry.partition, entry.name))

    def node(self, name: str) -> NodeEntry:
        """The device ``name``; ConfigError where there is none."""
        for entry in self.nodes():
            if entry.name == name:
                return entry
        known = ", ".join(entry.name for entry in self.nodes()) or "none"
        raise ConfigError(f"no device '{name}' is enrolled; there are: {known}")

    def enrol(
        self,
        name: str,
        *,
        link: str,
        pace: Pace,
        passphrase: str | None = None,
        address: str | None = None,
    ) -> Enrolment:
        """Make a key for a new device; the server registers it when it runs.

        The private half is in the enrolment alone. ``address`` is dialled instead of the server's
        own. Raises ConfigError for a name that is taken, by a revoked device as well.
        """
        if not _NAME.fullmatch(name):
            raise ConfigError(f"device name '{name}': letters, digits, '_.-', 64 at most")
        entries = self.nodes()
        if any(entry.name == name for entry in entries):
            raise ConfigError(f"a device '{name}' is or was enrolled; choose another name")
        key = make_node_key()
        taken = {entry.partition for entry in entries if not entry.revoked}
        partition = next(i for i in range(len(taken) + 1) if i not in taken)
        entry = NodeEntry(
            name=name, public_key=key.public.decode(), partition=partition, link=link, pace=pace
        )
        enrolment = Enrolment(
            node=name,
            address=address or f"{_bracketed(self.hosts[0])}:{self.port}",
            authority=(self.path / "ca.crt").read_bytes(),
            key=key if passphrase is None else locked(key, passphrase),
            partition=partition,
            link=link,
            pace=pace,
        )
        content = asdict(entry)
        del content["revoked"]
        write_private(self.path / "nodes" / f"{name}.json", _json(content))
        return enrolment

    def revoke(self, name: str) -> None:
        """Say that the device may not come again; a running server sees it in a second."""
        write_private(self.path / "nodes" / f"{self.node(name).name}.revoked", b"")

    def running(self) -> Running | None:
        """The server that runs on this folder now, if one does."""
        try:
            content = json.loads((self.path / "running.json").read_text())
            running = Running(int(content["pid"]), int(content["control_port"]))
            os.kill(running.pid, 0)
        except (OSError, ValueError, KeyError):
            return None
        return running

    @contextlib.contextmanager
    def claimed(self, control_port: int) -> Iterator[None]:
        """Be the server of this folder while the block runs; ConfigError where another is."""
        if (other := self.running()) is not None:
            raise ConfigError(f"{self.path}: a server runs on it already, process {other.pid}")
        mark = self.path / "running.json"
        write_private(mark, _json({"pid": os.getpid(), "control_port": control_port}))
        try:
            yield
        finally:
            mark.unlink(missing_ok=True)

    def _read(self, file: Path) -> NodeEntry:
        try:
            content = json.loads(file.read_text())
            content |= {
                "pace": Pace(**content["pace"]),
                "revoked": file.with_suffix(".revoked").exists(),
            }
            return NodeEntry(**content)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ConfigError(f"{file}: cannot be read: {error}") from error


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _json(content: Any) -> bytes:
    return json.dumps(content, indent=2).encode() + b"\n"
