"""What a comparison means, in sentences that do not claim more than the seeds can carry."""

from fedsys.telemetry.comparison import Comparison, Row
from fedsys.telemetry.figures import number, percent, points
from fedsys.telemetry.statistics import MIN_PAIRS, Interval


def verdict(comparison: Comparison) -> list[str]:
    """One line for each strategy after the baseline, then one on the whole."""
    base, *others = comparison.rows
    if not others:
        return [f"{base.label}: nothing to compare it with."]
    lines = [_against_baseline(comparison, row) for row in others]
    return [*lines, _on_the_whole(comparison)]


def _against_baseline(comparison: Comparison, row: Row) -> str:
    base = comparison.rows[0].label
    seconds, uplink = (comparison.ratio(row, measure) for measure in ("seconds", "uplink_bytes"))
    gain = comparison.gain(row)
    known = [interval for interval in (seconds, uplink, gain) if interval is not None]
    if not known:
        return f"{row.label}: no seed in common with {base}, so nothing can be said."
    if all(interval.identical and not interval.unknown for interval in known):
        return f"{row.label}: no difference from {base}; all {known[0].pairs} pairs are equal."
    parts = []
    if seconds is not None and seconds.unknown:
        parts.append("neither reached the target")
    elif seconds is not None and uplink is not None:
        parts += [_cost_words(seconds, "time"), _cost_words(uplink, "uplink bytes")]
        if missed := len(row.trials) - row.reached:
            parts.append(f"{missed} of {len(row.trials)} runs never reached the target")
    if gain is not None:
        parts.append(_gain_words(gain))
    return f"{row.label} against {base}, {_pairs(known[0].pairs)}: {'; '.join(parts)}."


def _cost_words(ratio: Interval, what: str) -> str:
    if ratio.pairs < MIN_PAIRS:
        return f"{number(ratio.mean)}x the {what} to target"
    if not ratio.significant:
        interval = f"95 % interval {number(ratio.low)}x to {number(ratio.high)}x"
        return f"no significant difference in {what} to target ({number(ratio.mean)}x, {interval})"
    less = ratio.mean < 1
    factor, ends = ratio.mean, (ratio.low, ratio.high)
    if less:
        factor, ends = 1 / ratio.mean, (1 / ratio.high, 1 / ratio.low)
    # A bound that points away from 1 makes the factor a least one.
    bound = (
        "at least " if ratio.bound == ("<" if less else ">") else "about " if ratio.bound else ""
    )
    interval = f"95 % interval {number(ends[0])} to {number(ends[1])}"
    return (
        f"{bound}{number(factor)} times {'less' if less else 'more'} {what} to target ({interval})"
    )


def _gain_words(gain: Interval) -> str:
    if gain.pairs < MIN_PAIRS:
        return f"final accuracy {points(gain.mean)} points"
    interval = f"95 % interval {points(gain.low)} to {points(gain.high)}"
    if gain.significant:
        side = "higher" if gain.mean > 0 else "lower"
        return f"final accuracy {points(abs(gain.mean), sign=False)} points {side} ({interval})"
    return f"no significant difference in final accuracy ({points(gain.mean)} points, {interval})"


def _pairs(pairs: int) -> str:
    counted = f"{pairs} paired seed{'s' if pairs > 1 else ''}"
    return counted if pairs >= MIN_PAIRS else f"{counted}, too few to call anything significant"


def _on_the_whole(comparison: Comparison) -> str:
    base, *others = comparison.rows
    if comparison.target is None:
        return "No target is set (run.target), so only final accuracy is compared."
    faster = [
        (ratio.mean, row.label)
        for row in others
        if (ratio := comparison.ratio(row, "seconds")) and ratio.significant and ratio.mean < 1
    ]
    goal = f"{percent(comparison.target)} % accuracy"
    if not faster:
        return f"No strategy reaches {goal} significantly sooner than {base.label}."
    return f"Soonest at {goal}: {min(faster)[1]}."
