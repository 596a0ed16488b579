"""The report's pictures, as SVG text in one style; a line is a median over seeds, a band all."""

import io
import re
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedsys.telemetry.comparison import Comparison, Row, Trial
from fedsys.telemetry.summary import STAGES, Cost, costs, stage_seconds
from fedsys.types import F64

PALETTE = (
    "#475467",
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#b58900",
    "#56b4e9",
    "#7a5195",
)
STAGE_COLOURS = dict(zip(STAGES, ("#56b4e9", "#009e73", "#d55e00", "#d0d5dd"), strict=True))
_INK, _GRID = "#344054", "#eaecf0"
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fedsys",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": _INK,
    "axes.edgecolor": "#98a2b3",
    "axes.labelcolor": _INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": _GRID,
    "xtick.color": _INK,
    "ytick.color": _INK,
}
_LOG_ABOVE = 8.0
"""Ends of the runs that lie further apart than this factor are drawn on a logarithmic axis."""

AXES: dict[str, tuple[str, Callable[[Cost], float]]] = {
    "seconds": ("seconds on the run's clock", lambda cost: cost.seconds),
    "uplink": ("uplink MB, all clients", lambda cost: cost.uplink_bytes / 1e6),
    "rounds": ("rounds", lambda cost: float(cost.rounds)),
}


def colour_of(index: int) -> str:
    """The colour of the strategy in row ``index``, the same in every picture."""
    return PALETTE[index % len(PALETTE)]


def metric_plot(comparison: Comparison, axis: str) -> str:
    """The metric against one of ``AXES`` for every strategy, with the target as a line."""
    label, read = AXES[axis]
    with rc_context(STYLE):
        figure = Figure(figsize=(4.2, 3.0), layout="constrained")
        axes = figure.add_subplot()
        ends = []
        for index, row in enumerate(comparison.rows):
            curves = [_curve(trial, read) for trial in row.trials.values()]
            curves = [(x, y) for x, y in curves if x.size]
            if curves:
                ends.append(median(float(x[-1]) for x, _ in curves))
                _draw_band(axes, curves, colour_of(index))
        if comparison.target is not None:
            axes.axhline(comparison.target, color=_INK, linewidth=0.9, linestyle=(0, (4, 3)))
        if ends and max(ends) > _LOG_ABOVE * min(ends) > 0:
            axes.set_xscale("log")
            label += " (log)"
        else:
            axes.set_xlim(left=0)
        axes.set_xlabel(label)
        axes.set_ylabel("accuracy")
        return svg(figure, axis)


def stage_plot(comparison: Comparison) -> str:
    """Where the seconds of an average round go, one bar a strategy, medians over seeds."""
    rows = comparison.rows
    with rc_context(STYLE):
        figure = Figure(figsize=(10.6, 0.75 + 0.42 * len(rows)), layout="constrained")
        axes = figure.add_subplot()
        starts = np.zeros(len(rows))
        spent = [_median_stages(row) for row in rows]
        for stage in STAGES:
            widths = np.array([stages[stage] for stages in spent])
            axes.barh(
                range(len(rows)), widths, 0.62, starts, color=STAGE_COLOURS[stage], label=stage
            )
            starts = starts + widths
        axes.set_yticks(range(len(rows)), [row.label for row in rows])
        for text in axes.get_yticklabels():
            text.set_parse_math(False)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("seconds of an average round, average accepted client")
        return svg(figure, "stages")


def _curve(trial: Trial, read: Callable[[Cost], float]) -> tuple[F64, F64]:
    """x and metric of the evaluated rounds."""
    points = [
        (read(cost), record.test_metric)
        for cost, record in zip(costs(trial.records), trial.records, strict=True)
        if record.test_metric is not None
    ]
    return np.array([x for x, _ in points]), np.array([y for _, y in points])


def _draw_band(axes: Axes, curves: Sequence[tuple[F64, F64]], colour: str) -> None:
    """Median and extremes on the union of the x; a run that has ended keeps its last value."""
    grid = np.unique(np.concatenate([x for x, _ in curves]))
    grid = grid[grid >= max(x[0] for x, _ in curves)]
    at = np.array([y[np.searchsorted(x, grid, side="right") - 1] for x, y in curves])
    if len(curves) > 1:
        axes.fill_between(grid, at.min(0), at.max(0), color=colour, alpha=0.16, linewidth=0)
    axes.plot(grid, np.median(at, axis=0), color=colour, linewidth=1.7)


def _median_stages(row: Row) -> dict[str, float]:
    """Medians over seeds, stage by stage."""
    runs = [stage_seconds(trial.records) for trial in row.trials.values()]
    return {stage: median(run[stage] for run in runs) for stage in STAGES}


def svg(figure: Figure, name: str) -> str:
    """The picture as SVG text without its XML prologue, its ids made unique within the page."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, count=1, flags=re.DOTALL)
    return re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text)
