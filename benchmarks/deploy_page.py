"""The figures of ``benchmarks.deploy`` as a page for people."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.provenance import source_lines

HEADINGS = {
    "big": "Large updates over a thin uplink",
    "rounds": "Virtual time and the ledger against real rounds",
    "idle": "An idle device, and an exchange with nothing in it",
    "crowd": "Two hundred devices",
    "chaos": "Faults",
}
_EXPLAINED = {
    "big": "One device sends its whole model as float32. Bytes are those that the proxy passed "
    "on the way up, connecting and questions for work included. Stock Flower sends one array of "
    "that size through a proxy with the same link, without TLS, with its own settings.",
    "rounds": "Five devices, `fedsys deploy` and `fedsys simulate` on one file. What a round "
    "takes where the network takes no time (processes, coding, evaluation) is measured before "
    "and after each link and given to virtual time as the device's local step. Links get `tcp = "
    "'none'`, as the proxy carries real TCP already. Medians over all rounds but the first. "
    "Bytes of the wire are counted by the proxies while the rounds run, questions for work "
    "included.",
    "idle": "Two devices on a LAN. Bytes are those of both directions together as the proxies "
    "count them, without the headers of TCP. The exchange is a round of a model of 3 kB, from "
    "the message to the reply, less the training; server and devices share the machine. Nobody "
    "waits for a poll: questions are kept until there is an answer, and what remains is work.",
    "crowd": "The devices are threads of one process: Flower's own client of the Fleet API, TLS "
    "and keys of their own, our ClientApp without a process for each task. The same devices and "
    "server run models of several sizes, as float32 both ways. Memory is the largest meanwhile, "
    "where pages that processes share count in parts.",
    "chaos": "A server, a proxy, devices and `fedsys run`, each a command of its own; what is "
    "struck and when is drawn from a seed. Afterwards the run's rounds are computed once more in "
    "virtual time, with those devices absent in each round that its records call absent: a round "
    "counted twice, an update added twice or lost would give another model.",
}
_HEAD = """# Deployments, measured

Written by `python -m benchmarks.deploy`; do not edit. Real SuperLinks and SuperNodes over TLS on
one machine, each device behind a [shaping proxy](../proxy.md). What may go wrong, and which test
shows what then happens: [known troubles](../known-troubles.md).
"""


def write_page(path: Path, found: dict[str, Any]) -> None:
    """Write Markdown to ``path`` from what ``--keep`` holds."""
    parts = [_HEAD]
    for name in HEADINGS:
        if name not in found:
            continue
        section = found[name]
        parts += [f"\n## {HEADINGS[name]}\n", _EXPLAINED.get(name, ""), ""]
        parts += [_table(section["rows"]), "", *source_lines(section["source"])]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(parts).rstrip() + "\n", encoding="utf-8")


def _table(rows: Iterable[dict[str, Any]]) -> str:
    return "\n".join(_lines(rows))


def _lines(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    yield "| | measured | must be | reached | |"
    yield "| --- | --- | --- | --- | --- |"
    for row in rows:
        bar = reached = ""
        if row["bound"] is not None:
            bar = f"{'at least' if row['at_least'] else 'at most'} {row['bound']:g} {row['unit']}"
            reached = "yes" if row["ok"] else "**no**"
        measured = "failed" if row["measured"] is None else f"{row['measured']:.4g} {row['unit']}"
        cells = (row["name"], measured.strip(), bar.strip(), reached, row["note"])
        yield f"| {' | '.join(cell.replace('|', ' ') for cell in cells)} |"
