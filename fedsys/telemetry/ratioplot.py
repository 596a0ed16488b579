"""Pictures of ratios and of sweeps, as SVG text in the style of the report."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from fedsys.telemetry.knee import LOG_ABOVE
from fedsys.telemetry.plots import STYLE, colour_of, svg
from fedsys.telemetry.scenes import Scenes
from fedsys.telemetry.statistics import Spread

_PALE = "#98a2b3"


def forest_plot(scenes: Scenes) -> str:
    """Ratios of time with their intervals, a row a scene, a colour a strategy, the mean below."""
    labels = scenes.labels[1:]
    names = [scene.name for scene in scenes.scenes]
    height = 0.9 + 0.17 * (len(names) + 1) * max(1, len(labels))
    with rc_context(STYLE):
        figure = Figure(figsize=(10.6, height + 0.5), layout="constrained")
        axes = figure.add_subplot()
        axes.axvline(1.0, color=_PALE, linewidth=0.9)
        for index, label in enumerate(labels):
            rows: list[Any] = [scenes.ratio(scene, label) for scene in scenes.scenes]
            rows.append(scenes.standings[index + 1].ratios["seconds"])
            shift = 0.7 * ((index + 0.5) / len(labels) - 0.5)
            for at, ratio in enumerate(rows):
                if ratio is None:
                    continue
                colour, is_mean = colour_of(index + 1), at == len(names)
                axes.plot([ratio.low, ratio.high], [at + shift] * 2, color=colour, linewidth=1.3)
                size, marker = (6.0, "D") if is_mean else (5.0, "o")
                fill = colour if ratio.significant else "white"
                axes.plot(ratio.mean, at + shift, marker, color=colour, ms=size, mfc=fill)
        axes.set_yticks(range(len(names) + 1), [*names, "all scenes"])
        for text in axes.get_yticklabels():
            text.set_parse_math(False)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_xscale("log")
        _plain_ticks(axes)
        axes.set_xlabel(
            "time to target over the baseline's (log); hollow: not significant, bars: 95 %"
        )
        return svg(figure, "forest")


def sweep_plot(
    key: str, settings: Sequence[float | str], costs: Sequence[Spread], label: str, at: int | None
) -> str:
    """A cost against a setting, median and extremes, with the knee marked."""
    numeric = [s for s in settings if isinstance(s, int | float) and not isinstance(s, bool)]
    x = numeric if len(numeric) == len(settings) else list(range(len(settings)))
    with rc_context(STYLE):
        figure = Figure(figsize=(6.2, 3.4), layout="constrained")
        axes = figure.add_subplot()
        medians = np.array([cost.median for cost in costs])
        low, high = (np.array([getattr(cost, end) for cost in costs]) for end in ("low", "high"))
        axes.fill_between(x, low, high, color=colour_of(1), alpha=0.16, linewidth=0)
        axes.plot(x, medians, "o-", color=colour_of(1), linewidth=1.7)
        missed = [i for i, cost in enumerate(costs) if cost.median_censored]
        axes.plot([x[i] for i in missed], medians[missed], "x", color=colour_of(2), ms=9)
        if at is not None:
            axes.plot(x[at], medians[at], "o", color=colour_of(2), ms=13, mfc="none", mew=2)
            axes.annotate(
                "knee", (x[at], medians[at]), xytext=(8, 8), textcoords="offset points"
            ).set_parse_math(False)
        if len(numeric) < len(settings):
            axes.set_xticks(x, [str(s) for s in settings])
            for text in axes.get_xticklabels():
                text.set_parse_math(False)
        else:
            if min(x) > 0 and max(x) > LOG_ABOVE * min(x):
                axes.set_xscale("log")
            axes.set_xticks(x, [f"{value:g}" for value in x])
            axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel(key, parse_math=False)
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
        return svg(figure, "sweep")


def _plain_ticks(axes: Axes) -> None:
    """Numbers as people write them, at 1, 2 and 5 of each decade."""
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
