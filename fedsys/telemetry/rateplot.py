"""A picture of a link: rate over time, with the times at which nothing moves."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from fedsys.errors import ConfigError
from fedsys.telemetry.plots import STYLE
from fedsys.types import F64

_COLOURS, _GAP = ("#0072b2", "#009e73"), "#d55e00"
_TITLE_CHARS = 90


def write_rate_plot(path: Path, title: str, ways: Mapping[str, tuple[F64, F64]]) -> None:
    """Draw ``ways`` below each other into ``path``, whose ending chooses the format.

    Each is (edges in s, float64 [m + 1]; bit/s between them, float64 [m]). The same input gives
    the same SVG. Raises ConfigError where the file cannot be written.
    """
    with rc_context(STYLE):
        figure = Figure(figsize=(8.4, 1.0 + 1.6 * len(ways)), layout="constrained")
        grid = figure.subplots(len(ways), sharex=True, squeeze=False)[:, 0]
        for axes, (name, (edge_s, rate_bps)), colour in zip(
            grid, ways.items(), _COLOURS, strict=False
        ):
            axes.stairs(rate_bps / 1e6, edge_s, fill=True, color=colour, alpha=0.75)
            if np.isinf(rate_bps).all():
                axes.text(0.5, 0.5, "no limit", ha="center", transform=axes.transAxes)
            for begin_s, end_s in _gaps(edge_s, rate_bps):
                axes.axvspan(begin_s, end_s, color=_GAP, alpha=0.45, linewidth=0.8)
            axes.set_xlim(edge_s[0], edge_s[-1])
            axes.set_ylim(bottom=0)
            axes.set_ylabel(f"{name}, Mbit/s")
        grid[0].set_title(title[:_TITLE_CHARS], loc="left", fontsize=10, parse_math=False)
        grid[-1].set_xlabel("seconds (orange: nothing moves)")
        try:
            dated = {"Date": None} if path.suffix == ".svg" else None
            figure.savefig(path, dpi=130, metadata=dated)
        except OSError as error:
            raise ConfigError(f"--plot {path}: cannot be written: {error.strerror}") from error


def _gaps(edge_s: F64, rate_bps: F64) -> list[tuple[float, float]]:
    """Begin and end of every run of steps at 0."""
    turns = np.flatnonzero(np.diff(np.concatenate([[False], rate_bps == 0, [False]])))
    return [
        (float(edge_s[begin]), float(edge_s[end]))
        for begin, end in zip(turns[::2], turns[1::2], strict=True)
    ]
