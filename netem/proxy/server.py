"""The proxy as a whole: one port for each node, the server's link, and the schedule."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from fedsys.errors import ConfigError
from fedsys.registry import nearest
from netem.link import Link
from netem.link import Way as WayName
from netem.proxy.actions import Action
from netem.proxy.address import Address, resolve
from netem.proxy.bottleneck import Bottleneck
from netem.proxy.counters import NodeCount
from netem.proxy.node import Node, Shared
from netem.proxy.pipe import READ_BYTES
from netem.proxy.schedule import ALL_NODES, Event
from netem.proxy.timing import LoopTiming

LOOPBACK = Address("127.0.0.1", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePort:
    """A node's name, its link, and where its clients connect to; port 0 takes a free one."""

    name: str
    link: Link
    listen: Address = LOOPBACK


class ShapingProxy:
    """TCP from each node's port to ``upstream``, over that node's link, in real time.

    ``async with ShapingProxy(...) as proxy`` listens while the block runs. Time on the links, and
    so their outages and recordings, begins with the block. ``seed`` draws jitter and loss.
    Raises LinkError where a port cannot be had or the upstream host has no address.
    """

    def __init__(
        self,
        upstream: Address,
        nodes: Sequence[NodePort],
        *,
        seed: int = 0,
        server_egress_bps: float = math.inf,
        server_ingress_bps: float = math.inf,
        events: Sequence[Event] = (),
    ) -> None:
        names = [node.name for node in nodes]
        if not names or len(set(names)) < len(names):
            raise ConfigError(f"a proxy needs nodes with different names, got {names}")
        for what, bps in (("egress", server_egress_bps), ("ingress", server_ingress_bps)):
            if not bps > 0:
                raise ConfigError(f"server_{what}_bps must be above 0, got {bps}")
        self.upstream = upstream
        self.seed = seed
        self._ports = tuple(nodes)
        self._egress_bps, self._ingress_bps = server_egress_bps, server_ingress_bps
        self._events = tuple(events)
        self._nodes: dict[str, Node] = {}
        self._bottlenecks: list[Bottleneck] = []
        self._schedule: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "ShapingProxy":
        server = await resolve(self.upstream)
        timing = LoopTiming()
        self._bottlenecks = [
            Bottleneck(timing, bps) for bps in (self._ingress_bps, self._egress_bps)
        ]
        ingress, egress = (
            bottleneck if bottleneck.rate_bps < math.inf else None
            for bottleneck in self._bottlenecks
        )
        shared = Shared(
            timing=timing,
            server=server,
            scratch=memoryview(bytearray(READ_BYTES)),
            ingress=ingress,
            egress=egress,
            seed=self.seed,
        )
        self._timing = timing
        try:
            for number, port in enumerate(self._ports, 1):
                node = Node(port.name, number, port.link, port.listen, shared)
                self._nodes[port.name] = node
                await node.listen()
        except BaseException:
            await self._close()
            raise
        if self._events:
            self._schedule = asyncio.create_task(self._keep_schedule())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._close()

    @property
    def ports(self) -> dict[str, Address]:
        """Where the clients of each node connect to."""
        return {name: node.address for name, node in self._nodes.items()}

    @property
    def now_s(self) -> float:
        """Time on the links."""
        return self._timing.now_s()

    @property
    def schedule(self) -> asyncio.Task[None] | None:
        """Runs until the last event; raises LinkError where one could not be done."""
        return self._schedule

    def count(self, name: str) -> NodeCount:
        """What has passed a node's port."""
        return self._node(name).count()

    def set_link(self, name: str, link: Link) -> None:
        """Use ``link`` from now on; what is already on its way arrives as it would have."""
        self._node(name).change(link)

    def cut(self, name: str) -> None:
        """Hold everything on the node's link, in both directions."""
        self._node(name).cut()

    def heal(self, name: str) -> None:
        """End ``cut``."""
        self._node(name).heal()

    def reset(self, name: str, *, after_bytes: int | None = None, way: WayName = "up") -> None:
        """Break all connections with RST, or the first that delivers ``after_bytes`` in ``way``."""
        if after_bytes is None:
            self._node(name).reset()
        else:
            self._node(name).reset_after(way, after_bytes)

    def half_open(self, name: str) -> None:
        """Let all open connections go silent for good; new ones work."""
        self._node(name).half_open()

    def refuse(self, name: str) -> None:
        """Close the listener; open connections go on."""
        self._node(name).refuse()

    async def accept(self, name: str) -> None:
        """Listen again on the same port; LinkError where someone else has it by now."""
        await self._node(name).listen()

    async def apply(self, name: str, action: Action) -> None:
        """Do ``action`` to the node, or to all with ``*``."""
        nodes = self._nodes.values() if name == ALL_NODES else [self._node(name)]
        for node in nodes:
            await action.apply(node, self.seed)

    def _node(self, name: str) -> Node:
        node = self._nodes.get(name)
        if node is None:
            raise ConfigError(f"no node '{name}'; {nearest(name, list(self._nodes))}")
        return node

    async def _keep_schedule(self) -> None:
        for event in self._events:
            await asyncio.sleep(event.at_s - self.now_s)
            await self.apply(event.node, event.action)

    async def _close(self) -> None:
        if self._schedule is not None:
            self._schedule.cancel()
        for node in self._nodes.values():
            node.close()
        for bottleneck in self._bottlenecks:
            bottleneck.close()
        for _ in range(3):  # the loop closes aborted sockets and ends tasks in its next turns
            await asyncio.sleep(0)
