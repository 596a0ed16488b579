"""One page over several scenes: who wins where, by how much, and which scenes are lost."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from fedsys.telemetry.atomic import write_atomic
from fedsys.telemetry.figures import MISSING, number, percent, ratio_text
from fedsys.telemetry.ratioplot import forest_plot
from fedsys.telemetry.report import STYLE, dot, legend, row_colours
from fedsys.telemetry.scenes import Scenes
from fedsys.telemetry.statistics import Interval
from fedsys.telemetry.verdict import scenes_verdict

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header><h1>{title}</h1><p>{subtitle}</p></header>
<section class="verdict">{verdict}</section>
<section><h2>Over all scenes</h2>{standings}<p class="note">{note}</p></section>
<section><h2>Scene by scene</h2>{legend}{plot}{table}</section>
</body>
</html>
"""

_NOTE = (
    "Geometric means of ratios to the first row, one ratio a scene; intervals are over scenes "
    "(bootstrap, and at least Student's for ten scenes or fewer). A scene is lost where the mean "
    "time to target is above the first row's. * marks what is not significant. Runs that missed "
    "the target are scored at the horizon; scenes that neither strategy got through are left out."
)


def write_scenes_report(path: Path, scenes: Scenes, pages: Mapping[str, str]) -> None:
    """Write the page to ``path``; ``pages`` are links to the reports of single scenes."""
    write_atomic(path, scenes_html(scenes, pages).encode())


def scenes_html(scenes: Scenes, pages: Mapping[str, str]) -> str:
    """The page as text; the same scenes give the same text."""
    base = scenes.labels[0]
    return _PAGE.format(
        title=f"{len(scenes.scenes)} scenes",
        subtitle=escape(f"ratios to {base}"),
        style=STYLE,
        verdict="".join(f"<p>{escape(line)}</p>" for line in scenes_verdict(scenes)),
        standings=_standings(scenes),
        note=_NOTE,
        legend=legend(row_colours(scenes.labels)),
        plot=forest_plot(scenes),
        table=_scene_table(scenes, pages),
    )


def _standings(scenes: Scenes) -> str:
    heads = ["time ratio", "uplink ratio", *(f"time over {kind}" for kind in scenes.kinds)]
    heads += ["scenes lost", "significantly"]
    lines = []
    for index, standing in enumerate(scenes.standings):
        ratios: Sequence[Interval | None] = [
            standing.ratios["seconds"],
            standing.ratios["uplink_bytes"],
            *standing.over_oracle.values(),
        ]
        first = 2 if index == 0 else 0
        cells = ["1"] * first + [_with_interval(ratio) for ratio in ratios[first:]]
        known = len(standing.known)
        cells += [f"{len(standing.lost)} of {known}", f"{len(standing.lost_clearly)} of {known}"]
        lines.append(_row(f"{dot(index)}{escape(standing.label)}", cells))
    return _table("strategy", heads, lines)


def _scene_table(scenes: Scenes, pages: Mapping[str, str]) -> str:
    heads = ["target %", "seeds", *scenes.labels[1:]]
    lines = []
    for scene in scenes.scenes:
        name = escape(scene.name)
        page = pages.get(scene.name)
        link = name if page is None else f'<a href="{escape(page)}">{name}</a>'
        cells = [
            MISSING if scene.target is None else percent(scene.target),
            str(len(scene.seeds)),
            *(_with_interval(scenes.ratio(scene, label)) for label in scenes.labels[1:]),
        ]
        lines.append(_row(link, cells))
    return _table("scene", heads, lines)


def _with_interval(ratio: Interval | None) -> str:
    text = escape(ratio_text(ratio))
    if ratio is None or ratio.pairs < 2:
        return text
    return f"{text}<small>[{number(ratio.low)}..{number(ratio.high)}]</small>"


def _row(name: str, cells: Sequence[str]) -> str:
    columns = "".join(f"<td>{cell}</td>" for cell in cells)
    return f'<tr><td class="label">{name}</td>{columns}</tr>'


def _table(first: str, heads: Sequence[str], lines: Sequence[str]) -> str:
    names = "".join(f"<th>{escape(head)}</th>" for head in heads)
    head = f'<tr><th class="text">{first}</th>{names}</tr>'
    return f'<div class="scroll"><table>{head}{"".join(lines)}</table></div>'
