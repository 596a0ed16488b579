"""The commands that build a path across a link, in order, and those that take it down again.

Pure: the same list is executed, or shown as a script.
"""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from netem.kernel.names import NAMED, Names
from netem.kernel.pipe import Mechanism, Pipe
from netem.kernel.shaping import Command, shaping_commands

_NETWORK = 0xC612_0000
"""198.18.0.0/15, set aside for measurements of networks (RFC 2544)."""
_PAIRS = 1 << 15
_CLIENT_MAC, _SERVER_MAC = "02:00:00:00:00:02", "02:00:00:00:00:01"
_TUN_PACKETS = 5000
"""Packets that may wait for the box; its own queues are the link's."""


@dataclass(frozen=True, slots=True)
class Step:
    """One command, and what takes its effect back."""

    do: Command
    undo: Command = ()
    stays: bool = False
    """It runs beside all that follows, and is ready after its first line of output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What a path is made of."""

    names: Names
    mechanism: Mechanism
    up: Pipe
    down: Pipe
    tcp: str | None
    """Congestion control of both ends; None leaves the kernel's default."""
    server_in_netns: bool
    """The far end is a namespace of its own; otherwise it is where these commands run."""
    client_address: str
    server_address: str
    box: Command
    """Starts the box; used if the mechanism is ``tun``."""

    def steps(self) -> list[Step]:
        """All steps, in order; undo them in reverse."""
        return [*self._namespaces(), *self._ends(), *self._routes(), *self._shaping()]

    def inside(self, way_in: str, argv: Sequence[str]) -> list[str]:
        """``argv`` as a command that runs in namespace ``way_in``."""
        return ["nsenter", f"--net={NAMED / way_in}", "--", *argv]

    def _namespaces(self) -> Iterable[Step]:
        names = [self.names.client_netns]
        if self.server_in_netns:
            names.append(self.names.server_netns)
        for name in names:
            yield Step(("ip", "netns", "add", name), ("ip", "netns", "del", name))
            yield Step(
                ("ip", "-n", name, "link", "set", "lo", "up"),
                ("sh", "-c", end_processes(name)),
            )
            # Otherwise one connection starts with what another has learnt.
            forget = "echo 1 > /proc/sys/net/ipv4/tcp_no_metrics_save"
            yield Step(tuple(self.inside(name, ["sh", "-c", forget])))

    def _ends(self) -> Iterable[Step]:
        names = self.names
        client, server = names.client_interface, names.server_interface
        if self.mechanism == "tun":
            yield Step(self.box, stays=True)
            yield Step(("ip", "link", "set", client, "netns", names.client_netns))
            if self.server_in_netns:
                yield Step(("ip", "link", "set", server, "netns", names.server_netns))
        else:
            near = ("link", "add", server, "address", _SERVER_MAC, "type", "veth")
            peer = ("peer", "name", client, "address", _CLIENT_MAC, "netns", names.client_netns)
            yield Step((*self._ip_server, *near, *peer), (*self._ip_server, "link", "del", server))
        for ip, end in ((self._ip_client, client), (self._ip_server, server)):
            # Packets of 64 kB would pass a queue as one.
            sizes = ("mtu", "1500", "gso_max_segs", "1", "txqueuelen", str(_TUN_PACKETS))
            # Before it is up, or it gets an address of IPv6 and sends packets of its own.
            yield Step((*ip, "link", "set", "dev", end, "addrgenmode", "none"))
            yield Step((*ip, "link", "set", "dev", end, *sizes, "up"))

    def _routes(self) -> Iterable[Step]:
        ends = (
            (self._ip_client, self.names.client_interface, self.client_address),
            (self._ip_server, self.names.server_interface, self.server_address),
        )
        for (ip, end, own), other, mac in zip(
            ends,
            (self.server_address, self.client_address),
            (_SERVER_MAC, _CLIENT_MAC),
            strict=True,
        ):
            yield Step((*ip, "addr", "add", f"{own}/32", "dev", end))
            if self.mechanism != "tun":
                known = (other, "lladdr", mac, "dev", end, "nud", "permanent")
                yield Step((*ip, "neigh", "add", *known))
            yield Step((*ip, "route", "add", f"{other}/32", "dev", end, *self._congestion))
        way_out = ("default", "via", self.server_address, "dev", self.names.client_interface)
        yield Step((*self._ip_client, "route", "add", *way_out, "onlink", *self._congestion))
        if not self.server_in_netns:
            forget = ("ip", "tcp_metrics", "delete", self.client_address)
            yield Step(("sh", "-c", f"{shlex.join(forget)} 2>/dev/null || true"))

    def _shaping(self) -> Iterable[Step]:
        names = self.names
        client_tc: Command = ("tc", "-n", names.client_netns)
        server_tc: Command = ("tc", "-n", names.server_netns) if self.server_in_netns else ("tc",)
        both = (
            (client_tc, names.client_interface, self.up),
            (server_tc, names.server_interface, self.down),
        )
        for tc, interface, pipe in both:
            yield from map(Step, shaping_commands(tc, interface, pipe, self.mechanism))

    @property
    def _ip_client(self) -> Command:
        return ("ip", "-n", self.names.client_netns)

    @property
    def _ip_server(self) -> Command:
        return ("ip", "-n", self.names.server_netns) if self.server_in_netns else ("ip",)

    @property
    def _congestion(self) -> Command:
        return () if self.tcp is None else ("congctl", self.tcp)


def congestion_commands(layout: Layout, tcp: str) -> list[Command]:
    """Commands that change the congestion control of new connections in both directions."""
    names = layout.names
    server_ip: Command = ("ip", "-n", names.server_netns) if layout.server_in_netns else ("ip",)
    return [
        (*ip, "route", "replace", f"{address}/32", "dev", interface, "congctl", tcp)
        for ip, address, interface in (
            (("ip", "-n", names.client_netns), layout.server_address, names.client_interface),
            (server_ip, layout.client_address, names.server_interface),
        )
    ]


def end_processes(netns: str) -> str:
    """Shell that ends what still runs in a namespace of ours: asks, and after 2 s insists."""
    return (
        f"s=TERM; for i in $(seq 40); do p=$(ip netns pids {netns} 2>/dev/null); "
        '[ -n "$p" ] || break; '
        "[ $i = 1 ] || [ $i = 20 ] && kill -$s $p 2>/dev/null; s=KILL; sleep 0.1; done"
    )


def address_pair(number: int, used: Iterable[str] = ()) -> tuple[str, str]:
    """(server, client) addresses: pair ``number``, or the next of which none is ``used``."""
    taken = set(used)
    for step in range(_PAIRS):
        first = _NETWORK + 4 * ((number + step) % _PAIRS) + 1
        pair = _dotted(first), _dotted(first + 1)
        if not taken.intersection(pair):
            return pair
    raise ValueError("all addresses are in use")


def script(layout: Layout, command: Sequence[str], server: Sequence[str]) -> str:
    """The whole run as lines of shell: build, run ``command``, take down."""
    lines = []
    undo = []
    for step in layout.steps():
        lines.append(shlex.join(step.do) + (" &" if step.stays else ""))
        if step.stays:
            end = shlex.quote(layout.names.server_interface)
            lines += ["box=$!", f"until ip link show {end} > /dev/null 2>&1; do sleep 0.1; done"]
            undo.append('kill "$box"')
        if step.undo:
            undo.append(shlex.join(step.undo))
    if server:
        lines.append(shlex.join(layout.inside(layout.names.server_netns, server)) + " &")
    lines.append(f"export FEDSYS_SERVER={layout.server_address}")
    lines.append(shlex.join(layout.inside(layout.names.client_netns, command)))
    return "\n".join([*lines, *reversed(undo)]) + "\n"


def _dotted(address: int) -> str:
    return ".".join(str(address >> shift & 0xFF) for shift in (24, 16, 8, 0))
