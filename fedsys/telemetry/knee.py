"""Where more of a setting stops paying: the knee of a curve.

Kneedle (Satopaa, Albrecht, Irwin, Raghavan, "Finding a 'Kneedle' in a Haystack", ICDCS Workshops
2011), for whole curves: the point furthest from the straight line between the ends.
"""

from collections.abc import Sequence

import numpy as np

from fedsys.types import F64

LOG_ABOVE = 8.0
"""Settings further apart than this factor are compared by their logarithms."""
LEAST_BEND = 0.1
"""Distance from the line, as a share of the curve's height, below which a curve has no knee."""


def knee(settings: Sequence[float], costs: Sequence[float]) -> int | None:
    """Index of the knee of ``costs`` (less is better) over ascending ``settings``, or None.

    Only the part up to the least cost counts: beyond it more is worse. The knee is where the
    curve, with that part scaled to a unit square, lies furthest below the line from its first to
    its least point.
    None for fewer than three points up to there, and for a curve that is no more than a line.
    """
    least = int(np.argmin(costs))
    if least < 2 or costs[least] == costs[0] or not np.isfinite(costs[: least + 1]).all():
        return None
    x = _scaled(settings[: least + 1])
    x = (x - x[0]) / (x[-1] - x[0])
    y = np.asarray(costs[: least + 1], np.float64)
    y = (y - y[-1]) / (y[0] - y[-1])
    below = (1 - x) - y
    at = int(np.argmax(below))
    return at if below[at] >= LEAST_BEND else None


def _scaled(settings: Sequence[float]) -> F64:
    x = np.asarray(settings, np.float64)
    return np.log(x) if x[0] > 0 and x[-1] > LOG_ABOVE * x[0] else x
