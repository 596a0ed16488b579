"""One comparison of two levels of a link: what it must reach, what came out, and keeping that."""

import hashlib
import json
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from fedsys.errors import FedsysError

_ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One bar: ``measured`` must not exceed ``bound``, or fall short of it where ``at_least``."""

    section: str
    name: str
    bound: float | None
    """None where there is no bar."""
    measured: float | None
    """Size of the relative error, unless the name says otherwise; None where it failed."""
    at_least: bool = False
    expected: float | None = None
    """What the reference says."""
    found: float | None = None
    unit: str = ""
    """Of ``expected`` and ``found``; empty where there are none."""
    repeats: int = 1
    part: str = ""
    """Of the section; what is measured, and kept, as a whole."""
    fitted: bool = False
    """Whether the model was fitted on this link."""
    note: str = ""

    @property
    def ok(self) -> bool:
        """Whether the bar is reached, or there is none."""
        if self.measured is None:
            return False
        if self.bound is None:
            return True
        reached = self.measured >= self.bound if self.at_least else self.measured <= self.bound
        return bool(reached)

    def line(self) -> str:
        """The row for a terminal."""
        if self.measured is None:
            return f"MISS {self.name:66s} {self.note}"
        mark = "ok  " if self.ok else "MISS"
        if self.expected is None or self.found is None:
            sign = ">=" if self.at_least else "<="
            bound = "" if self.bound is None else f"{sign} {self.bound:.4g}"
            return f"{mark} {self.name:66s} {self.measured:10.4g} {bound}"
        bound = "no bar" if self.bound is None else f"<= {100 * self.bound:g} %"
        error = 100 * (self.found / self.expected - 1)
        return (
            f"{mark} {self.name:66s} {self.expected:10.4g} {self.found:10.4g} {self.unit:5s}"
            f" {error:+7.2f} % {bound} {self.note}"
        ).rstrip()

    def as_json(self) -> dict[str, object]:
        """All of it, with the verdict."""
        return asdict(self) | {"ok": self.ok}


def compared(row: Row, expected: float, found: float, repeats: int = 1, note: str = "") -> Row:
    """``row`` with what the reference says and what came out."""
    return replace(
        row,
        measured=abs(found / expected - 1),
        expected=expected,
        found=found,
        repeats=repeats,
        note=note,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One comparison that is still to be made."""

    row: Row
    """With name and bound; ``measure`` fills in the rest."""
    measure: Callable[[Row], Row]
    seconds: float = 0.0
    """How long it takes, about; the longest begin first."""
    quick: bool = False
    """Part of a quick run."""

    def done(self) -> Row:
        """The finished row; where the level failed, with its reason in place of a figure."""
        try:
            return self.measure(self.row)
        except (FedsysError, OSError) as error:
            return replace(self.row, note=" ".join(str(error).split()))


class Store:
    """Finished rows in a file of JSON lines, so that an interrupted run goes on where it was.

    Rows that other code has measured are not taken up. ``path`` None keeps nothing.
    """

    def __init__(self, path: Path | None, code: str) -> None:
        self.taken_up = 0
        """Rows that were there before."""
        self._path = path
        self._code = code
        self._rows: dict[tuple[str, str], Row] = {}
        if path is not None and path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                kept = json.loads(line)
                if kept["code"] == code:
                    row = Row(**kept["row"])
                    self._rows[row.section, row.name] = row

    def find(self, row: Row) -> Row | None:
        """The finished row of that name, if there is one."""
        found = self._rows.get((row.section, row.name))
        self.taken_up += found is not None
        return found

    def part(self, section: str, part: str) -> list[Row]:
        """The finished rows of a part of a section; empty where it is still to be measured."""
        found = [row for row in self._rows.values() if (row.section, row.part) == (section, part)]
        self.taken_up += len(found)
        return found

    def add(self, row: Row) -> None:
        """Keep a finished row; one that failed is tried again."""
        if self._path is not None and row.measured is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"code": self._code, "row": asdict(row)}) + "\n")


def code_digest() -> str:
    """Changes with the code whose figures are kept."""
    files = [*_ROOT.glob("netem/**/*.py"), *_ROOT.glob("benchmarks/links*.py")]
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def finished(cells: Iterable[Cell], store: Store, workers: int) -> Iterator[Row]:
    """Rows of ``cells`` in their order, from ``store`` or measured now, ``workers`` at a time.

    Each is measured in a process that shares no interpreter with another measurement; with 0
    workers they are calculated here, one after the other.
    """
    rows = [(cell, store.find(cell.row)) for cell in cells]
    if workers == 0:
        for cell, kept in rows:
            row = kept or cell.done()
            if kept is None:
                store.add(row)
            yield row
        return
    running: dict[int, Future[Row]] = {}
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        for at in sorted(range(len(rows)), key=lambda at: -rows[at][0].seconds):
            if rows[at][1] is None:
                running[at] = pool.submit(rows[at][0].done)
                running[at].add_done_callback(lambda future: store.add(future.result()))
        for at, (_, kept) in enumerate(rows):
            yield kept or running[at].result()


def load_text() -> str:
    """How busy the machine is: processes that ran or waited to, averaged over a minute."""
    return f"{os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores"
