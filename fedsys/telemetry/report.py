"""``report.html``: one page that says who won, by how much, where the time went and why.

The page needs nothing but itself: styles and pictures are inside, and every text is escaped.
"""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from fedsys.telemetry.atomic import write_atomic
from fedsys.telemetry.comparison import MEASURES, Comparison, Row
from fedsys.telemetry.decisions import Decision, decisions, left_out_text
from fedsys.telemetry.figures import MISSING, cost_text, final_text, number, ratio_text
from fedsys.telemetry.plots import AXES, STAGE_COLOURS, colour_of, metric_plot, stage_plot
from fedsys.telemetry.verdict import target_text, verdict

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
<section><h2>To the target</h2>{table}<p class="note">{note}</p>{pictures}</section>
<section><h2>Accuracy</h2>{legend}<div class="plots">{plots}</div></section>
<section><h2>Where the time goes</h2>{stages_legend}{stages}</section>
<section><h2>Decisions</h2>{decisions}</section>
</body>
</html>
"""

STYLE = """
:root{color-scheme:light;--ink:#101828;--soft:#475467;--line:#eaecf0;--wash:#f9fafb}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1120px;padding:28px 24px 64px;background:#fff;color:var(--ink);
font:14px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Liberation Sans",sans-serif}
h1{font-size:26px;line-height:1.2;margin:0}
h2{font-size:17px;margin:36px 0 10px}
h3{font-size:14px;margin:0}
header p,.note{color:var(--soft);margin:4px 0}
.note{font-size:12.5px}
.verdict{margin-top:20px;padding:12px 18px;background:var(--wash);border-left:4px solid #0072b2}
.verdict p{margin:5px 0}.verdict p:last-child{font-weight:600}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:7px 10px;border-bottom:1px solid var(--line);text-align:right;vertical-align:top}
th{font-weight:600;color:var(--soft);font-size:12.5px;background:var(--wash)}
th.text,td.text{text-align:left}
td.label{text-align:left;font-weight:600;white-space:nowrap}
td small{display:block;font-weight:400;color:var(--soft)}
.dot{display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:7px}
.legend{display:flex;flex-wrap:wrap;gap:4px 20px;margin-bottom:6px}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(330px,1fr));gap:12px}
svg{width:100%;height:auto;font-family:inherit}
svg text{font-family:inherit!important}
details{border-bottom:1px solid var(--line);padding:9px 0}
summary{cursor:pointer}summary h3{display:inline}summary span{color:var(--soft)}
details table{margin-top:8px;font-size:12.5px}
"""

_NOTE = (
    "Median over seeds, smallest and largest in brackets; &gt; marks runs that ended before the "
    "target and count with their horizon, or with what they spent. Ratios are geometric means "
    "over paired seeds against the first row; * marks those that are not significant (95 % "
    "interval: bootstrap, and at least Student's for ten seeds or fewer)."
)


def write_report(path: Path, comparison: Comparison, pictures: Sequence[str] = ()) -> None:
    """Write the page for ``comparison`` to ``path``, replacing what was there.

    ``pictures`` (SVG) come below the table.
    """
    write_atomic(path, report_html(comparison, pictures).encode())


def report_html(comparison: Comparison, pictures: Sequence[str] = ()) -> str:
    """The page as text; the same comparison gives the same text."""
    rows = comparison.rows
    return _PAGE.format(
        title=escape(comparison.name),
        subtitle=escape(_subtitle(comparison)),
        style=STYLE,
        verdict="".join(f"<p>{escape(line)}</p>" for line in verdict(comparison)),
        table=_table(comparison),
        note=_NOTE,
        pictures="".join(f'<div class="plots"><div>{picture}</div></div>' for picture in pictures),
        legend=legend(row_colours([row.label for row in rows])),
        plots="".join(f"<div>{metric_plot(comparison, axis)}</div>" for axis in AXES),
        stages_legend=legend(STAGE_COLOURS.items()),
        stages=stage_plot(comparison),
        decisions="".join(_decision_block(comparison, index) for index in range(len(rows))),
    )


def _subtitle(comparison: Comparison) -> str:
    seeds = ", ".join(str(seed) for seed in comparison.seeds)
    return f"{target_text(comparison)}, seed{'s' if len(comparison.seeds) > 1 else ''} {seeds}"


def _table(comparison: Comparison) -> str:
    heads = ("final accuracy %", "seconds", "uplink MB", "downlink MB", "rounds")
    names = "".join(f"<th>{head}</th>" for head in heads)
    ratios = "<th>time ratio</th><th>uplink ratio</th><th>reached</th>"
    head = f'<tr><th class="text">strategy</th>{names}{ratios}</tr>'
    body = "".join(_row(comparison, index) for index in range(len(comparison.rows)))
    body += "".join(_oracle_row(comparison, kind) for kind in comparison.oracles)
    return f'<div class="scroll"><table>{head}{body}</table></div>'


def _row(comparison: Comparison, index: int) -> str:
    row = comparison.rows[index]
    return _cells(comparison, row, f"{dot(index)}{escape(row.label)}", is_base=index == 0)


def _oracle_row(comparison: Comparison, kind: str) -> str:
    """What hindsight would have run; its label says which cell that is."""
    row = comparison.oracles[kind]
    name = f"{escape(kind)} in hindsight<small>{escape(row.label)}</small>"
    return _cells(comparison, row, name, is_base=False)


def _cells(comparison: Comparison, row: Row, name: str, *, is_base: bool) -> str:
    cells = [final_text(row.final())]
    cells += [cost_text(row.to_target(measure), measure) for measure in MEASURES]
    ratios = [comparison.ratio(row, measure) for measure in ("seconds", "uplink_bytes")]
    cells += ["1" if is_base else ratio_text(ratio) for ratio in ratios]
    cells.append(f"{row.reached} of {len(row.trials)}")
    columns = "".join(f"<td>{_two_lines(cell)}</td>" for cell in cells)
    return f'<tr><td class="label">{name}</td>{columns}</tr>'


def _two_lines(cell: str) -> str:
    """The median, and the extremes in small type below it."""
    median, bracket, extremes = escape(cell).partition(" [")
    return f"{median}<small>[{extremes}</small>" if bracket else median


def dot(index: int) -> str:
    """The mark of the strategy in row ``index``."""
    return _dot(colour_of(index))


def _dot(colour: str) -> str:
    return f'<span class="dot" style="background:{colour}"></span>'


def row_colours(labels: Sequence[str]) -> list[tuple[str, str]]:
    """Each strategy with its colour."""
    return [(label, colour_of(index)) for index, label in enumerate(labels)]


def legend(entries: Iterable[tuple[str, str]]) -> str:
    """Names, each beside its colour."""
    items = "".join(f"<span>{_dot(colour)}{escape(label)}</span>" for label, colour in entries)
    return f'<div class="legend">{items}</div>'


def _decision_block(comparison: Comparison, index: int) -> str:
    """The decisions of the row's first seed; opened by a click, the last row's from the start."""
    row = comparison.rows[index]
    seed = min(row.trials)
    records = row.trials[seed].records
    lost = left_out_text(records)
    note = f'<p class="note">Updates left out: {escape(lost)}</p>' if lost else ""
    stopped = row.trials[seed].stopped_by
    end = f", ended by {stopped}" if stopped else ""
    opened = " open" if index == len(comparison.rows) - 1 else ""
    about = escape(f"seed {seed}, {len(records)} rounds{end}")
    return (
        f"<details{opened}><summary>{dot(index)}"
        f"<h3>{escape(row.label)}</h3> <span>{about}</span></summary>"
        f'{note}<div class="scroll">{_decision_table(decisions(records))}</div></details>'
    )


def _decision_table(shown: Sequence[Decision]) -> str:
    heads = ("round", "at s", "used", "local steps", "uplink", "downlink", "deadline s")
    head = "".join(f"<th>{name}</th>" for name in heads)
    lines = []
    for decision in shown:
        deadline_s = decision.deadline_s
        cells = (
            str(decision.round),
            number(decision.start_s),
            f"{decision.accepted} of {decision.clients}"
            + (f" + {decision.late} late" if decision.late else ""),
            decision.local_steps,
            decision.uplink,
            decision.downlink,
            MISSING if deadline_s is None else number(deadline_s),
        )
        columns = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        why = f"{escape(decision.reason)}<small>{escape(decision.client_reasons)}</small>"
        lines.append(f'<tr>{columns}<td class="text">{why}</td></tr>')
    return f'<table><tr>{head}<th class="text">reason</th></tr>{"".join(lines)}</table>'
