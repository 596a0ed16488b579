"""One node's port: its listener, its link, its connections, and what is done to them."""

import asyncio
from dataclasses import dataclass

from fedsys.errors import LinkError
from fedsys.rng import rng_for
from netem.link import Link
from netem.link import Way as WayName
from netem.proxy.address import Address, Resolved, bound_socket
from netem.proxy.bottleneck import Bottleneck
from netem.proxy.connection import Connection, limit_segments
from netem.proxy.counters import NodeCount, Passed, WayCount
from netem.proxy.outages import OutageWatch
from netem.proxy.pipe import Pipe
from netem.proxy.terms import terms_of
from netem.proxy.timing import Timing
from netem.proxy.way import Way

BACKLOG = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What all ports of a proxy have in common."""

    timing: Timing
    server: Resolved
    scratch: memoryview
    ingress: Bottleneck | None
    egress: Bottleneck | None
    seed: int


class Node:
    """A port of the proxy, which stands for the link of one node."""

    def __init__(self, name: str, number: int, link: Link, listen: Address, shared: Shared) -> None:
        self.name = name
        self.number = number
        self.server = shared.server
        self.scratch = shared.scratch
        self.up_passed, self.down_passed = Passed(), Passed()
        self._timing = shared.timing
        self._listen = listen
        self._link = link
        self.up = self._way("up", shared.ingress, shared.seed)
        self.down = self._way("down", shared.egress, shared.seed)
        self._connections: set[Connection] = set()
        self._listener: asyncio.Server | None = None
        self._armed: tuple[WayName, int] | None = None
        self._outages = OutageWatch(shared.timing, self.reset)
        self._total = self._refused = self._reset = 0
        self._outages.watch(link)

    @property
    def address(self) -> Address:
        """Where clients connect to."""
        return self._listen

    async def listen(self) -> None:
        """Accept connections, at first or again; LinkError where the port cannot be had."""
        if self._listener is not None:
            return
        loop = asyncio.get_running_loop()
        try:
            sock = bound_socket(self._listen)
        except OSError as error:
            raise LinkError(
                f"node '{self.name}': cannot listen on {self._listen}: {error.strerror}"
            ) from error
        limit_segments(sock)
        self._listen = Address(self._listen.host, sock.getsockname()[1])
        self._listener = await loop.create_server(
            lambda: Connection(self).client, sock=sock, backlog=BACKLOG
        )

    def refuse(self) -> None:
        """Close the listener: new connections are refused, open ones go on."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def change(self, link: Link) -> None:
        """Use ``link`` from now on."""
        self._link = link
        self.up.change(terms_of(link, "up"))
        self.down.change(terms_of(link, "down"))
        self._outages.watch(link)

    def cut(self) -> None:
        """Hold everything in both directions."""
        self.up.hold()
        self.down.hold()

    def heal(self) -> None:
        """Undo ``cut``."""
        self.up.release()
        self.down.release()

    def reset(self) -> None:
        """Break all open connections with RST, on both sides."""
        for connection in tuple(self._connections):
            connection.reset()

    def reset_after(self, way: WayName, size_bytes: int) -> None:
        """Break the first connection that delivers ``size_bytes`` more in ``way``, at that byte."""
        self._armed = (way, size_bytes)
        for connection in self._connections:
            self._arm(connection)

    def half_open(self) -> None:
        """Let all open connections go silent: no byte, no FIN, no RST. New ones work."""
        for connection in self._connections:
            connection.freeze()

    def close(self) -> None:
        """End everything at once."""
        self.refuse()
        self._outages.close()
        for connection in tuple(self._connections):
            connection.abort()
        for way in (self.up, self.down):
            way.close()

    def count(self) -> NodeCount:
        """What has passed so far, and how things stand."""
        return NodeCount(
            up=_counted(self.up_passed, self.up),
            down=_counted(self.down_passed, self.down),
            open=len(self._connections),
            total=self._total,
            refused=self._refused,
            reset=self._reset,
            half_open=sum(connection.frozen for connection in self._connections),
            listening=self._listener is not None,
            cut=self.up.held,
        )

    def opened(self, connection: Connection) -> None:
        """A client has connected."""
        self._total += 1
        self._connections.add(connection)
        if self._armed is not None:
            self._arm(connection)

    def refused(self) -> None:
        """The server could not be reached."""
        self._refused += 1

    def was_reset(self, connection: Connection) -> None:
        """A connection was broken on purpose."""
        self._reset += 1
        if connection.up.struck or connection.down.struck:
            self._armed = None
            for other in self._connections:
                other.up.reset_after_bytes = other.down.reset_after_bytes = None

    def closed(self, connection: Connection) -> None:
        """Nothing is left of a connection."""
        self._connections.discard(connection)

    def _way(self, way: WayName, bottleneck: Bottleneck | None, seed: int) -> Way:
        rng = rng_for(seed, "proxy", self.number, way)
        return Way(self._timing, terms_of(self._link, way), rng, bottleneck)

    def _arm(self, connection: Connection) -> None:
        if self._armed is None:
            return
        way, size_bytes = self._armed
        pipe: Pipe = connection.up if way == "up" else connection.down
        pipe.reset_after_bytes = size_bytes


def _counted(passed: Passed, way: Way) -> WayCount:
    queued_bytes = passed.in_bytes - passed.out_bytes - passed.dropped_bytes
    return WayCount(
        passed.in_bytes, passed.out_bytes, queued_bytes, passed.dropped_bytes, way.rate_bps()
    )
