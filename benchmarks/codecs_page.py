"""The figures of ``benchmarks.codecs`` as a page for people."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.provenance import source_lines

_HEAD = """# Codecs, measured

Written by `python -m benchmarks.codecs`; do not edit. NMSE is squared error over the squared norm
of the vector. Speeds are ratios to what numpy or torch take for the same array in the same run.
"""
_PEERS = """## Beside other public software

Peers are written anew from what they publish (`benchmarks/peer_codecs.py`) and get the same
vectors; ours is given at most their bits. *gauss*, *laplace* and *student* (3 degrees of freedom)
are random; the others are updates of one client in a short federated training
(`benchmarks/real_updates.py`), the last one as it is encoded under error feedback.
"""


def write_page(path: Path, found: dict[str, Any]) -> None:
    """Write Markdown to ``path`` from what ``--json`` holds."""
    rows, missed = found["rows"], sum(not row["ok"] for row in found["rows"])
    verdict = f"{len(rows) - missed} of {len(rows)} bars are reached"
    bars = _table(
        ("", "measured", "must be", "reached"),
        (
            (r["name"], _number(r["measured"]), _bound(r), "yes" if r["ok"] else "**no**")
            for r in rows
        ),
    )
    peers = _table(
        ("data", "peer", "bits", "NMSE", "ours", "bits", "NMSE"),
        (
            (
                *(p["data"], p["peer"], f"{p['peer_bits']:.2f}", _number(p["peer_nmse"])),
                *(f"`{p['own']}`", f"{p['own_bits']:.2f}", _number(p["own_nmse"])),
            )
            for p in found["peers"]
        ),
    )
    notes = [f"- {name}: {why}" for name, why in found["skipped"].items()]
    parts = [_HEAD, *source_lines(found["source"]), f"\n## Bars\n\n{verdict}.\n", bars]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*parts, _PEERS, peers, *notes]).rstrip() + "\n", encoding="utf-8")


def _bound(row: dict[str, Any]) -> str:
    return f"{'at least' if row['at_least'] else 'at most'} {_number(row['bound'])}"


def _number(value: float) -> str:
    return "0" if value == 0 else f"{value:.3g}"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = [*head]
    lines = [head, ["---"] * len(head), *rows]
    text = (" | ".join(cell.replace("|", "\\|") for cell in line) for line in lines)
    return "\n".join(f"| {line} |" for line in text) + "\n"
