"""What happens when, decided before the proxy starts."""

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsys.errors import ConfigError
from fedsys.registry import nearest
from netem.proxy.actions import Action, parse_action

ALL_NODES = "*"


@dataclass(frozen=True, slots=True)
class Event:
    """An action on a node, or on all of them, at a moment after the start."""

    at_s: float
    node: str
    """A node's name, or ``*``."""
    action: Action


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file; ConfigError for one that cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error


def load_schedule(path: Path, nodes: Iterable[str]) -> tuple[Event, ...]:
    """The ``[[event]]`` tables of a file, for a proxy with these nodes."""
    tree = read_toml(path)
    unknown = sorted(tree.keys() - {"event"})
    if unknown:
        raise ConfigError(f"{path}: unknown key '{unknown[0]}'; a schedule has [[event]] tables")
    return parse_events(str(path), tree.get("event", []), nodes)


def parse_events(what: str, tables: Any, nodes: Iterable[str]) -> tuple[Event, ...]:
    """Events in the order in which they happen, every name and option checked."""
    names = [*nodes, ALL_NODES]
    if not isinstance(tables, list | tuple) or not all(isinstance(table, dict) for table in tables):
        raise ConfigError(f"{what}: events are [[event]] tables")
    events = [
        _event(f"{what}: event {number}", table, names) for number, table in enumerate(tables, 1)
    ]
    return tuple(sorted(events, key=lambda event: event.at_s))


def _event(what: str, table: dict[str, Any], names: list[str]) -> Event:
    rest = dict(table)
    at_s, node = rest.pop("at_s", None), rest.pop("node", None)
    if isinstance(at_s, bool) or not isinstance(at_s, int | float) or not 0 <= at_s < float("inf"):
        raise ConfigError(f"{what}: at_s must be 0 or more seconds, got {at_s!r}")
    if not isinstance(node, str) or node not in names:
        raise ConfigError(f"{what}: no node {node!r}; {nearest(str(node), names)}")
    return Event(float(at_s), node, parse_action(what, rest))
