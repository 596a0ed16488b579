"""Virtual time against real HTTP POSTs through an emulated path in the kernel."""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from benchmarks.links_cells import Cell, Row, compared
from netem.kernel.path import KernelPath, why_not
from netem.link import Direction, Link, Tcp
from netem.rate import RateCurve
from netem.transfer import plan_transfer

SECTION = "kernel"
WORKERS = 4
"""Paths at a time; each one's packets cost a few percent of a core at these rates."""
SEEDS = 20
VIRTUAL_SEEDS = 400
SIZES_BYTES = (100_000, 1_000_000, 10_000_000)
_LONGEST_S = 18.0
"""Nothing that takes longer than this without loss is sent."""

FITTED = {(1.0, 100.0), (5.0, 50.0), (10.0, 200.0)}
"""Rate in Mbit/s and round trip in ms of the links that the model of ``netem.tcp`` was made on."""
CLEAN = (*sorted(FITTED), (0.5, 300.0), (2.0, 150.0), (3.0, 80.0), (8.0, 30.0), (20.0, 60.0))
LOSSY: tuple[tuple[float, float, float], ...] = (
    (1.0, 100.0, 0.03),
    (5.0, 50.0, 0.01),
    (5.0, 50.0, 0.03),
    (10.0, 200.0, 0.001),
    (2.0, 150.0, 0.02),
    (3.0, 80.0, 0.01),
    (8.0, 30.0, 0.005),
)
TCPS: tuple[Tcp, Tcp] = ("cubic", "bbr")


@dataclass(frozen=True, slots=True)
class Case:
    """POSTs of one size over one link."""

    mbps: float
    rtt_ms: float
    loss_fraction: float
    tcp: Tcp
    size_bytes: int
    burst_packets: float = 1.0
    jitter_ms: float = 0.0
    queue_bytes: int | None = None
    quick: bool = False

    @property
    def name(self) -> str:
        """For people, and the key under which its figures are kept."""
        parts = {
            f"{self.mbps:g} Mbit/s, {self.rtt_ms:g} ms": True,
            f"{100 * self.loss_fraction:g} % loss": self.loss_fraction > 0,
            f"bursts of {self.burst_packets:g}": self.burst_packets > 1,
            f"jitter {self.jitter_ms:g} ms": self.jitter_ms > 0,
            f"queue {(self.queue_bytes or 0) // 1000} kB": self.queue_bytes is not None,
            self.tcp: True,
            f"{self.size_bytes // 1000} kB": self.size_bytes < 1_000_000,
            f"{self.size_bytes // 10**6} MB": self.size_bytes >= 1_000_000,
        }
        return ", ".join(part for part, holds in parts.items() if holds)

    @property
    def loses(self) -> bool:
        """Whether packets are lost, on the way or at a full queue."""
        return self.loss_fraction > 0 or self.queue_bytes is not None

    @property
    def bound(self) -> float | None:
        """The error that is allowed."""
        large = self.size_bytes >= 1_000_000
        if not self.loses:
            return 0.05 if large else 0.10
        if self.tcp == "cubic":
            return 0.20
        return 0.05 if large else None

    @property
    def repeats(self) -> int:
        """POSTs, of which the median counts."""
        if self.loses:
            return SEEDS if self.tcp == "cubic" and self.loss_fraction else 5
        return 3 if self.ideal_s < 6 else 1

    @property
    def ideal_s(self) -> float:
        """Size over rate."""
        return 8 * self.size_bytes / self.mbps / 1e6

    def link(self) -> Link:
        """The link at both levels."""
        up, down = (
            Direction(
                curve=RateCurve.constant(self.mbps * 1e6),
                delay_ms=self.rtt_ms / 2,
                jitter_ms=self.jitter_ms,
                loss_fraction=loss,
                loss_burst_packets=self.burst_packets,
                queue_bytes=self.queue_bytes,
            )
            for loss in (self.loss_fraction, 0.0)
        )
        return Link(up=up, down=down, tcp=self.tcp, tls=False)


OTHERS = (
    Case(5.0, 50.0, 0.0, "cubic", 1_000_000, queue_bytes=32_000),
    Case(10.0, 100.0, 0.0, "cubic", 10_000_000, queue_bytes=64_000),
    Case(8.0, 30.0, 0.02, "cubic", 1_000_000, burst_packets=3.0),
    Case(5.0, 50.0, 0.0, "cubic", 1_000_000, jitter_ms=20.0),
    Case(5.0, 50.0, 0.0, "bbr", 1_000_000, jitter_ms=20.0),
)
"""Short queues, loss in bursts, and jitter."""
_QUICK = {(8.0, 1_000_000), (5.0, 100_000), (8.0, "cubic", 100_000), (8.0, "bbr", 1_000_000)}


def cases() -> Iterator[Case]:
    """All cases that do not take too long."""
    everything = [
        *(
            Case(mbps, rtt_ms, 0.0, tcp, size_bytes, quick=(mbps, size_bytes) in _QUICK)
            for mbps, rtt_ms in CLEAN
            for tcp in TCPS
            for size_bytes in SIZES_BYTES
        ),
        *(
            Case(mbps, rtt_ms, loss, tcp, size_bytes, quick=(mbps, tcp, size_bytes) in _QUICK)
            for mbps, rtt_ms, loss in LOSSY
            for tcp in TCPS
            for size_bytes in SIZES_BYTES[: 2 if tcp == "cubic" else 3]
        ),
        *OTHERS,
    ]
    return (case for case in everything if case.ideal_s <= _LONGEST_S)


def cells() -> list[Cell]:
    """One cell a case."""
    return [
        Cell(
            row=Row(
                section=SECTION,
                name=case.name,
                bound=case.bound,
                measured=None,
                unit="s",
                fitted=case not in OTHERS and (case.mbps, case.rtt_ms) in FITTED,
            ),
            measure=partial(_measure, case),
            seconds=case.repeats * case.ideal_s,
            quick=case.quick,
        )
        for case in cases()
    ]


def skipped() -> str | None:
    """Why this level cannot be measured here, in one line; None if it can."""
    reasons = {why_not(case.link()) for case in cases()} - {None}
    return next(iter(sorted(str(reason) for reason in reasons)), None)


def virtual_s(case: Case) -> float:
    """What virtual time says of a POST: the body's way up, and the reply's way down."""
    link = case.link()
    seeds = range(VIRTUAL_SEEDS if case.loss_fraction or case.jitter_ms else 1)
    times_s = [
        plan_transfer(link, "up", case.size_bytes, 0.0, seed=seed, flow=("post",)).finish_s()
        for seed in seeds
    ]
    back_ms = link.down.delay_ms + link.down.jitter_ms / 2
    return statistics.median(times_s) + back_ms / 1000


def _measure(case: Case, row: Row) -> Row:
    with KernelPath(case.link(), seed=1, flow=(case.name,)) as path:
        times_s = [path.post(case.size_bytes) for _ in range(case.repeats)]
    note = "; ".join(path.notes)
    measured_s = statistics.median(times_s)
    return compared(row, measured_s, virtual_s(case), case.repeats, note)
