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


@dataclass(frozen=True, slots=True)
class Case:
    """POSTs of one size over one link."""

    mbps: float
    rtt_ms: float
    loss_fraction: float
    tcp: Tcp
    size_bytes: int

    @property
    def name(self) -> str:
        """For people, and the key under which its figures are kept."""
        loss = f", {100 * self.loss_fraction:g} % loss" if self.loss_fraction else ""
        size = f"{self.size_bytes // 1000} kB" if self.size_bytes < 1e6 else ""
        size = size or f"{self.size_bytes // 10**6} MB"
        return f"{self.mbps:g} Mbit/s, {self.rtt_ms:g} ms{loss}, {self.tcp}, {size}"

    @property
    def bound(self) -> float | None:
        """The error that is allowed."""
        large = self.size_bytes >= 1_000_000
        if self.loss_fraction == 0:
            return 0.05 if large else 0.10
        if self.tcp == "cubic":
            return 0.20
        return 0.05 if large else None

    @property
    def repeats(self) -> int:
        """POSTs, of which the median counts."""
        if self.loss_fraction > 0:
            return SEEDS if self.tcp == "cubic" else 5
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
                loss_fraction=loss,
            )
            for loss in (self.loss_fraction, 0.0)
        )
        return Link(up=up, down=down, tcp=self.tcp, tls=False)


def cases() -> Iterator[tuple[Case, bool]]:
    """All cases, and whether each is part of a quick run."""
    tcps: tuple[Tcp, Tcp] = ("cubic", "bbr")
    for mbps, rtt_ms in CLEAN:
        for tcp in tcps:
            for size_bytes in SIZES_BYTES:
                case = Case(mbps, rtt_ms, 0.0, tcp, size_bytes)
                if case.ideal_s <= _LONGEST_S:
                    yield case, (mbps, size_bytes) in ((8.0, 1_000_000), (5.0, 100_000))
    for mbps, rtt_ms, loss in LOSSY:
        for tcp in tcps:
            for size_bytes in SIZES_BYTES[: 2 if tcp == "cubic" else 3]:
                case = Case(mbps, rtt_ms, loss, tcp, size_bytes)
                if case.ideal_s <= _LONGEST_S:
                    quick = (mbps, tcp, size_bytes) in (
                        (8.0, "cubic", 100_000),
                        (8.0, "bbr", 10**6),
                    )
                    yield case, quick


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
                fitted=(case.mbps, case.rtt_ms) in FITTED,
            ),
            measure=partial(_measure, case),
            seconds=case.repeats * case.ideal_s,
            quick=quick,
        )
        for case, quick in cases()
    ]


def skipped() -> str | None:
    """Why this level cannot be measured here, in one line; None if it can."""
    reasons = {why_not(case.link()) for case, _ in cases()} - {None}
    return next(iter(sorted(str(reason) for reason in reasons)), None)


def virtual_s(case: Case) -> float:
    """What virtual time says of a POST: the body's way up, and the reply's way down."""
    link = case.link()
    seeds = range(VIRTUAL_SEEDS if case.loss_fraction else 1)
    times_s = [
        plan_transfer(link, "up", case.size_bytes, 0.0, seed=seed, flow=("post",)).finish_s()
        for seed in seeds
    ]
    return statistics.median(times_s) + link.down.delay_ms / 1000


def _measure(case: Case, row: Row) -> Row:
    with KernelPath(case.link(), seed=1, flow=(case.name,)) as path:
        times_s = [path.post(case.size_bytes) for _ in range(case.repeats)]
    note = "; ".join(path.notes)
    measured_s = statistics.median(times_s)
    return compared(row, measured_s, virtual_s(case), case.repeats, note)
