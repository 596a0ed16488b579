"""A process between two TUN interfaces that carries packets from one to the other as a link does.

``python -m netem.kernel.box CLIENT_TUN SERVER_TUN --link TEXT --seed N --node N`` makes both
interfaces where it runs; whoever started it moves them into namespaces. Without ``--link`` it
reads a pickled ``Job`` from standard input. It ends with its parent, and on SIGTERM; then it says
in one line of JSON what it did.
"""

import argparse
import contextlib
import ctypes
import fcntl
import gc
import json
import os
import pickle
import select
import signal
import socket
import struct
import sys
from collections import deque
from dataclasses import dataclass
from types import FrameType

from fedsys.clock import WallClock
from fedsys.rng import rng_for
from netem.kernel.bottleneck import Bottleneck
from netem.kernel.pipe import Pipe, pipe_of

_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_PR_SET_PDEATHSIG = 1
_BATCH_PACKETS = 64
"""Packets read from one side before the other side gets its turn."""
_MAX_PACKET_BYTES = 65_536
_LATE_S = 0.002
_TRIALS, _TRIAL_PACKETS = 5, 500


@dataclass(frozen=True, slots=True)
class Job:
    """What a box carries; chance comes from ``seed`` and ``flow``."""

    up: Pipe
    down: Pipe
    seed: int
    flow: tuple[str | int, ...]


class Box:
    """Both directions between the two open TUNs."""

    def __init__(self, job: Job, client_fd: int, server_fd: int) -> None:
        self._ways = (
            _Way(Bottleneck(job.up, rng_for(job.seed, "kernel", *job.flow, "up")), server_fd),
            _Way(Bottleneck(job.down, rng_for(job.seed, "kernel", *job.flow, "down")), client_fd),
        )
        self._by_source = {client_fd: self._ways[0], server_fd: self._ways[1]}
        self._clock = WallClock()
        self._began_s: float | None = None

    def carry(self) -> None:
        """Carry packets until a signal handler raises."""
        sources = list(self._by_source)
        while True:
            dues_s = [way.line[0][0] for way in self._ways if way.line]
            wait_s = max(0.0, min(dues_s) - self._now_s()) if dues_s else None
            for fd in select.select(sources, (), (), wait_s)[0]:
                self._take_all(fd)
            now_s = self._now_s()
            for way in self._ways:
                way.hand_on(now_s)

    def report(self) -> dict[str, dict[str, int]]:
        """Packets of each direction by what became of them."""
        names = ("up", "down")
        return {name: way.report() for name, way in zip(names, self._ways, strict=True)}

    def _take_all(self, fd: int) -> None:
        way = self._by_source[fd]
        for _ in range(_BATCH_PACKETS):
            try:
                packet = os.read(fd, _MAX_PACKET_BYTES)
            except BlockingIOError:
                return
            if packet[0] >> 4 != 4:
                continue
            if self._began_s is None:
                self._began_s = self._clock.now_s()
            due_s = way.bottleneck.take(self._now_s(), len(packet))
            if due_s is not None:
                way.line.append((due_s, packet))

    def _now_s(self) -> float:
        """Seconds since the first packet: the link's own time."""
        return self._clock.now_s() - self._began_s if self._began_s is not None else 0.0


class _Way:
    """One direction: packets under way, and where they come out."""

    def __init__(self, bottleneck: Bottleneck, out_fd: int) -> None:
        self.bottleneck = bottleneck
        self.line: deque[tuple[float, bytes]] = deque()
        self._out_fd = out_fd
        self._late_packets = 0

    def hand_on(self, now_s: float) -> None:
        """Let out every packet whose time has come."""
        line = self.line
        while line and line[0][0] <= now_s:
            due_s, packet = line.popleft()
            self._late_packets += now_s - due_s > _LATE_S
            os.write(self._out_fd, packet)

    def report(self) -> dict[str, int]:
        """Packets by what became of them."""
        bottleneck = self.bottleneck
        return {
            "sent": bottleneck.sent_packets,
            "lost": bottleneck.lost_packets,
            "dropped": bottleneck.dropped_packets,
            "late": self._late_packets,
        }


def packets_per_s(job: Job) -> float:
    """How many packets this machine can carry in a second now, tried on a pair of sockets.

    Measured beside it, a packet through a TUN costs four times this trial, which is taken off.
    """
    clock, packet = WallClock(), bytes(1500)
    trials_s = []
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with near, far:
        for _ in range(_TRIALS):
            bottleneck = Bottleneck(job.up, rng_for(0, "trial"))
            begin_s = clock.now_s()
            for number in range(_TRIAL_PACKETS):
                os.write(near.fileno(), packet)
                os.read(far.fileno(), _MAX_PACKET_BYTES)
                bottleneck.take(float(number), len(packet))
            trials_s.append(clock.now_s() - begin_s)
    return _TRIAL_PACKETS / (4 * min(trials_s))


def main() -> None:
    """Open the TUNs, say that they are there, carry until told to stop."""
    parser = argparse.ArgumentParser(prog="netem.kernel.box")
    parser.add_argument("client_tun")
    parser.add_argument("server_tun")
    parser.add_argument("--link")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--node", type=int, default=1)
    chosen = parser.parse_args()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command; its owner ends us
    if chosen.link is None:
        job = pickle.load(sys.stdin.buffer)
    else:
        # Imported here: it costs half a second, and paths made by programs do without.
        from netem.spec import link_from_text

        link = link_from_text(chosen.link, chosen.seed, chosen.node)
        job = Job(pipe_of(link.up), pipe_of(link.down), chosen.seed, (chosen.node,))
    _hurry()
    limit = packets_per_s(job)
    box = Box(job, _open_tun(chosen.client_tun), _open_tun(chosen.server_tun))
    print(json.dumps({"packets_per_s": round(limit)}), flush=True)
    try:
        box.carry()
    except _Stopped:
        with contextlib.suppress(BrokenPipeError):  # nobody is left to tell
            os.write(sys.stdout.fileno(), json.dumps(box.report()).encode() + b"\n")


class _Stopped(BaseException):
    pass


def _stop(_signal: int, _frame: FrameType | None) -> None:
    raise _Stopped


def _hurry() -> None:
    """Come before ordinary processes where allowed, and never pause to collect garbage."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        return


def _open_tun(name: str) -> int:
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    return fd


if __name__ == "__main__":
    main()
