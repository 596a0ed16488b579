"""The server under supervision: a SuperLink that is started again, and devices kept up to date."""

from collections.abc import Callable
from dataclasses import dataclass, field

from fedsys.clock import WallClock
from fedsys.deploy import _flower
from fedsys.deploy.children import Child, check_port, free_port, listens
from fedsys.deploy.control import Control
from fedsys.deploy.handshake import bypass_loopback
from fedsys.deploy.home import ServerHome
from fedsys.deploy.orders import HOME
from fedsys.errors import DeployError

LOOK_S = 0.25
SYNC_S = 1.0
"""How soon an enrolment or a revocation counts."""
START_S = 60.0
FIRST_WAIT_S = 1.0
MAX_WAIT_S = 30.0
MALLOC = {"MALLOC_ARENA_MAX": "2", "MALLOC_TRIM_THRESHOLD_": "1000000"}
"""For glibc: forty threads, each with a heap that keeps the pieces of updates that it has had."""
STEADY_S = 60.0
"""A SuperLink that ran so long failed for a new reason: it is started again at once."""


@dataclass(slots=True)
class Backoff:
    """Waits that double, up to a limit, and begin anew after a long good time."""

    first_s: float = FIRST_WAIT_S
    limit_s: float = MAX_WAIT_S
    steady_s: float = STEADY_S
    _next_s: float = field(default=0.0, init=False)

    def after(self, ran_s: float) -> float:
        """How long to wait, now that it failed after ``ran_s``."""
        if ran_s >= self.steady_s:
            self._next_s = 0.0
        wait_s = self._next_s or self.first_s
        self._next_s = min(2 * wait_s, self.limit_s)
        return wait_s


class Server:
    """A SuperLink on one folder; ``serve`` runs until it is told to stop."""

    def __init__(
        self, home: ServerHome, *, host: str = "0.0.0.0", say: Callable[[str], None] = print
    ) -> None:
        """``host`` is the address to listen at; ``say`` gets a line for each event."""
        self._home = home
        self._host = host
        self._say = say
        self._clock = WallClock()
        self._child: Child | None = None
        self._registered: dict[str, int] = {}
        self._revoked: set[str] = set()

    def serve(self, stop: Callable[[], bool], on_ready: Callable[[], None] = lambda: None) -> None:
        """Run until ``stop()``. DeployError where the SuperLink cannot even be started once."""
        if fault := check_port(self._host, self._home.port):
            raise DeployError(f"port {self._home.port} of {self._host} cannot be had: {fault}")
        bypass_loopback()
        control_port = free_port()
        backoff = Backoff()
        with self._home.claimed(control_port):
            try:
                self._start(control_port, stop)
                on_ready()
                while not stop():
                    start_s = self._clock.now_s()
                    self._attend(control_port, stop)
                    if not stop():
                        wait_s = backoff.after(self._clock.now_s() - start_s)
                        self._say(f"the SuperLink has ended; it is started again in {wait_s:.0f} s")
                        self._wait(wait_s, stop)
                        self._restart(control_port, stop)
            finally:
                if self._child is not None:
                    self._child.stop()

    def _start(self, control_port: int, stop: Callable[[], bool]) -> None:
        if self._child is not None:
            self._child.stop()
        settings = {
            "home": str(self._home.path),
            "host": self._host,
            "port": self._home.port,
            "control_port": control_port,
            "token": self._home.token,
        }
        self._child = Child(
            "superlink",
            settings,
            log=self._home.path / "logs" / "superlink.log",
            environment={
                "FLWR_HOME": str(self._home.path / "flower"),
                HOME: str(self._home.path),
                **MALLOC,
            },
            on_line=self._on_line,
        )
        until_s = self._clock.now_s() + START_S
        while not (listens(control_port) and listens_at(self._host, self._home.port)):
            if stop():
                return
            if self._child.poll() is not None or self._clock.now_s() > until_s:
                log = self._home.path / "logs" / "superlink.log"
                raise DeployError(f"the SuperLink does not start; see {log}")
            self._clock.sleep_s(0.1)

    def _restart(self, control_port: int, stop: Callable[[], bool]) -> None:
        """Start it again; what fails now may do better next time."""
        try:
            self._start(control_port, stop)
            authority = (self._home.path / "ca.crt").read_bytes()
            with Control(control_port, authority, self._home.token) as control:
                for run in control.runs():
                    if not run.is_finished:  # its ServerApp has lost its place; say so at once
                        control.stop_run(run.run_id)
        except DeployError as error:
            self._say(str(error))

    def _attend(self, control_port: int, stop: Callable[[], bool]) -> None:
        """Keep devices as the folder says, until the SuperLink ends."""
        authority = (self._home.path / "ca.crt").read_bytes()
        self._registered.clear()
        self._revoked.clear()
        synced_s = float("-inf")
        with Control(control_port, authority, self._home.token) as control:
            while not stop() and self._child is not None and self._child.poll() is None:
                if self._clock.now_s() - synced_s >= SYNC_S:
                    synced_s = self._clock.now_s()
                    try:
                        self._sync(control)
                    except DeployError as error:
                        self._say(str(error))
                self._clock.sleep_s(LOOK_S)

    def _sync(self, control: Control) -> None:
        entries = self._home.nodes()
        pending = [e for e in entries if not e.revoked and e.name not in self._registered]
        revoked = [e for e in entries if e.revoked and e.name not in self._revoked]
        if not pending and not revoked:
            return
        known = {node.public_key: node.node_id for node in control.nodes()}
        for entry in pending:
            node_id = known.get(_flower.key_bytes(entry.public_key))
            if node_id is None:
                node_id = control.register(entry.name, entry.public_key)
                self._say(f"device {entry.name} may come")
            self._registered[entry.name] = node_id
        for entry in revoked:
            node_id = known.get(_flower.key_bytes(entry.public_key))
            if node_id is not None:
                control.unregister(node_id)
                self._say(f"device {entry.name} is revoked")
            self._revoked.add(entry.name)
            self._registered.pop(entry.name, None)

    def _wait(self, seconds: float, stop: Callable[[], bool]) -> None:
        until_s = self._clock.now_s() + seconds
        while self._clock.now_s() < until_s and not stop():
            self._clock.sleep_s(LOOK_S)

    def _on_line(self, line: str) -> None:
        if line.startswith("refused:"):
            self._say(line)


def listens_at(host: str, port: int) -> bool:
    """Whether the devices' port takes connections, seen from this machine."""
    import socket

    target = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    family = socket.AF_INET6 if ":" in target else socket.AF_INET
    with socket.socket(family) as probe:
        probe.settimeout(1)
        return probe.connect_ex((target, port)) == 0
