"""Writes docs/benchmarks/strategies.md from what ``benchmarks.strategies`` measured."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.provenance import source_lines
from fedsys.telemetry.figures import number, percent

_HEAD = """# Strategies in all scenarios

Written by `python -m benchmarks.strategies`; do not edit. Every strategy of
`benchmarks/strategies.toml` in every file of `scenarios/`, with paired seeds (same split, same
links). Times are virtual seconds to the scenario's target; runs that miss it are scored at the
horizon. Ratios are geometric means over seeds against FedAvg, in brackets the 95 % interval; `*`
is not significant. How to read and repeat this: [comparing](../comparing.md).
"""


def write_page(path: Path, source: dict[str, str], rows: Sequence[Any], found: dict) -> None:
    """Replace the page."""
    lines = [_HEAD, *source_lines(source), "", "## Bars", ""]
    lines += ["| bar | at most | measured | |", "|---|---:|---:|---|"]
    for row in rows:
        measured = "-" if row.measured is None else f"{row.measured:.3f}"
        verdict = "ok" if row.ok else "**missed**"
        lines.append(f"| {row.name} | {row.bound:.3f} | {measured} | {verdict} |")
    lines += ["", "## Over all scenarios", "", *_standings(found["standings"])]
    lines += ["", "## Scenario by scenario", "", *_scenes(found["scenes"])]
    lines += ["", "## What hindsight would have run", "", *_oracles(found["scenes"])]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _standings(standings: Sequence[dict]) -> Iterator[str]:
    kinds = list(standings[0]["seconds_over_oracle"])
    heads = ["strategy", "time", "uplink", *(f"time over {kind}" for kind in kinds), "lost"]
    yield _line(heads)
    yield "|---|" + "---:|" * (len(heads) - 1)
    for one in standings:
        over = [_ratio(one["seconds_over_oracle"][kind]) for kind in kinds]
        lost = f"{len(one['lost_scenes'])} of {len(one['known_scenes'])}"
        ratios = [_ratio(one["time_ratio"]), _ratio(one["uplink_ratio"])]
        yield _line([_cell(one["strategy"]), *ratios, *over, lost])


def _scenes(scenes: Sequence[dict]) -> Iterator[str]:
    labels = list(dict.fromkeys(r["strategy"] for scene in scenes for r in scene["rows"]))
    yield _line(["scenario", "target %", f"{labels[0]}, s", *map(_cell, labels[1:])])
    yield "|---|" + "---:|" * (len(labels) + 1)
    for scene in scenes:
        rows = {row["strategy"]: row for row in scene["rows"]}
        base = rows[labels[0]]
        missed = ">" if base["seconds_to_target"] is None else ""
        ratios = [
            _ratio(rows[one]["seconds_ratio_interval"]) if one in rows else "-"
            for one in labels[1:]
        ]
        seconds = f"{missed}{number(base['seconds_to_target_at_least'])}"
        yield _line([scene["experiment"], percent(scene["target"]), seconds, *ratios])


def _oracles(scenes: Sequence[dict]) -> Iterator[str]:
    kinds = list(dict.fromkeys(kind for scene in scenes for kind in scene["oracles"]))
    yield _line(["scenario", *kinds])
    yield "|---|" + "---|" * len(kinds)
    for scene in scenes:
        cells = []
        for kind in kinds:
            row = scene["oracles"].get(kind)
            seconds = number(row["seconds_to_target_at_least"]) if row else ""
            cells.append(f"{_cell(row['strategy'])}: {seconds} s" if row else "-")
        yield _line([scene["experiment"], *cells])


def _ratio(interval: dict | None) -> str:
    if interval is None or (interval["identical"] and interval["bound"] == "~"):
        return "-"
    mark = "" if interval["significant"] or interval["identical"] else "*"
    mean = f"{interval['bound']}{number(interval['mean'])}{mark}"
    if interval["pairs"] < 2:
        return mean
    return f"{mean} [{number(interval['low'])}..{number(interval['high'])}]"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
