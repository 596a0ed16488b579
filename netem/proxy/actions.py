"""What can be done to a node while the proxy runs, as it is written in a schedule or a request."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from fedsys.errors import ConfigError
from fedsys.options import configured
from fedsys.registry import nearest
from netem.link import Way
from netem.proxy.node import Node
from netem.spec import parse_link


class Action(Protocol):
    """Something that happens to one node."""

    async def apply(self, node: Node, seed: int) -> None:
        """Do it; ``seed`` is the proxy's. Raises LinkError where it cannot be done."""
        ...


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Hold everything on the link, in both directions, until ``heal``."""

    async def apply(self, node: Node, seed: int) -> None:
        """Do it."""
        node.cut()


@dataclass(frozen=True, kw_only=True)
class Heal:
    """End a cut: what was held goes on."""

    async def apply(self, node: Node, seed: int) -> None:
        """Do it."""
        node.heal()


@dataclass(frozen=True, kw_only=True)
class ResetConnections:
    """Break connections with RST: all that are open now, or one at the byte ``after_bytes``.

    With ``after_bytes`` it is the first connection that delivers so many more bytes in ``way``.
    """

    after_bytes: int | None = None
    way: Way | None = None
    """``up`` unless given; without ``after_bytes`` there is nothing it could mean."""

    def __post_init__(self) -> None:
        if self.after_bytes is None and self.way is not None:
            raise ConfigError("way needs after_bytes")
        if self.after_bytes is not None and self.after_bytes < 1:
            raise ConfigError(f"after_bytes must be 1 or more, got {self.after_bytes}")

    async def apply(self, node: Node, seed: int) -> None:
        """Do it, or lie in wait."""
        if self.after_bytes is None:
            node.reset()
        else:
            node.reset_after(self.way or "up", self.after_bytes)


@dataclass(frozen=True, kw_only=True)
class HalfOpen:
    """Let open connections go silent for good: no byte, no FIN, no RST."""

    async def apply(self, node: Node, seed: int) -> None:
        """Do it."""
        node.half_open()


@dataclass(frozen=True, kw_only=True)
class Refuse:
    """Close the listener: new connections are refused until ``accept``."""

    async def apply(self, node: Node, seed: int) -> None:
        """Do it."""
        node.refuse()


@dataclass(frozen=True, kw_only=True)
class Accept:
    """Listen again, on the same port."""

    async def apply(self, node: Node, seed: int) -> None:
        """Do it."""
        await node.listen()


@dataclass(frozen=True, kw_only=True)
class ChangeLink:
    """Use another link, written as for ``--link``."""

    link: str

    def __post_init__(self) -> None:
        parse_link(self.link).link(0, 1)

    async def apply(self, node: Node, seed: int) -> None:
        """Do it."""
        node.change(parse_link(self.link).link(seed, node.number))


ACTIONS: dict[str, Any] = {
    "cut": Cut,
    "heal": Heal,
    "reset": ResetConnections,
    "half-open": HalfOpen,
    "refuse": Refuse,
    "accept": Accept,
    "link": ChangeLink,
}


def parse_action(what: str, table: Mapping[str, Any]) -> Action:
    """The action that ``table`` names by ``action``, with its options.

    Raises ConfigError that begins with ``what``.
    """
    options = dict(table)
    name = options.pop("action", None)
    if not isinstance(name, str) or name not in ACTIONS:
        raise ConfigError(f"{what}: no action {name!r}; {nearest(str(name), list(ACTIONS))}")
    action: Action = configured(f"{what}: {name}", ACTIONS[name], options)
    return action
