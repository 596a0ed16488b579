"""The faults that a deployment is put through, and what is done afterwards to mend each."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np

from benchmarks.deploy_lab import Lab

Rng = np.random.Generator
SLOW = "constant(up_bps=800, down_bps=800, delay_ms=50)"
"""A trickle that is never silent long enough for a time-out to see."""
SKEWS_S = (-7200, -400, 30, 7200)
RUN_DISK = "runs"
RUN_KILLED = "'fedsys run' killed"
_HELD_S = (1.0, 5.0)
_FIND_S = 6.0


@dataclass(frozen=True, slots=True)
class Fault:
    """One way in which things break."""

    name: str
    weight: float
    happen: Callable[[Lab, str, Rng], bool]
    """Breaks something of a device, mends it where it does not mend itself; False where there was
    nothing to break."""
    pause_s: float = 0.0
    """At least so long between two of the kind: each takes longer than that to get over."""
    needs: Callable[[Lab], bool] = lambda lab: True


def faults() -> list[Fault]:
    """All of them."""
    return [
        Fault("link cut for seconds", 16, _held("cut", "heal")),
        Fault("connections reset", 14, _acted(action="reset")),
        Fault("connection reset in mid-upload", 12, _reset_within),
        Fault("connections half-open", 10, _acted(action="half-open")),
        Fault("connections refused for seconds", 8, _held("refuse", "accept")),
        Fault("slow loris: 100 bytes a second", 8, _slow),
        Fault("ClientApp killed", 10, _killed("task")),
        Fault("process that forks ClientApps killed", 3, _killed("nursery"), 20),
        Fault("SuperNode killed", 4, _killed("supernode"), 30),
        Fault("proxy killed", 4, _proxy_killed, 20),
        Fault("ServerApp killed", 3, _serverapp_killed, 45),
        Fault("SuperLink killed", 3, _superlink_killed, 80),
        Fault(RUN_KILLED, 2, _run_killed, 60),
        Fault("device's clock off", 3, _skewed, 30, lambda lab: lab.has_clocks),
        Fault("device's disk full", 4, _disk_full, 15, lambda lab: bool(lab.disks)),
        Fault("server's disk full", 2, _run_disk_full, 60, lambda lab: RUN_DISK in lab.disks),
    ]


class Chaos:
    """Draws faults from a seed, and makes them happen."""

    def __init__(self, lab: Lab, rng: Rng) -> None:
        self._lab = lab
        self._rng = rng
        self._faults = [fault for fault in faults() if fault.needs(lab)]
        self._last_s: dict[str, float] = {}
        self.counts: dict[str, int] = {}

    @property
    def total(self) -> int:
        """How many have happened."""
        return sum(self.counts.values())

    def strike(self) -> str:
        """Make the next one happen; its name."""
        now_s = time.monotonic()
        ready = [
            fault
            for fault in self._faults
            if now_s - self._last_s.get(fault.name, float("-inf")) >= fault.pause_s
        ]
        weights = np.array([fault.weight for fault in ready])
        fault = ready[int(self._rng.choice(len(ready), p=weights / weights.sum()))]
        device = self._lab.devices[int(self._rng.integers(len(self._lab.devices)))]
        self._last_s[fault.name] = now_s
        if fault.happen(self._lab, device, self._rng):
            self.counts[fault.name] = self.counts.get(fault.name, 0) + 1
        return f"{fault.name} ({device})"


@contextlib.contextmanager
def _while_no_proxy() -> Iterator[None]:
    """A proxy that is just being started cannot be told anything."""
    with contextlib.suppress(httpx.HTTPError, OSError):
        yield


def _acted(**action: Any) -> Callable[[Lab, str, Rng], bool]:
    def happen(lab: Lab, device: str, rng: Rng) -> bool:
        with _while_no_proxy():
            lab.act(device, **action)
            return True
        return False

    return happen


def _held(begin: str, end: str) -> Callable[[Lab, str, Rng], bool]:
    def happen(lab: Lab, device: str, rng: Rng) -> bool:
        with _while_no_proxy():
            lab.act(device, action=begin)
            time.sleep(rng.uniform(*_HELD_S))
            lab.act(device, action=end)
            return True
        return False

    return happen


def _reset_within(lab: Lab, device: str, rng: Rng) -> bool:
    with _while_no_proxy():
        lab.act(device, action="reset", after_bytes=int(rng.integers(2_000, 60_000)), way="up")
        return True
    return False


def _slow(lab: Lab, device: str, rng: Rng) -> bool:
    with _while_no_proxy():
        lab.act(device, action="link", link=SLOW)
        time.sleep(rng.uniform(*_HELD_S))
        lab.act(device, action="link", link=lab.link)
        return True
    return False


def _killed(kind: str) -> Callable[[Lab, str, Rng], bool]:
    """kill -9 as soon as there is one."""

    def happen(lab: Lab, device: str, rng: Rng) -> bool:
        until_s = time.monotonic() + _FIND_S
        while time.monotonic() < until_s:
            if lab.kill(kind, device):
                return True
            time.sleep(0.05)
        return False

    return happen


def _serverapp_killed(lab: Lab, device: str, rng: Rng) -> bool:
    return _killed("task")(lab, "server", rng)


def _superlink_killed(lab: Lab, device: str, rng: Rng) -> bool:
    return lab.kill("superlink", "server")


def _run_killed(lab: Lab, device: str, rng: Rng) -> bool:
    if lab.running["run"].poll() is not None:
        return False
    lab.running["run"].kill()
    return True


def _proxy_killed(lab: Lab, device: str, rng: Rng) -> bool:
    lab.running["proxy"].kill()
    lab.running["proxy"].wait()
    time.sleep(rng.uniform(0.2, 2.0))
    lab.start_proxy()
    return True


def _skewed(lab: Lab, device: str, rng: Rng) -> bool:
    lab.skew(device, int(rng.choice(SKEWS_S)))
    time.sleep(8)
    lab.skew(device, 0)
    return True


def _disk_full(lab: Lab, device: str, rng: Rng) -> bool:
    return _filled(lab, f"state-{device}", rng)


def _run_disk_full(lab: Lab, device: str, rng: Rng) -> bool:
    return _filled(lab, RUN_DISK, rng)


def _filled(lab: Lab, disk: str, rng: Rng) -> bool:
    if disk not in lab.disks:
        return False
    lab.fill(disk)
    try:
        time.sleep(rng.uniform(*_HELD_S))
    finally:
        lab.empty(disk)
    return True
