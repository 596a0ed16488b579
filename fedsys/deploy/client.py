"""A device under supervision: a SuperNode that comes back, whatever happens between."""

import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from fedsys.clock import WallClock
from fedsys.deploy import _flower
from fedsys.deploy.children import Child, free_port, threads_environment
from fedsys.deploy.enrolment import Enrolment
from fedsys.deploy.handshake import Meeting, bypass_loopback, greet, proxy_for
from fedsys.deploy.private import make_private_folder
from fedsys.deploy.refusals import REFUSED
from fedsys.deploy.server import Backoff
from fedsys.errors import ConfigError, DeployError
from fedsys.types import NodeConfig

LOOK_S = 0.25
MAX_WAIT_S = 10.0
"""Flower refuses a device that was killed for up to 60 s: it believes that it is still there."""
REFUSALS = 4
"""So often is a key refused, before that is believed: a new device may be faster than its server.
Counted until the first success; a device that was let in once tries for ever."""
LOW_DISK_BYTES = 256 << 20
_CONNECTED = re.compile(r"SuperNode ID: (\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a device has to work with."""

    state: Path
    """Folder for residuals, models and logs."""
    data: Path | None = None
    threads: int = 1
    device: str = "auto"


class Client:
    """One device; ``serve`` runs until it is told to stop."""

    def __init__(
        self, enrolment: Enrolment, place: Place, *, say: Callable[[str], None] = print
    ) -> None:
        """``enrolment`` has its key in the clear; ``say`` gets a line for each event."""
        self._enrolment = enrolment
        self._place = place
        self._say = say
        self._clock = WallClock()
        self._child: Child | None = None
        self._was_connected = False
        self._refusals = 0
        self._reason = ""

    def serve(self, stop: Callable[[], bool]) -> None:
        """Take part until ``stop()``. DeployError for what trying again does not mend."""
        make_private_folder(self._place.state)
        bypass_loopback()
        backoff = Backoff(limit_s=MAX_WAIT_S)
        if proxy := proxy_for(self._enrolment.address):
            self._say(f"connections go through the proxy {proxy}, as the environment says")
        with _locked(self._place.state):
            while not stop():
                start_s = self._clock.now_s()
                self._once(stop)
                if stop():
                    return
                wait_s = backoff.after(self._clock.now_s() - start_s)
                self._say(f"{self._reason}; tries again in {wait_s:.0f} s")
                self._wait(wait_s, stop)

    def _once(self, stop: Callable[[], bool]) -> None:
        """Connect, and be there until the SuperNode ends or is to stop."""
        self._check_disk()
        if not proxy_for(self._enrolment.address):
            greeting = greet(self._enrolment.address, self._enrolment.authority)
            self._reason = greeting.reason
            if greeting.meeting is Meeting.NOT_TRUSTED and not self._was_connected:
                raise DeployError(greeting.reason)
            if greeting.meeting is not Meeting.OK:
                return
        self._reason = "the SuperNode has ended"
        self._child = self._start()
        try:
            while not stop() and self._child.poll() is None:
                self._clock.sleep_s(LOOK_S)
        finally:
            self._child.stop()
        if self._refusals >= REFUSALS and not self._was_connected:
            raise DeployError(self._reason)

    def _start(self) -> Child:
        enrolment, place, pace = self._enrolment, self._place, self._enrolment.pace
        (place.state / "flower").mkdir(mode=0o700, exist_ok=True)
        settings = {
            "address": enrolment.address,
            "authority": enrolment.authority.decode(),
            "private_key": enrolment.key.private.decode(),
            "runtime_port": free_port(),
            "node_config": self._node_config(),
        }
        environment = {
            "FLWR_HOME": str(place.state / "flower"),
            _flower.CHUNK_BYTES: str(pace.chunk_bytes),
            _flower.PUSHES: str(pace.connections),
            _flower.PULLS: str(pace.connections),
            **threads_environment(place.threads),
        }
        if place.device == "cpu":
            environment["CUDA_VISIBLE_DEVICES"] = ""
        return Child(
            "supernode",
            settings,
            log=place.state / "supernode.log",
            environment=environment,
            on_line=self._on_line,
        )

    def _node_config(self) -> NodeConfig:
        config: NodeConfig = {
            "name": self._enrolment.node,
            "partition-id": self._enrolment.partition,
            "state-dir": str(self._place.state / "rounds"),
            "durable": True,
            "threads": self._place.threads,
        }
        if self._place.data is not None:
            config["data"] = str(self._place.data)
        return config

    def _on_line(self, line: str) -> None:
        """Learn from what the SuperNode prints; called in the thread that reads it."""
        if match := _CONNECTED.search(line):
            self._was_connected = True
            self._refusals = 0
            self._say(f"connected to {self._enrolment.address} as {self._enrolment.node}")
        elif line.startswith(REFUSED):
            self._refusals += 1
            self._reason = line.removeprefix(REFUSED).strip()
            self._say(line)
        elif "No space left on device" in line:
            self._reason = f"the disk of {self._place.state} is full"
            self._say(self._reason)
        elif "Exit Code: 305" in line or "could not be activated" in line:
            self._reason = "the server believes that this device is still connected"
        elif match := re.search(r"Receiving: (\w+) message|Sent successfully", line):
            self._say("training" if match[1] else "update sent")

    def _check_disk(self) -> None:
        free_bytes = shutil.disk_usage(self._place.state).free
        if free_bytes < LOW_DISK_BYTES:
            self._say(
                f"only {free_bytes >> 20} MiB are free where {self._place.state} is; without space "
                "for the model and what was not sent yet, rounds fail"
            )

    def _wait(self, seconds: float, stop: Callable[[], bool]) -> None:
        until_s = self._clock.now_s() + seconds
        while self._clock.now_s() < until_s and not stop():
            self._clock.sleep_s(LOOK_S)


@contextmanager
def _locked(folder: Path) -> Iterator[IO[bytes]]:
    """Nobody else uses the folder meanwhile; ConfigError where somebody does."""
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    with os.fdopen(handle, "rb+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(
                f"{folder}: another client runs with this state; give each its own --state"
            ) from None
        yield file
