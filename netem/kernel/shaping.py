"""The ``tc`` commands that give one end of a pair of interfaces its rate, delay and loss."""

from netem.kernel.pipe import Mechanism, Pipe
from netem.loss import loss_chain

_ETHERNET_BYTES = 14
"""Header that tc counts and a link's rate does not."""
_PACKET_BYTES = 1500
_LATE_S = 0.002
"""How late a timer may fire without loss of rate: the bucket holds what flows in this time."""
_MAX_BPS = 1e11
"""Above this a rate is no rate."""

Command = tuple[str, ...]


def shaping_commands(
    tc: Command, interface: str, pipe: Pipe, mechanism: Mechanism
) -> list[Command]:
    """Commands in order, each beginning with ``tc``, for packets that leave by ``interface``.

    Rates count IP packets: a size table takes the Ethernet header off again. With netem, loss
    and delay come before the rate, so a lost packet takes no capacity.
    """
    if mechanism == "tun":
        return []
    commands: list[Command] = []
    parent: Command = ("root",)
    if mechanism == "netem" and (pipe.delay_ms > 0 or pipe.loss_fraction > 0):
        commands.append((*tc, "qdisc", "add", "dev", interface, "root", *_netem(pipe)))
        parent = ("parent", "1:1")
    bps = pipe.constant_bps
    if bps is None or bps > _MAX_BPS:
        return commands
    add = (*tc, "qdisc", "add", "dev", interface)
    stab = ("stab", "overhead", str(-_ETHERNET_BYTES), "linklayer", "ethernet")
    rate, burst = f"{max(8, round(bps))}bit", str(burst_bytes(bps))
    if mechanism != "htb":
        limit = str(max(pipe.queue_bytes, _PACKET_BYTES))
        tbf = ("tbf", "rate", rate, "burst", burst, "limit", limit)
        return [*commands, (*add, *parent, "handle", "10:", *stab, *tbf)]
    limit = str(max(pipe.queue_bytes, _PACKET_BYTES + _ETHERNET_BYTES))
    leaf = ("htb", "rate", rate, "ceil", rate, "burst", burst, "cburst", burst)
    return [
        (*add, "root", "handle", "10:", *stab, "htb", "default", "1"),
        (*tc, "class", "add", "dev", interface, "parent", "10:", "classid", "10:1", *leaf),
        (*add, "parent", "10:1", "handle", "11:", "bfifo", "limit", limit),
    ]


def burst_bytes(bps: float) -> int:
    """The bucket of a rate limiter: one packet, and what flows while a timer is late."""
    return _PACKET_BYTES + round(bps * _LATE_S / 8)


def _netem(pipe: Pipe) -> Command:
    """Delay, and loss as the same chain that the box runs; a queue that never drops."""
    command: Command = ("handle", "1:", "netem", "limit", "100000")
    if pipe.delay_ms > 0:
        command = (*command, "delay", f"{pipe.delay_ms:.3f}ms")
    if pipe.loss_fraction > 0:
        begins, ends = loss_chain(pipe.loss_fraction, pipe.loss_burst_packets)
        chance = (f"{100 * begins:.6f}%", f"{100 * ends:.6f}%", "100%", "0%")
        command = (*command, "loss", "gemodel", *chance)
    return command
