"""Building a path, and undoing it whatever happened in between."""

import contextlib
import json
import pickle
import select
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from fedsys.errors import DeployError
from netem.kernel.box import Job
from netem.kernel.layout import Layout, end_processes
from netem.kernel.names import stale_interfaces, stale_namespaces
from netem.kernel.pipe import Pipe
from netem.kernel.shaping import Command
from netem.kernel.system import attempt, execute

_READY_S = 60.0
_END_S = 5.0
_PACKETS_PER_BIT = 1.5 / 12_000
"""Full packets of one direction, and an acknowledgement for every second one."""
_LATE_FRACTION = 0.02


class Session:
    """The path of ``layout``, there inside the ``with`` block and gone after it.

    Every step's undo is noted before the step is tried, so that half a set-up is undone too.
    Raises DeployError, with the command and its own words, where a step fails.
    """

    def __init__(self, layout: Layout, say: Callable[[str], None], job: Job | None = None) -> None:
        self.layout = layout
        self.report: dict[str, dict[str, int]] = {}
        """Packets by direction and by what became of them, from the box; filled at the end."""
        self._say = say
        """Takes what a reader of the results should know, one sentence each."""
        self._job = job
        self._undo: list[Command] = []
        self._box: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.open()
        return self

    def open(self) -> None:
        """Build the path."""
        try:
            for step in self.layout.steps():
                if step.undo:
                    self._undo.append(step.undo)
                if step.stays:
                    self._start_box(step.do)
                else:
                    execute(step.do)
        except BaseException:
            self.close()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Undo everything, newest first; harmless when there is nothing left."""
        box, self._box = self._box, None
        try:
            if box is not None:
                self._end_box(box)
        finally:
            while self._undo:
                attempt(self._undo[-1])  # what never came to be need not be undone
                self._undo.pop()  # not before: a signal may have cut the attempt short

    def _start_box(self, argv: Command) -> None:
        # stderr is not ours to read, and says why a box could not start
        box = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        self._box = box
        assert box.stdin is not None
        assert box.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            if self._job is not None:
                pickle.dump(self._job, box.stdin)
            box.stdin.close()
        box.stdin = None  # or communicate() would flush it
        ready = bool(select.select([box.stdout], [], [], _READY_S)[0])
        line = box.stdout.readline() if ready else b""
        if not line:
            raise DeployError(f"{shlex.join(argv)}: did not start")
        limit_bps = json.loads(line)["packets_per_s"] / _PACKETS_PER_BIT
        peak_bps = max(peak_bps_of(self.layout.up), peak_bps_of(self.layout.down))
        if peak_bps > limit_bps:
            self._say(
                f"the link reaches {peak_bps / 1e6:.0f} Mbit/s, but this machine carries about "
                f"{limit_bps / 1e6:.0f} Mbit/s in user space now"
            )

    def _end_box(self, box: subprocess.Popen[bytes]) -> None:
        box.terminate()
        try:
            out, _ = box.communicate(timeout=_END_S)
        except subprocess.TimeoutExpired:
            box.kill()
            out, _ = box.communicate()
        if box.returncode != 0 or not out.strip():
            self._say("the process that carries packets ended before its time")
            return
        self.report = json.loads(out)
        late = sum(way["late"] for way in self.report.values())
        sent = sum(way["sent"] for way in self.report.values())
        if late > _LATE_FRACTION * sent:
            self._say(f"{late} of {sent} packets came more than 2 ms late: the machine is too busy")


def box_command(link_text: str | None, seed: int, node: int, interfaces: Sequence[str]) -> Command:
    """Starts the box of a link with a text, or of a pickled job where there is none."""
    module = (sys.executable, "-m", "netem.kernel.box", *interfaces)
    if link_text is None:
        return module
    return (*module, "--link", link_text, "--seed", str(seed), "--node", str(node))


def peak_bps_of(pipe: Pipe) -> float:
    """The highest rate of ``pipe``."""
    return float(pipe.curve.rate_bps.max())


def clean() -> list[str]:
    """Remove what runs that were killed left behind; returns the names of what is gone.

    Only names that a process of ours gave, and only if that process is gone.
    """
    gone = [name for name in stale_namespaces() if _remove_namespace(name)]
    return gone + [n for n in stale_interfaces() if attempt(["ip", "link", "del", n]) is None]


def _remove_namespace(name: str) -> bool:
    attempt(["sh", "-c", end_processes(name)])
    return attempt(["ip", "netns", "del", name]) is None


def used_addresses() -> list[str]:
    """IPv4 addresses of this namespace's interfaces; none where ``ip`` cannot say."""
    done = subprocess.run(
        ["ip", "-json", "-4", "addr"], capture_output=True, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode != 0:
        return []
    interfaces: list[dict[str, Any]] = json.loads(done.stdout or b"[]")
    return [str(one["local"]) for interface in interfaces for one in interface.get("addr_info", [])]
