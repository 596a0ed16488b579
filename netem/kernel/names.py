"""What a run calls the things it makes in the kernel, so that a later run can tell whose they are.

A namespace is named after its owner's process and that process's start, because numbers of
processes come back.
"""

import itertools
import os
import re
from dataclasses import dataclass
from pathlib import Path

NAMED = Path("/run/netns")
"""Where iproute2 keeps namespaces that have a name."""
_NAMESPACE = re.compile(r"fedsys-(\d+)-(\d+)-(\d+)-[cs]")
_serials = itertools.count()
_INTERFACE = re.compile(r"fs(\d+)n\d+[cs]")


@dataclass(frozen=True, slots=True)
class Names:
    """The names of one path: its ``serial``-th that process ``pid`` made."""

    pid: int
    born_ticks: int
    """Start of the process in clock ticks since boot, as in /proc."""
    serial: int

    @classmethod
    def fresh(cls) -> "Names":
        """Names that this process has not given yet."""
        pid = os.getpid()
        return cls(pid, born_ticks(pid) or 0, next(_serials))

    @property
    def client_netns(self) -> str:
        """The namespace that the client's commands run in."""
        return f"fedsys-{self.pid}-{self.born_ticks}-{self.serial}-c"

    @property
    def server_netns(self) -> str:
        """The namespace at the far end, where that is not the host."""
        return f"fedsys-{self.pid}-{self.born_ticks}-{self.serial}-s"

    @property
    def client_interface(self) -> str:
        """The client's end of the link; the kernel allows 15 characters."""
        return f"fs{self.pid}n{self.serial % 10_000}c"

    @property
    def server_interface(self) -> str:
        """The far end of the link."""
        return f"fs{self.pid}n{self.serial % 10_000}s"


def born_ticks(pid: int) -> int | None:
    """When process ``pid`` began, in clock ticks since boot; None if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])


def stale_namespaces() -> list[str]:
    """Namespaces of ours whose owner is gone, in order."""
    if not NAMED.is_dir():
        return []
    matches = (_NAMESPACE.fullmatch(path.name) for path in NAMED.iterdir())
    return sorted(m[0] for m in matches if m and born_ticks(int(m[1])) != int(m[2]))


def stale_interfaces() -> list[str]:
    """Interfaces of ours in this namespace whose owner is gone, in order."""
    matches = (_INTERFACE.fullmatch(path.name) for path in Path("/sys/class/net").iterdir())
    return sorted(m[0] for m in matches if m and born_ticks(int(m[1])) is None)
