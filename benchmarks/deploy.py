"""Does a deployment keep its promises? ``python -m benchmarks.deploy [--quick] [--only NAME]``.

Real servers and devices on this machine, behind the shaping proxy. Prints one row a bar; exit
status 1 when one is missed. All of it takes an hour. ``--keep FILE`` puts the figures of the
sections that were run in the place of those that the file has, and ``--page`` writes Markdown from
all of them.
"""

import argparse
import importlib
import json
import signal
import sys
from pathlib import Path
from typing import Any

from benchmarks.deploy_page import write_page
from benchmarks.deploy_rig import Row
from benchmarks.links_cells import load_text
from benchmarks.provenance import provenance
from fedsys.errors import FedsysError

SECTIONS = {
    "big": "deploy_big",
    "rounds": "deploy_rounds",
    "idle": "deploy_idle",
    "crowd": "deploy_crowd",
    "chaos": "deploy_chaos",
}


QUICK_SECTIONS = ("big",)
"""What ``--quick`` runs within a minute; others are quicker with it, and have to be named."""


def main() -> int:
    """Run sections, print their rows, and say whether all bars are reached."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller, within a minute")
    parser.add_argument("--only", choices=SECTIONS, action="append", help="these sections only")
    parser.add_argument("--keep", type=Path, help="JSON of all sections, brought up to date")
    parser.add_argument("--json", type=Path, help="write the figures of this run here")
    parser.add_argument("--page", type=Path, help="write all that is known as Markdown here")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started ends with it
    sections = options.only or (QUICK_SECTIONS if options.quick else SECTIONS)
    found = {name: run(name, options.quick) for name in sections}
    if options.json:
        _save(options.json, found)
    if options.keep:
        kept = json.loads(options.keep.read_text()) if options.keep.exists() else {}
        _save(options.keep, kept | found)
        found = kept | found
    if options.page:
        write_page(options.page, found)
    rows = [row for section in found.values() for row in section["rows"]]
    missed = sum(not row["ok"] for row in rows)
    print(f"{len(rows) - missed} of {len(rows)} bars are reached")
    return 1 if missed else 0


def run(name: str, quick: bool) -> dict[str, Any]:
    """One section's figures; a section that breaks is a row that is missed."""
    print(name, flush=True)
    load = load_text()
    rows: list[Row] = []
    try:
        for row in importlib.import_module(f"benchmarks.{SECTIONS[name]}").rows(quick):
            rows.append(row)
            print(row.line(), flush=True)
    except (FedsysError, RuntimeError, OSError, AssertionError) as error:
        print(error, flush=True)
        reason = str(error).strip().splitlines()[-1][:200] if str(error).strip() else "failed"
        rows.append(Row(section=name, name="all of it", bound=1, measured=None, note=reason))
    source = provenance() | {"load": f"{load} at the beginning, {load_text()} at the end"}
    return {"source": source, "rows": [row.as_json() for row in rows]}


def _save(path: Path, found: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
