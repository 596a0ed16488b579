"""The one file that a device needs: whom to dial, whom to trust, and who it is itself."""

import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tomli_w

from fedsys.deploy.pace import Pace
from fedsys.deploy.pki import NodeKey, expires, unlocked
from fedsys.deploy.private import check_private, write_private
from fedsys.errors import ConfigError

VERSION = 1
_HEADER = "# Enrolment of one device. It holds a private key: keep it to the device alone.\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrolment:
    """What the server gave to one device."""

    node: str
    """Name of the device."""
    address: str
    """HOST:PORT of the server, as the device dials it."""
    authority: bytes
    """PEM certificate of the only CA that the device trusts."""
    key: NodeKey
    partition: int
    """Which part of the data the device holds, from 0."""
    link: str
    pace: Pace

    def unlocked(self, passphrase: str | None) -> "Enrolment":
        """With the private key in the clear; ConfigError for a wrong passphrase."""
        return Enrolment(
            node=self.node,
            address=self.address,
            authority=self.authority,
            key=unlocked(self.key, passphrase),
            partition=self.partition,
            link=self.link,
            pace=self.pace,
        )

    def save(self, path: Path) -> None:
        """Write the file, for its owner alone; ConfigError where there is one already."""
        if path.exists():
            raise ConfigError(f"{path}: is there already; it is not overwritten")
        content = {
            "enrolment": {
                "version": VERSION,
                "node": self.node,
                "address": self.address,
                "partition": self.partition,
                "link": self.link,
                "authority": self.authority.decode(),
                "public_key": self.key.public.decode(),
                "private_key": self.key.private.decode(),
            },
            "pace": asdict(self.pace),
        }
        text = _HEADER + tomli_w.dumps(content, multiline_strings=True)
        write_private(path, text.encode())

    @classmethod
    def load(cls, path: Path) -> "Enrolment":
        """Read the file. Raises ConfigError where it is not one, or open to others."""
        try:
            check_private(path)
            tree = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError):
            raise ConfigError(f"{path}: not an enrolment file") from None
        try:
            return _from(tree)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"{path}: not an enrolment file: {error}") from None


def _from(tree: dict[str, Any]) -> Enrolment:
    values, pace = tree["enrolment"], tree["pace"]
    if values["version"] != VERSION:
        raise ConfigError(
            f"enrolment of version {values['version']}, this fedsys reads version {VERSION}"
        )
    authority = str(values["authority"]).encode()
    expires(authority)
    return Enrolment(
        node=str(values["node"]),
        address=str(values["address"]),
        authority=authority,
        key=NodeKey(str(values["private_key"]).encode(), str(values["public_key"]).encode()),
        partition=int(values["partition"]),
        link=str(values["link"]),
        pace=Pace(
            chunk_bytes=int(pace["chunk_bytes"]),
            connections=int(pace["connections"]),
            up_bps=float(pace["up_bps"]),
            down_bps=float(pace["down_bps"]),
        ),
    )
