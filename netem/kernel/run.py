"""One command of the user inside a namespace whose way out crosses a link."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from fedsys.clock import WallClock
from fedsys.errors import ConfigError
from netem.kernel import probe
from netem.kernel.layout import Layout, address_pair, script
from netem.kernel.names import NAMED, Names
from netem.kernel.pipe import Pipe, mechanism_for, pipe_of, rate_only
from netem.kernel.session import Session, box_command, clean, used_addresses
from netem.spec import link_from_text

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_END_S = 5.0
_LISTEN_S = 10.0
_LISTENING = "0A"
"""State of a socket in /proc/net/tcp."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the user asks for."""

    link: str
    command: tuple[str, ...]
    server: tuple[str, ...] = ()
    """A command at the far end, which then is a namespace of its own; empty makes it the host."""
    seed: int = 1
    node: int = 1
    force_tun: bool = False
    rate_only: bool = False
    """Leave out what this kernel cannot give, and keep the mean rate."""


def plan(request: Request) -> tuple[Layout, list[str]]:
    """The path that ``request`` needs, and what a user must know of it; changes nothing.

    Raises ConfigError for a bad link, and for one that this kernel cannot give.
    """
    link = link_from_text(request.link, request.seed, request.node)
    pipes = pipe_of(link.up), pipe_of(link.down)
    notes = []
    if request.rate_only:
        left_out = dict.fromkeys(what for pipe in pipes for what in pipe.asks())
        notes += [f"left out, as asked: {', '.join(left_out)}"] if left_out else []
        pipes = rate_only(pipes[0]), rate_only(pipes[1])
    reason = probe.why_not("netns")
    if reason is not None:
        raise ConfigError(f"this kernel gives no network namespaces here: {reason}")
    try:
        mechanism = mechanism_for(pipes, probe.why_not, request.force_tun)
    except ConfigError as error:
        hint = "" if request.rate_only else "; --rate-only keeps the mean rate alone"
        raise ConfigError(f"link '{request.link}': {error}{hint}") from error
    tcp, tcp_note = _congestion_control(link.tcp)
    names = Names.fresh()
    server_address, client_address = address_pair(os.getpid(), used_addresses())
    interfaces = names.client_interface, names.server_interface
    layout = Layout(
        names=names,
        mechanism=mechanism,
        up=pipes[0],
        down=pipes[1],
        tcp=tcp,
        server_in_netns=bool(request.server),
        client_address=client_address,
        server_address=server_address,
        box=box_command(request.link, request.seed, request.node, interfaces),
    )
    where = "a namespace" if request.server else "this host"
    ways = f"up {_pipe_text(pipes[0])}, down {_pipe_text(pipes[1])}"
    notes.insert(0, f"{request.link} by {mechanism}: {ways}; server at {server_address}, {where}")
    return layout, [*notes, tcp_note]


def dry_run(request: Request) -> tuple[str, list[str]]:
    """The run as a shell script, and the notes of ``plan``; changes nothing."""
    layout, notes = plan(request)
    if not probe.is_root():
        notes.append(f"as root, or after: {' '.join(probe.IN_USER_NAMESPACE)}")
    return script(layout, request.command, request.server), notes


def run(request: Request) -> int:
    """Run the command to its end; its exit code, or 128 and the number of the signal that ended it.

    FEDSYS_SERVER in its environment is the server's address. Everything made is undone, and so
    is what earlier runs left that were killed.
    """
    with _stoppable() as signals:
        try:
            gone = clean()
            layout, notes = plan(request)
            for note in [*notes, *([f"removed leftovers: {', '.join(gone)}"] if gone else [])]:
                _say(note)
            session = Session(layout, say=_say)
            try:
                session.open()
                return _run_inside(layout, request)
            finally:
                signals.hold = True
                session.close()
        except _Stopped as stopped:
            return 128 + stopped.number


def _run_inside(layout: Layout, request: Request) -> int:
    names = layout.names
    environment = {**os.environ, "FEDSYS_SERVER": layout.server_address}
    with contextlib.ExitStack() as running:
        if request.server:
            argv = layout.inside(names.server_netns, request.server)
            server = subprocess.Popen(
                argv, env=environment, stdin=subprocess.DEVNULL, stdout=sys.stderr
            )
            running.callback(_end, server)
            _await_listener(server, NAMED / names.server_netns)
        command = subprocess.Popen(
            layout.inside(names.client_netns, request.command), env=environment
        )
        running.callback(_end, command)
        try:
            code = command.wait()
        except _Stopped as stopped:
            if stopped.number == signal.SIGINT:  # a terminal has told the command as well
                with contextlib.suppress(subprocess.TimeoutExpired):
                    command.wait(_END_S)
            raise
    return code if code >= 0 else 128 - code


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask ``process`` to end; insist after a while."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _await_listener(server: subprocess.Popen[bytes], netns: Path) -> None:
    """Wait until anything listens in the server's namespace, or for a while."""
    process = Path(f"/proc/{server.pid}")
    clock = WallClock()
    until_s = clock.now_s() + _LISTEN_S
    while clock.now_s() < until_s and server.poll() is None:
        with contextlib.suppress(OSError):  # it has ended
            entered = (process / "ns/net").stat().st_ino == netns.stat().st_ino
            tables = [(process / f"net/{name}").read_text("ascii") for name in ("tcp", "tcp6")]
            rows = [row.split() for table in tables for row in table.splitlines()[1:]]
            if entered and any(row[3] == _LISTENING for row in rows):
                return
        clock.sleep_s(0.05)


def _congestion_control(wanted: str) -> tuple[str | None, str]:
    """What new connections shall use, and a note that says so."""
    controls = probe.congestion_controls()
    default = controls.default
    if wanted == "none":
        return None, f"congestion control: the kernel's default, {default}"
    reason = probe.why_not(f"{wanted} by route")
    if reason is None:
        return wanted, f"congestion control: {wanted}, set on the routes of both ends"
    has = ", ".join(controls.available)
    return None, f"congestion control: {default}, not {wanted} ({reason}; this kernel has {has})"


def _pipe_text(pipe: Pipe) -> str:
    bps = pipe.constant_bps
    rate = "changing rate" if bps is None else f"{bps / 1e6:.3g} Mbit/s"
    parts = {
        f"{pipe.delay_ms:.3g} ms": pipe.delay_ms > 0,
        f"jitter {pipe.jitter_ms:.3g} ms": pipe.jitter_ms > 0,
        f"loss {100 * pipe.loss_fraction:.3g} %": pipe.loss_fraction > 0,
    }
    return " ".join([rate, *(text for text, present in parts.items() if present)])


def _say(note: str) -> None:
    """On standard error: the command's own output stays its own."""
    print(f"fedsys netns: {note}", file=sys.stderr, flush=True)


class _Stopped(BaseException):
    """A signal asked the run to end."""

    def __init__(self, number: int) -> None:
        self.number = number


class _Signals:
    """Turns signals into ``_Stopped``, once, and not while ``hold`` is set."""

    hold = False

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """Raise once."""
        if not self.hold:
            self.hold = True
            raise _Stopped(number)


@contextlib.contextmanager
def _stoppable() -> Iterator[_Signals]:
    signals = _Signals()
    heard = [number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, signals.handle) for number in heard}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
