"""A link between two namespaces, for programs: ``with KernelPath(link, seed=1) as path``."""

import json
import subprocess
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from fedsys.errors import ConfigError, DeployError
from netem.kernel import probe
from netem.kernel.box import Job
from netem.kernel.layout import Layout, address_pair, congestion_commands
from netem.kernel.names import Names
from netem.kernel.pipe import mechanism_for, pipe_of
from netem.kernel.session import Session, box_command, clean
from netem.kernel.system import execute
from netem.link import Link

_PEER = "netem.kernel.http_peer"
_END_S = 5.0
_POST_LIMIT_S = 600.0


def why_not(link: Link, *, force_tun: bool = False) -> str | None:
    """Why this process cannot enforce ``link`` in this kernel, in one line, or None if it can."""
    if not probe.is_root():
        return "needs root, or a user namespace around the program"
    reason = probe.why_not("netns")
    if reason is not None:
        return f"no network namespaces: {reason}"
    try:
        mechanism_for((pipe_of(link.up), pipe_of(link.down)), probe.why_not, force_tun)
    except ConfigError as error:
        return str(error)
    if link.tcp != "none" and (reason := probe.why_not(f"{link.tcp} by route")):
        return f"no congestion control {link.tcp}: {reason}"
    return None


class KernelPath:
    """Two namespaces with ``link`` between them, there inside the ``with`` block.

    ``flow`` names the path's draws of loss and jitter under ``seed``. The link's time 0 is its
    first packet where the box carries it. The thread that enters the block must outlive it: the
    box ends with it. Raises ConfigError where ``why_not`` has a reason,
    DeployError where a command fails.
    """

    def __init__(
        self,
        link: Link,
        seed: int,
        flow: tuple[str | int, ...] = (),
        *,
        force_tun: bool = False,
    ) -> None:
        reason = why_not(link, force_tun=force_tun)
        if reason is not None:
            raise ConfigError(f"kernel level: {reason}")
        up, down = pipe_of(link.up), pipe_of(link.down)
        names = Names.fresh()
        server_address, client_address = address_pair(0)
        self.layout = Layout(
            names=names,
            mechanism=mechanism_for((up, down), probe.why_not, force_tun),
            up=up,
            down=down,
            tcp=None if link.tcp == "none" else link.tcp,
            server_in_netns=True,
            client_address=client_address,
            server_address=server_address,
            box=box_command(None, seed, 0, (names.client_interface, names.server_interface)),
        )
        self.notes: list[str] = []
        """What a reader of the results should know; complete after the ``with`` block."""
        self._session = Session(self.layout, self.notes.append, Job(up, down, seed, flow))
        self._server: subprocess.Popen[bytes] | None = None
        self._port = 0

    @property
    def server_address(self) -> str:
        """Where the client finds the server; a server may listen on all addresses."""
        return self.layout.server_address

    @property
    def report(self) -> dict[str, dict[str, int]]:
        """Packets by direction: sent, lost, dropped, late; from the box, after the block."""
        return self._session.report

    def __enter__(self) -> Self:
        clean()
        self._session.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._end_server()
        finally:
            self._session.close()

    def client_command(self, argv: Sequence[str]) -> list[str]:
        """``argv`` as a command that runs at the client's end."""
        return self.layout.inside(self.layout.names.client_netns, argv)

    def server_command(self, argv: Sequence[str]) -> list[str]:
        """``argv`` as a command that runs at the server's end."""
        return self.layout.inside(self.layout.names.server_netns, argv)

    def post(self, size_bytes: int, tcp: str | None = None, *, connect: bool = False) -> float:
        """Seconds of one HTTP POST of ``size_bytes``, from its first byte to the end of the reply.

        Each POST has a new connection; ``connect`` counts the time to make it. ``tcp`` is the
        congestion control of this and later connections. Raises DeployError if the POST fails or
        another congestion control was in force.
        """
        if self._server is None:
            self._server, self._port = self._start_server()
        if tcp is not None:
            for argv in congestion_commands(self.layout, tcp):
                execute(argv)
        want = [sys.executable, "-m", _PEER, "post", self.server_address, str(self._port)]
        found = self._ask([*want, str(size_bytes), *(["--connect"] if connect else [])])
        if tcp is not None and found["tcp"] != tcp:
            raise DeployError(f"asked for congestion control {tcp}, got {found['tcp']}")
        return float(found["seconds"])

    def _ask(self, argv: list[str]) -> dict[str, Any]:
        done = subprocess.run(
            self.client_command(argv),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_POST_LIMIT_S,
            check=False,
        )
        if done.returncode != 0:
            raise DeployError(f"HTTP POST failed: {done.stderr.strip().splitlines()[-1:]}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def _start_server(self) -> tuple[subprocess.Popen[bytes], int]:
        server = subprocess.Popen(
            self.server_command([sys.executable, "-m", _PEER, "serve", self.server_address]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert server.stdout is not None
        line = server.stdout.readline()
        if not line:
            raise DeployError("the HTTP server at the far end did not start")
        return server, int(line)

    def _end_server(self) -> None:
        server, self._server = self._server, None
        if server is None:
            return
        server.terminate()
        try:
            server.communicate(timeout=_END_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.communicate()
