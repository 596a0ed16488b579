"""The figures of ``benchmarks.engine`` as a page for people."""

from pathlib import Path
from typing import Any

from benchmarks.provenance import source_lines

_HEAD = """# The engine, measured

Written by `python -m benchmarks.engine`; do not edit. Two worker processes of one thread each. The
*eager limit* is forward, backward and update of one batch that stays in memory, autograd and SGD in
place, in two processes: what a federation costs comes on top of it, unless it trains by faster
formulas. *Training alone* is this package's local training without a federation around it.

W1: 100 clients of 600 pictures, 10 a round, a CNN of 184,586 parameters, batches of 32, 2 epochs.
W2: 1,000 clients of 60 pictures, 50 a round, an MLP 784-64-10, batches of 20, 1 epoch. W3: 10,000
clients of 20 digits, 1,000 a round, recorded LTE links and a server's link that all share, an MLP
of 17,226 parameters.
"""


def write_page(path: Path, found: dict[str, Any]) -> None:
    """Write Markdown to ``path`` from what ``--json`` holds."""
    rows = found["rows"]
    reached = sum(row["ok"] for row in rows)
    bars = [
        f"| {r['name'].replace('|', '&#124;')} | {r['measured']:.3g} | "
        f"{'at least' if r['at_least'] else 'at most'} {r['bound']:.3g} | "
        f"{'yes' if r['ok'] else '**no**'} |"
        for r in rows
    ]
    rounds = [f"| {name} | {1e3 * value:.1f} |" for name, value in found["round_s"].items()]
    notes = [f"- {name}: skipped, {why}" for name, why in found["skipped"].items()]
    parts = [
        _HEAD,
        *source_lines(found["source"]),
        f"- load average at the end: `{found['load']:.1f}`",
        f"\n## Bars\n\n{reached} of {len(rows)} bars are reached.\n",
        "|  | measured | must be | reached |\n| --- | --- | --- | --- |",
        *bars,
        "\n## Rounds\n\nMedian milliseconds a round, peers with their own scripts.\n",
        "|  | ms |\n| --- | --- |",
        *rounds,
        "",
        *notes,
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(parts).rstrip() + "\n", encoding="utf-8")
