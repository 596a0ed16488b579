"""What this kernel can do: each thing is tried in a scratch namespace, never assumed.

Every trial is a few lines of shell that add something and delete it again. The namespace around
them ends with the shell.
"""

import functools
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from netem.kernel.names import Names
from netem.kernel.system import attempt

_VETH = "ip link add p0 type veth peer name p1; ip link set p0 up"
_STAB = "stab overhead -14 linklayer ethernet"

TRIALS: dict[str, tuple[str, str]] = {
    "veth": (f"{_VETH}; ip link del p0", "a pair of interfaces between two namespaces"),
    "tbf": (
        f"{_VETH}; tc qdisc add dev p0 root {_STAB} tbf rate 1mbit burst 3200 limit 50000; "
        "tc qdisc del dev p0 root",
        "a constant rate",
    ),
    "htb": (
        f"{_VETH}; tc qdisc add dev p0 root handle 1: {_STAB} htb default 1; "
        "tc class add dev p0 parent 1: classid 1:1 htb rate 1mbit burst 3200; "
        "tc qdisc del dev p0 root",
        "a constant rate, where tbf is missing",
    ),
    "netem": (
        f"{_VETH}; tc qdisc add dev p0 root netem delay 10ms loss gemodel 1% 50% 100% 0%; "
        "tc qdisc del dev p0 root",
        "delay and loss in the kernel",
    ),
    "ifb": ("ip link add p0 type ifb; ip link del p0", "queues for incoming packets; not used"),
    "tun": (
        "ip tuntap add dev p0 mode tun; ip tuntap del dev p0 mode tun",
        "everything else: changing rates, delay, jitter, loss, outages",
    ),
    "nft loss": (
        "nft add table ip f; nft add chain ip f c '{ type filter hook input priority 0; }'; "
        "nft add rule ip f c numgen random mod 100 '<' 5 drop; nft delete table ip f",
        "independent loss; not used",
    ),
    "iptables loss": (
        "r='INPUT -m statistic --mode random --probability 0.05 -j DROP'; "
        "iptables -w -A $r; iptables -w -D $r",
        "independent loss; not used",
    ),
    "cubic by route": (
        f"{_VETH}; ip route add 198.18.0.1/32 dev p0 congctl cubic",
        "the congestion control of a command that sets none",
    ),
    "bbr by route": (
        f"{_VETH}; ip route add 198.18.0.1/32 dev p0 congctl bbr",
        "the congestion control of a command that sets none",
    ),
    "cubic by sysctl": (
        "echo cubic > /proc/sys/net/ipv4/tcp_congestion_control",
        "the same for a whole namespace; not used",
    ),
    "bbr by sysctl": (
        "echo bbr > /proc/sys/net/ipv4/tcp_congestion_control",
        "the same for a whole namespace; not used",
    ),
}
"""Name to (shell that fails where the kernel cannot, what it is good for)."""

_OWN_RUN = (
    "if [ -d /run/netns ]; then mount -t tmpfs fedsys /run/netns; "
    "else mount -t tmpfs fedsys /run; fi"
)
IN_USER_NAMESPACE = ("unshare", "--user", "--map-root-user", "--net", "--mount")
"""What root need not start: inside it, a process has the rights of root over its own network."""
OWN_RUN = f'{_OWN_RUN} && exec "$@"'
"""Shell that gives a user namespace a folder for names of its own, and goes on with a command."""
_AS_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


@dataclass(frozen=True, slots=True)
class Capability:
    """One thing, tried as the present user and as any user in a user namespace of its own."""

    name: str
    use: str
    reason: str | None
    """Why it does not work as the present user; None if it does."""
    unprivileged_reason: str | None
    """Why it does not work without root; None if it does."""


@dataclass(frozen=True, slots=True)
class CongestionControls:
    """Names of congestion controls."""

    available: tuple[str, ...]
    allowed: tuple[str, ...]
    """Those that a socket may choose without root."""
    default: str


def is_root() -> bool:
    """Whether this process may make namespaces as it is (root, also of a user namespace)."""
    return os.geteuid() == 0


@functools.cache
def why_not(name: str) -> str | None:
    """Why the present user cannot use ``name`` here, or None; tried once in a process.

    Without root, the trial takes place in a user namespace.
    """
    return _try_as_root(name) if is_root() else _try_unprivileged(name)


def capabilities() -> Iterator[Capability]:
    """Everything in ``TRIALS``, after namespaces themselves."""
    uses = {"netns": "network namespaces with a name"}
    uses |= {name: use for name, (_, use) in TRIALS.items()}
    for name, use in uses.items():
        here = _try_as_root(name) if is_root() else "needs root"
        yield Capability(name, use, here, _try_unprivileged(name))


def congestion_controls() -> CongestionControls:
    """What the kernel has loaded of congestion control, and what it uses."""
    folder = Path("/proc/sys/net/ipv4")
    names = ("available_", "allowed_", "")
    try:
        found = [(folder / f"tcp_{name}congestion_control").read_text("ascii") for name in names]
    except OSError:
        return CongestionControls((), (), "unknown")
    return CongestionControls(tuple(found[0].split()), tuple(found[1].split()), found[2].strip())


def _try_as_root(name: str) -> str | None:
    if name == "netns":
        netns = Names.fresh().client_netns
        return attempt(["sh", "-ec", f"ip netns add {netns}; ip netns del {netns}"])
    return attempt(["unshare", "--net", "sh", "-ec", TRIALS[name][0]])


def _try_unprivileged(name: str) -> str | None:
    if is_root() and shutil.which("setpriv") is None:
        return "not tried: no command setpriv"
    user = _AS_NOBODY if is_root() else ()
    script = f"{_OWN_RUN}; ip netns add f; ip netns del f" if name == "netns" else TRIALS[name][0]
    return attempt([*user, *IN_USER_NAMESPACE, "sh", "-ec", script])
