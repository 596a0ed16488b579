"""How figures are written, the same in the terminal, the report and the verdict."""

import math

from fedsys.telemetry.statistics import Interval, Spread

MISSING = "-"


def number(value: float) -> str:
    """Three significant digits, with no exponent from a millionth up."""
    rounded = float(f"{value:.3g}")
    if abs(rounded) < 1e-6:
        return f"{value:.3g}"
    return f"{value:,.{max(0, 2 - math.floor(math.log10(abs(rounded))))}f}"


def count(value: float) -> str:
    """A number of things; half a thing only as the median of an even number of runs."""
    return f"{value:,.1f}".removesuffix(".0")


def percent(fraction: float) -> str:
    """A fraction in percent, one decimal: 0.9034 -> 90.3."""
    return f"{100 * fraction:.1f}"


def points(fraction: float, *, sign: bool = True) -> str:
    """A difference of fractions in percentage points: 0.0123 -> +1.23."""
    return f"{100 * fraction:+.2f}" if sign else f"{100 * fraction:.2f}"


def cost_text(spread: Spread, measure: str) -> str:
    """A cost over seeds, bytes in MB: ``12.0 [10.0..15.0]``.

    ``>`` marks what was not reached, ``~`` what is the horizon by rule, since less was spent.
    """
    scale = 1e-6 if measure.endswith("_bytes") else 1.0
    write = count if measure == "rounds" else number
    mark = "~" if spread.assumed else ">"
    median = f"{mark if spread.median_censored else ''}{write(spread.median * scale)}"
    high = f"{mark if spread.high_censored else ''}{write(spread.high * scale)}"
    if spread.low == spread.high and spread.high_censored == spread.median_censored:
        return median
    low = f"{mark if spread.low_censored else ''}{write(spread.low * scale)}"
    return f"{median} [{low}..{high}]"


def final_text(spread: Spread | None) -> str:
    """Final accuracy in percent over seeds."""
    if spread is None:
        return MISSING
    if spread.low == spread.high:
        return percent(spread.median)
    return f"{percent(spread.median)} [{percent(spread.low)}..{percent(spread.high)}]"


def ratio_text(ratio: Interval | None) -> str:
    """A ratio to the baseline, ``0.12x``; ``*`` where it is not significant."""
    if ratio is None or ratio.unknown:
        return MISSING
    is_known = ratio.significant or (ratio.identical and not ratio.bound)
    mark = "" if is_known else "*"
    return f"{ratio.bound}{number(ratio.mean)}x{mark}"
