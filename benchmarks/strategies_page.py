"""Writes docs/benchmarks/strategies.md from what ``benchmarks.strategies`` measured."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.bars import Bar
from benchmarks.provenance import source_lines
from benchmarks.strategies_bars import best_published, row_of
from benchmarks.strategies_study import (
    FINAL_EVALUATIONS,
    FINAL_ROUNDS,
    FINAL_S,
    FORESEEN_ROUNDS,
    ORDER,
    OURS,
)
from fedsys.telemetry.figures import number, percent
from fedsys.telemetry.hindsight import FIXED

_HEAD = """# Strategies in all scenarios

Written by `python -m benchmarks.strategies`; do not edit. Every strategy of
`benchmarks/strategies.toml` in every file of `scenarios/`, with paired seeds (same split, same
links). Times are virtual seconds to the scenario's target. Runs that miss it are scored at the
horizon: `>` marks a figure that is at least so large, `~` one that is so by this rule only,
because the run's 150 rounds were over sooner. Ratios are geometric means over seeds against
FedAvg, in brackets the 95 % interval; `*` is not significant. Plans and strategies that took over
1.5 times the best of their kind in the first three seeds of a scenario are in no further ones. The
Fashion-MNIST and text scenes are for the three who come nearest on the others, without the grid of
fixed plans. How to read and repeat this: [comparing](../comparing.md).
"""


def write_page(
    path: Path, source: dict[str, str], rows: Sequence[Bar], found: Mapping[str, Any]
) -> None:
    """Replace the page."""
    lines = [_HEAD, *source_lines(source)]
    lines += [f"- runs took: `{found['hours']:.1f} hours of one core`", ""]
    lines += [*_lacking(found["scenes"]), "## Bars", ""]
    lines += ["| bar | at most | measured | |", "|---|---:|---:|---|"]
    for row in rows:
        measured = "-" if math.isnan(row.measured) else f"{row.measured:.3g}"
        verdict = "ok" if row.ok else "**missed**"
        verdict = "not measured" if math.isnan(row.measured) else verdict
        lines.append(f"| {row.name} | {row.bound:.3g} | {measured} | {verdict} |")
    if found["standings"]:
        lines += ["", "## Over the scenarios in which all were run", ""]
        lines += _standings(found["standings"])
        lines += ["", "## Scenario by scenario", "", *_scenes(found["scenes"])]
        lines += ["", "## Ours, by scenario", "", *_ours(found)]
    lines += ["", "## What each part of ours is worth", "", *_ablation(found["ablation"])]
    lines += ["", "## Final accuracy", "", *_finals(found["final"])]
    lines += ["", "## What `fedsys plan` foretold", "", *_foresight(found["foresight"])]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _lacking(scenes: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Says so where the study is not finished: bars are over what is."""
    known = {scene["experiment"] for scene in scenes if row_of(scene, OURS)}
    if lacking := [name for name in ORDER if name not in known]:
        yield f"Not measured yet, and in none of the figures: {', '.join(lacking)}."
        yield ""


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
        mark = "~" if base["seconds_to_target_assumed"] else ">"
        missed = mark if base["seconds_to_target"] is None else ""
        ratios = [
            _ratio(rows[one]["seconds_ratio_interval"]) if one in rows else "-"
            for one in labels[1:]
        ]
        seconds = f"{missed}{number(base['seconds_to_target_scored'])}"
        yield _line([scene["experiment"], percent(scene["target"]), seconds, *ratios])


def _ours(found: Mapping[str, Any]) -> Iterator[str]:
    """Seeds, times, and what it is over: FedAvg, the best fixed plan, the best published one."""
    yield _line(
        [
            "scenario",
            "seeds",
            "s",
            "uplink over FedAvg",
            "best fixed plan",
            "time over it",
            "best published",
            "time over it",
        ]
    )
    yield "|---|---:|---:|---:|---|---:|---|---:|"
    for scene in found["scenes"]:
        row = row_of(scene, OURS)
        if row is None:
            continue
        oracle, over = scene["oracles"].get(FIXED), row["seconds_over_oracle"].get(FIXED)
        label, ratio = best_published(found["ours_over"][scene["experiment"]])
        yield _line(
            [
                scene["experiment"],
                str(row["runs"]),
                number(row["seconds_to_target_scored"]),
                _ratio(row["uplink_ratio_interval"]),
                f"{_cell(oracle['strategy'])}, {number(oracle['seconds_to_target_scored'])} s"
                if oracle
                else "-",
                _ratio(over),
                _cell(label),
                "-" if ratio is None else number(ratio),
            ]
        )


def _ablation(found: Mapping[str, Any]) -> Iterator[str]:
    """Time without a part over time with all; what cannot matter in a scenario is 1."""
    if not found:
        yield "Not measured."
        return
    labels = list(dict.fromkeys(row["strategy"] for one in found.values() for row in one["rows"]))
    yield "Time to the target without a part, over that with all of them."
    yield ""
    yield _line(["part", *found])
    yield "|---|" + "---:|" * len(found)
    for label in labels[1:]:
        yield _line([_cell(label), *(_worth(one, label) for one in found.values())])


def _worth(one: Mapping[str, Any], label: str) -> str:
    """The ratio; or that a scenario has no such part, or that there is no run of it."""
    if label not in one["parts"]:
        return "none here"
    row = row_of(one, label)
    return "not run" if row is None else _ratio(row["seconds_ratio_interval"])


def _finals(found: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    if not found:
        yield "Not measured."
        return
    labels = list(next(iter(found.values())))
    yield (
        f"Mean accuracy of the last {FINAL_EVALUATIONS} evaluations, in %, one seed, after the "
        "virtual seconds that 150 rounds of the first take, or after "
        f"{FINAL_ROUNDS} rounds if those are sooner."
    )
    yield ""
    yield _line(["scenario", "s", *labels])
    yield "|---|---:|" + "---:|" * len(labels)
    for name, one in found.items():
        yield _line([name, number(FINAL_S[name]), *(percent(one[label]) for label in labels)])


def _foresight(found: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Iterator[str]:
    labels = list(dict.fromkeys(label for one in found.values() for label in one))
    yield f"Seconds a round over the first {FORESEEN_ROUNDS} rounds, foretold / simulated."
    yield ""
    yield _line(["scenario", *map(_cell, labels)])
    yield "|---|" + "---:|" * len(labels)
    for name, one in found.items():
        pairs = [one.get(label) for label in labels]
        yield _line(
            [name]
            + [
                f"{number(p['foretold_s'])} / {number(p['simulated_s'])}" if p else "-"
                for p in pairs
            ]
        )


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
