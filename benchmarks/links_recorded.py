"""Recorded traces: what they say by themselves, and what virtual time makes of them.

``Recording`` reads the raw lines anew and shares no code with ``netem.traces``.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.links_cells import Cell, Row, compared
from fedsys.types import F64
from netem.link import Link, Way
from netem.spec import link_from_text
from netem.transfer import plan_transfer

SECTION = "recorded"
BOUND = 0.01
FOLDER = Path(__file__).parents[2] / "shared" / "traces"
_PACKET_PAYLOAD_BYTES = 1448
_PARTS = 19
"""Transfers that are tried, each a tenth of the recording longer than the one before."""


@dataclass(frozen=True, slots=True)
class Recording:
    """Bytes that one direction of a trace lets pass by each of its stamps.

    at_s    float64 [m]  s, ascending
    passed  float64 [m]  bytes of payload since the beginning
    stairs  whether bytes come at the stamps, and it starts again at the last of them, or they
            come evenly from one stamp to the next, and it ends there
    """

    path: Path
    way: Way
    at_s: F64
    passed_bytes: F64
    stairs: bool

    @property
    def name(self) -> str:
        """The file, and the direction where it holds both."""
        return f"{self.path.name}{f' ({self.way})' if self.path.suffix == '.csv' else ''}"

    @property
    def mean_bps(self) -> float:
        """Over the whole recording."""
        return float(8 * self.passed_bytes[-1] / self.at_s[-1])

    def bytes_by(self, at_s: float) -> float:
        """Bytes that have passed ``at_s`` after the beginning."""
        if not self.stairs:
            return float(np.interp(at_s, self.at_s, self.passed_bytes))
        laps, local_s = divmod(at_s, float(self.at_s[-1]))
        # a packet whose millisecond it is has left, whatever the rounding of a float
        number = int(np.searchsorted(self.at_s, local_s + 1e-9, side="right"))
        rest_bytes = float(self.passed_bytes[number - 1]) if number else 0.0
        return laps * float(self.passed_bytes[-1]) + rest_bytes

    def link(self) -> Link:
        """The trace as a link in both levels: rate only."""
        return link_from_text(f"{self.path}(tcp=none, tls=false)", 1, 1)


def recordings() -> list[Recording]:
    """Every direction of every trace in ``FOLDER``; none where there is no such folder."""
    files = sorted(path for path in FOLDER.glob("*") if path.suffix != ".md")
    return [recording for path in files for recording in read(path)]


def read(path: Path) -> Iterator[Recording]:
    """Each direction that the file holds; one of a single rate counts as the way up."""
    if path.suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["State"] == "D"]
        ways: tuple[tuple[Way, str], ...] = (("up", "UL_bitrate"), ("down", "DL_bitrate"))
        for way, column in ways:
            kbits = np.array([float(row[column]) for row in rows])
            passed = np.concatenate([[0.0], np.cumsum(kbits * 1000 / 8)])
            yield Recording(path, way, np.arange(kbits.size + 1.0), passed, stairs=False)
        return
    table = np.loadtxt(path, ndmin=2)
    if table.shape[1] == 1:
        stamps_s = table[:, 0] / 1000
        passed = _PACKET_PAYLOAD_BYTES * np.arange(1.0, stamps_s.size + 1)
        yield Recording(path, "up", stamps_s, passed, stairs=True)
        return
    at_s, mbps = table[:, 0] - table[0, 0], table[:, 1]
    passed = np.concatenate([[0.0], np.cumsum(np.diff(at_s) * mbps[:-1] * 1e6 / 8)])
    yield Recording(path, "up", at_s, passed, stairs=False)


def virtual_cells() -> list[Cell]:
    """Transfers of all lengths from the beginning of each recording, in virtual time."""
    return [
        Cell(
            row=Row(
                section=SECTION,
                name=f"virtual time, {recording.name}",
                bound=BOUND,
                measured=None,
                unit="bytes",
            ),
            measure=partial(_measure, recording),
            quick=True,
        )
        for recording in recordings()
    ]


def _measure(recording: Recording, row: Row) -> Row:
    """The worst of the transfers, by bytes that the trace let pass until its end."""
    link, worst = recording.link(), row
    parts = _PARTS if recording.stairs else 10
    for part in range(1, parts + 1):
        size_bytes = int(recording.bytes_by(recording.at_s[-1] * part / 10))
        if size_bytes == 0:
            continue
        plan = plan_transfer(link, recording.way, size_bytes, 0.0, seed=1, flow=("replay",))
        one = compared(row, recording.bytes_by(plan.finish_s()), float(size_bytes), parts)
        worst = max(worst, one, key=lambda found: found.measured or 0.0)
    return worst if worst.measured is not None else one
