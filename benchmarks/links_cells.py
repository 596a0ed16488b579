"""One comparison of two levels of a link: what it must reach, what came out, and keeping that."""

import json
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from fedsys.errors import FedsysError


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

    Rows of another commit are not taken up. ``path`` None keeps nothing.
    """

    def __init__(self, path: Path | None, commit: str) -> None:
        self._path = path
        self._commit = commit
        self._rows: dict[tuple[str, str], Row] = {}
        if path is not None and path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                kept = json.loads(line)
                if kept["commit"] == commit:
                    row = Row(**kept["row"])
                    self._rows[row.section, row.name] = row

    def find(self, row: Row) -> Row | None:
        """The finished row of that name, if there is one."""
        return self._rows.get((row.section, row.name))

    def add(self, row: Row) -> None:
        """Keep a finished row; one that failed is tried again."""
        if self._path is not None and row.measured is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"commit": self._commit, "row": asdict(row)}) + "\n")


def finished(cells: Iterable[Cell], store: Store, workers: int) -> Iterator[Row]:
    """Rows of ``cells`` in their order, from ``store`` or measured now, ``workers`` at a time.

    Each is measured in a process that shares no interpreter with another measurement.
    """
    cells = list(cells)
    kept = [store.find(cell.row) for cell in cells]
    todo = [(cell, at) for at, cell in enumerate(cells) if kept[at] is None]
    running: dict[int, Future[Row]] = {}
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        for cell, at in sorted(todo, key=lambda one: -one[0].seconds):
            running[at] = pool.submit(cell.done)
            running[at].add_done_callback(lambda future: store.add(future.result()))
        for at, row in enumerate(kept):
            yield row if row is not None else running[at].result()


def load_text() -> str:
    """How busy the machine is: processes that ran or waited to, averaged over a minute."""
    return f"{os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores"
