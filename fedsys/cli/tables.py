"""Tables and JSON files that the commands leave for people and for programs."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedsys.errors import ConfigError
from fedsys.telemetry.atomic import write_atomic
from fedsys.telemetry.comparison import MEASURES, Comparison
from fedsys.telemetry.figures import MISSING, cost_text, final_text, number, percent, ratio_text
from fedsys.telemetry.scenes import Scenes
from fedsys.telemetry.summary import Cost, Summary

_WIDTH = 140
"""Columns where there is no terminal to say."""
_ALL_FIT = 120
"""Columns that a comparison needs for all its figures."""
_HEADS = {
    "seconds": "seconds\nto target",
    "uplink_bytes": "uplink MB\nto target",
    "downlink_bytes": "downlink MB\nto target",
    "rounds": "rounds\nto target",
}


def console() -> Console:
    """Standard output; wide where it is a file, so that tables keep their lines."""
    out = Console(highlight=False, markup=False)
    return out if out.is_terminal else Console(highlight=False, markup=False, width=_WIDTH)


def help_table(entries: Iterable[tuple[str, str]]) -> Table:
    """Names with what they mean."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 1, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    for name, text in entries:
        table.add_row(Text(name, "bold"), Text(text))
    return table


def summary_table(summary: Summary) -> Table:
    """One run: its cost in all and, where it has a target, to the target."""
    table = Table("", "accuracy %", "seconds", "uplink MB", "downlink MB", "rounds")
    for column in table.columns[1:]:
        column.justify = "right"
    if summary.target is not None:
        label = f"to {percent(summary.target)} %"
        if summary.at_target is None:
            table.add_row(label, "not reached", *[MISSING] * len(MEASURES))
        else:
            table.add_row(label, f">= {percent(summary.target)}", *_cost_cells(summary.at_target))
    final = MISSING if summary.final_metric is None else percent(summary.final_metric)
    table.add_row("in all", final, *_cost_cells(summary.total))
    return table


def comparison_table(comparison: Comparison, width: int = _WIDTH) -> Table:
    """One row a strategy: medians, extremes below them, ratios to the first row.

    A narrow screen has no downlink and no rounds, so that no figure is cut off.
    """
    shown = MEASURES if width >= _ALL_FIT else MEASURES[:2]
    names = ["final\naccuracy %", *(_HEADS[measure] for measure in shown)]
    table = Table(show_lines=True)
    table.add_column("strategy", overflow="fold")
    for name in (*names, "time\nratio", "uplink\nratio"):
        table.add_column(name, justify="right", overflow="fold")
    named = [(row.label, row) for row in comparison.rows]
    named += [(f"{kind}: {row.label}", row) for kind, row in comparison.oracles.items()]
    for index, (name, row) in enumerate(named):
        cells = [final_text(row.final())]
        cells += [cost_text(row.to_target(measure), measure) for measure in shown]
        ratios = [comparison.ratio(row, measure) for measure in ("seconds", "uplink_bytes")]
        cells += [ratio_text(ratio) if index else "1" for ratio in ratios]
        table.add_row(Text(name), *[Text(cell.replace(" [", "\n[")) for cell in cells])
    return table


def scenes_table(scenes: Scenes) -> Table:
    """Time to target over the baseline's: a row a scene, the means over scenes below."""
    base, *labels = scenes.labels
    table = Table("scene", "target %", f"{base}\nseconds", *labels)
    for column in table.columns[1:]:
        column.justify = "right"
    for scene in scenes.scenes:
        cells = [MISSING if scene.target is None else percent(scene.target)]
        cells.append(cost_text(scene.rows[0].to_target("seconds"), "seconds"))
        cells += [ratio_text(scenes.ratio(scene, label)) for label in labels]
        table.add_row(*map(Text, (scene.name, *cells)))
    table.add_section()
    standings = scenes.standings[1:]
    rows: list[tuple[str, str, list[str]]] = [
        ("all scenes, time", "1", [ratio_text(one.ratios["seconds"]) for one in standings]),
        ("all scenes, uplink", "1", [ratio_text(one.ratios["uplink_bytes"]) for one in standings]),
    ]
    for kind in scenes.kinds:
        over = [ratio_text(one.over_oracle[kind]) for one in scenes.standings]
        rows.append((f"all scenes, time over {kind}", over[0], over[1:]))
    rows.append(("scenes lost", "", [f"{len(one.lost)} of {len(one.known)}" for one in standings]))
    for name, first, others in rows:
        table.add_row(*map(Text, (name, "", first, *others)))
    return table


def check_writable(path: Path | None, option: str) -> None:
    """Raise ConfigError before any work where the result could not be written afterwards."""
    if path is None:
        return
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ConfigError(f"{option} {path}: not a file in a folder that exists")
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise ConfigError(f"{option} {path}: may not be written")


def write_json(path: Path | None, content: Mapping[str, Any]) -> None:
    """Write ``content`` where a path was given."""
    if path is None:
        return
    try:
        path.write_bytes(_json_bytes(content))
    except OSError as error:
        raise ConfigError(f"--json {path}: cannot be written: {error.strerror}") from error


def save_json(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a file beside the runs, which ``fedsys report`` reads: the old one or the new one."""
    write_atomic(path, _json_bytes(content))


def _json_bytes(content: Mapping[str, Any]) -> bytes:
    return f"{json.dumps(content, indent=2, allow_nan=False)}\n".encode()


def _cost_cells(cost: Cost) -> list[str]:
    uplink_mb, downlink_mb = cost.uplink_bytes / 1e6, cost.downlink_bytes / 1e6
    return [number(cost.seconds), number(uplink_mb), number(downlink_mb), str(cost.rounds)]
