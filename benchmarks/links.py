"""Do the levels of a link agree? ``python -m benchmarks.links [--quick]``.

The same transfers in virtual time, through the shaping proxy and through the kernel; recorded
traces against what their own lines say; and what the proxy and the fair sharing must reach by
themselves. Prints one row a comparison, with its error and its bar; a level that this machine
cannot give is one line that says why. Exit status 1 when a bar is missed. ``--page`` writes
docs/benchmarks/links.md; with ``--resume FILE`` an interrupted run goes on where it was.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import links_kernel, links_proxy, links_recorded
from benchmarks.links_cells import Cell, Row, Store, code_digest, finished, load_text
from benchmarks.links_page import HEADINGS, write_page
from benchmarks.provenance import provenance

Skipped = dict[str, str]


def kernel_rows(quick: bool, store: Store, skipped: Skipped) -> Iterator[Row]:
    """Virtual time against the kernel."""
    reason = links_kernel.skipped()
    if reason is not None:
        skipped[links_kernel.SECTION] = reason
        return
    yield from finished(_chosen(links_kernel.cells(), quick), store, links_kernel.WORKERS)


def proxy_rows(quick: bool, store: Store, skipped: Skipped) -> Iterator[Row]:
    """Virtual time without TCP against the proxy."""
    yield from finished(_chosen(links_proxy.cells(), quick), store, links_proxy.WORKERS)


def recorded_rows(quick: bool, store: Store, skipped: Skipped) -> Iterator[Row]:
    """Virtual time and the proxy against the lines of recorded traces."""
    if not links_recorded.recordings():
        skipped[links_recorded.SECTION] = f"no recorded traces in {links_recorded.FOLDER.name}"
        return
    yield from finished(links_recorded.virtual_cells(), store, 0)
    cells, slow = links_proxy.replay_cells(quick)
    if slow:
        skipped[links_recorded.SECTION] = f"too slow to replay in seconds: {', '.join(slow)}"
    yield from finished(cells, store, links_proxy.WORKERS)


def proxy_alone_rows(quick: bool, store: Store, skipped: Skipped) -> Iterator[Row]:
    """The bars of the proxy's own benchmark; its recordings are those of another section here."""
    from benchmarks import proxy

    parts = (proxy.rate_rows, proxy.crowd_rows, proxy.fault_rows, proxy.drop_rows)
    for part in parts[2:3] if quick else parts:
        measure = partial(_run, part, quick)
        yield from _kept("proxy alone", part.__name__, store, measure)


def fair_rows(quick: bool, store: Store, skipped: Skipped) -> Iterator[Row]:
    """The bars of the fair sharing's own benchmark."""
    from benchmarks.fair import bars

    if quick:
        skipped["fair sharing"] = "too long for a quick run; python -m benchmarks.fair --quick"
        return
    yield from _kept("fair sharing", "bars", store, partial(bars, quick))


def _run(part: Callable[[bool], Coroutine[Any, Any, list[Any]]], quick: bool) -> list[Any]:
    return asyncio.run(part(quick))


def _kept(
    section: str, part: str, store: Store, measure: Callable[[], Iterable[Any]]
) -> Iterator[Row]:
    """Rows of a part of another benchmark, from ``store`` or measured now."""
    kept = store.part(section, part)
    if kept:
        yield from kept
        return
    head = ""
    for bar in list(measure()):  # all of them, before the first is kept
        name = bar.name.strip()
        if bar.name.startswith(" "):
            name = f"{head}: {name}"
        else:
            head = name.partition(":")[0]
        row = Row(
            section=section,
            part=part,
            name=name,
            bound=bar.bound,
            measured=float(bar.measured),
            at_least=getattr(bar, "at_least", False),
        )
        store.add(row)
        yield row


SECTIONS: dict[str, Callable[[bool, Store, Skipped], Iterator[Row]]] = {
    links_recorded.SECTION: recorded_rows,
    links_kernel.SECTION: kernel_rows,
    links_proxy.SECTION: proxy_rows,
    "proxy alone": proxy_alone_rows,
    "fair sharing": fair_rows,
}


def _chosen(cells: Iterable[Cell], quick: bool) -> list[Cell]:
    return [cell for cell in cells if cell.quick or not quick]


def run(sections: Iterable[str], quick: bool, store: Store) -> dict[str, Any]:
    """Measure and print; what ``--json`` holds."""
    rows: list[Row] = []
    skipped: Skipped = {}
    load = load_text()
    for section in sections:
        print(HEADINGS[section], flush=True)
        try:
            for row in SECTIONS[section](quick, store, skipped):
                rows.append(row)
                print(row.line(), flush=True)
        except ImportError as error:
            skipped[section] = str(error)
        if section in skipped:
            print(f"     left out: {skipped[section]}")
    source = provenance() | {"load": f"{load} at the beginning, {load_text()} at the end"}
    if store.taken_up:
        source["resumed"] = f"{store.taken_up} rows are of an earlier run of the same code"
    return {"source": source, "rows": [row.as_json() for row in rows], "skipped": skipped}


def main() -> int:
    """Run everything, print the table, and say whether all bars are reached."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few cells, within a minute")
    parser.add_argument("--only", choices=SECTIONS, action="append", help="these sections only")
    parser.add_argument("--resume", type=Path, help="keep finished cells here, and begin with them")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--page", type=Path, help="write them as Markdown here")
    options = parser.parse_args()
    store = Store(options.resume, code_digest())
    found = run(options.only or SECTIONS, options.quick, store)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if options.page:
        write_page(options.page, found)
    missed = sum(not row["ok"] for row in found["rows"])
    print(f"{len(found['rows']) - missed} of {len(found['rows'])} bars are reached")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
