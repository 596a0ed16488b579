"""The figures of ``benchmarks.links`` as a page for people."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.provenance import source_lines

HEADINGS = {
    "recorded": "Recorded traces against their own lines",
    "kernel": "Virtual time against HTTP POSTs through the kernel",
    "proxy": "Virtual time without TCP against the shaping proxy",
    "proxy alone": "The shaping proxy by itself",
    "fair sharing": "Fair sharing",
}
_COLUMNS = {
    "recorded": ("trace, bytes", "delivered, bytes"),
    "kernel": ("kernel, s", "virtual, s"),
    "proxy": ("virtual, s", "proxy, s"),
}
"""What ``expected`` and ``found`` are."""
_EXPLAINED = {
    "recorded": "Bytes by the end of a transfer, or of so many seconds of saturating traffic, "
    "against the curve that the benchmark sums up from the raw file. Of the virtual transfers of "
    "all lengths the worst is shown.",
    "kernel": "One connection a POST, which is there before the clock starts. Medians; with loss, "
    "virtual time is the median over 400 seeds. Links with a star are those that the model of TCP "
    "was made on; the others are held out. The error is that of virtual time.",
    "proxy": "Requests and answers over one open connection; of three in a row the one with the "
    "median error is shown. Links get `tcp=none`, as the proxy carries real TCP already.",
    "proxy alone": "What `benchmarks.proxy` measures.",
    "fair sharing": "What `benchmarks.fair` measures.",
}
_HEAD = """# Links, measured

Written by `python -m benchmarks.links`; do not edit. One description of a link is used at three
levels: virtual time (`netem.transfer`), a shaping proxy (`netem.proxy`), and this machine's kernel
(`netem.kernel`).
"""


def write_page(path: Path, found: dict[str, Any]) -> None:
    """Write Markdown to ``path`` from what ``--json`` holds."""
    rows = found["rows"]
    sections = [name for name in HEADINGS if any(row["section"] == name for row in rows)]
    parts = [_HEAD, *source_lines(found["source"]), "", *_verdict(rows, sections)]
    for name in sections:
        own = [row for row in rows if row["section"] == name]
        parts += [f"\n## {HEADINGS[name]}\n", _EXPLAINED[name], "", _section_table(name, own)]
    if found["skipped"]:
        parts.append("\n## Left out\n")
        parts += [f"- {HEADINGS[name]}: {why}" for name, why in found["skipped"].items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(parts).rstrip() + "\n", encoding="utf-8")


def _verdict(rows: list[dict[str, Any]], sections: Iterable[str]) -> Iterator[str]:
    """One line of a table for each section."""
    lines = []
    for name in sections:
        own = [row for row in rows if row["section"] == name and row["bound"] is not None]
        reached = f"{sum(row['ok'] for row in own)} of {len(own)}"
        errors = [row["measured"] for row in own if row["unit"] and row["measured"] is not None]
        middle, worst = (f"{100 * of(errors):.2g} %" if errors else "" for of in (median, max))
        lines.append((HEADINGS[name], reached, middle, worst))
    yield _table(("", "bars reached", "median error", "worst error"), lines)


def _section_table(name: str, rows: list[dict[str, Any]]) -> str:
    if name not in _COLUMNS:
        lines = (
            (r["name"], _number(r["measured"]), _bar(r), "yes" if r["ok"] else "**no**")
            for r in rows
        )
        return _table(("", "measured", "must be", "reached"), lines)
    return _table(("", *_COLUMNS[name], "error", "bar", "reached", "runs"), map(_compared, rows))


def _compared(row: dict[str, Any]) -> tuple[str, ...]:
    name = row["name"] + ("*" if row["fitted"] else "")
    if row["note"]:
        name += f" ({row['note']})"
    if row["measured"] is None:
        return (name, "", "", "failed", "", "**no**", "")
    error = f"{100 * (row['found'] / row['expected'] - 1):+.2f} %"
    bar = "" if row["bound"] is None else f"{100 * row['bound']:g} %"
    reached = "**no**" if not row["ok"] else "yes" if bar else ""
    figures = (_number(row["expected"]), _number(row["found"]))
    return (name, *figures, error, bar, reached, str(row["repeats"]))


def _bar(row: dict[str, Any]) -> str:
    if row["bound"] is None:
        return ""
    return f"{'at least' if row['at_least'] else 'at most'} {_number(row['bound'])}"


def _number(value: float | None) -> str:
    return "failed" if value is None else f"{value:.4g}" if value < 1e4 else f"{value:,.0f}"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = [*head]
    lines = [head, ["---"] * len(head), *rows]
    text = (" | ".join(cell.replace("|", "\\|") for cell in line) for line in lines)
    return "\n".join(f"| {line} |" for line in text)
