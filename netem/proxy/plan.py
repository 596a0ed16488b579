"""A whole proxy as a TOML file, checked before anything listens."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsys.errors import ConfigError
from fedsys.options import configured
from netem.proxy.address import Address, parse_address
from netem.proxy.schedule import ALL_NODES, Event, load_schedule, parse_events, read_toml
from netem.proxy.server import NodePort, ShapingProxy
from netem.spec import parse_link

UNLIMITED_BPS = float("inf")
DEFAULT_SEED = 1
"""That of an experiment that names none: its nodes then have the same links here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyPlan:
    """What to listen on, and what to do when."""

    upstream: Address
    nodes: tuple[NodePort, ...]
    seed: int = DEFAULT_SEED
    server_egress_bps: float = UNLIMITED_BPS
    server_ingress_bps: float = UNLIMITED_BPS
    control: Address | None = None
    """Where the control API listens; None has none."""
    events: tuple[Event, ...] = ()

    def proxy(self) -> ShapingProxy:
        """The proxy that does this; raises ConfigError for names twice and rates of 0."""
        return ShapingProxy(
            self.upstream,
            self.nodes,
            seed=self.seed,
            server_egress_bps=self.server_egress_bps,
            server_ingress_bps=self.server_ingress_bps,
            events=self.events,
        )


@dataclass(frozen=True, kw_only=True)
class _File:
    upstream: str
    seed: int = DEFAULT_SEED
    server_egress_bps: float = UNLIMITED_BPS
    server_ingress_bps: float = UNLIMITED_BPS
    control: str = ""
    node: tuple[dict[str, Any], ...] = ()
    event: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, kw_only=True)
class _NodeTable:
    listen: str
    link: str
    name: str = ""


def load_plan(path: Path) -> ProxyPlan:
    """The proxy that a file describes; ConfigError names the file and what is wrong with it."""
    found: _File = configured(str(path), _File, read_toml(path))
    nodes = tuple(_nodes(str(path), found.node, found.seed))
    return ProxyPlan(
        upstream=parse_address(f"{path}: upstream", found.upstream),
        nodes=nodes,
        seed=found.seed,
        server_egress_bps=found.server_egress_bps,
        server_ingress_bps=found.server_ingress_bps,
        control=parse_address(f"{path}: control", found.control, min_port=0)
        if found.control
        else None,
        events=parse_events(str(path), found.event, [node.name for node in nodes]),
    )


def node_port(
    what: str, number: int, listen: str, link: str, seed: int, name: str = ""
) -> NodePort:
    """The ``number``-th node, from 1, which is also its name unless it has one.

    Raises ConfigError that begins with ``what``.
    """
    try:
        if name == ALL_NODES or "/" in name:
            raise ConfigError(f"a node cannot have the name '{name}'")
        return NodePort(
            name=name or str(number),
            link=parse_link(link).link(seed, number),
            listen=parse_address("listen", listen, default_host="127.0.0.1", min_port=0),
        )
    except ConfigError as error:
        raise ConfigError(f"{what}: {error}") from error


def _nodes(what: str, tables: Iterable[Any], seed: int) -> Iterable[NodePort]:
    for number, table in enumerate(tables, 1):
        where = f"{what}: node {number}"
        if not isinstance(table, dict):
            raise ConfigError(f"{where}: expected a [[node]] table")
        found: _NodeTable = configured(where, _NodeTable, table)
        yield node_port(where, number, found.listen, found.link, seed, found.name)


def plan_for(
    pairs: Sequence[tuple[str, str]],
    *,
    upstream: str | None,
    seed: int,
    server_egress_bps: float | None,
    server_ingress_bps: float | None,
    control: str | None,
    schedule: Path | None,
) -> ProxyPlan:
    """The proxy that options of a command line describe; ``pairs`` are (address, link)."""
    if upstream is None:
        raise ConfigError("--upstream HOST:PORT is missing")
    nodes = tuple(
        node_port(f"node {number}", number, listen, link, seed)
        for number, (listen, link) in enumerate(pairs, 1)
    )
    names = [node.name for node in nodes]
    return ProxyPlan(
        upstream=parse_address("--upstream", upstream),
        nodes=nodes,
        seed=seed,
        server_egress_bps=UNLIMITED_BPS if server_egress_bps is None else server_egress_bps,
        server_ingress_bps=UNLIMITED_BPS if server_ingress_bps is None else server_ingress_bps,
        control=None if control is None else parse_address("--control", control, min_port=0),
        events=() if schedule is None else load_schedule(schedule, names),
    )
