"""What a comparison means, in sentences that do not claim more than the seeds can carry."""

from collections.abc import Iterator

from fedsys.telemetry.comparison import Comparison, Row
from fedsys.telemetry.figures import number, percent, points
from fedsys.telemetry.scenes import Scenes, Standing
from fedsys.telemetry.statistics import MIN_PAIRS, Interval


def verdict(comparison: Comparison) -> list[str]:
    """A line for each strategy after the baseline, those on hindsight, and one on the whole."""
    base, *others = comparison.rows
    if not others and not comparison.oracles:
        return [f"{base.label}: nothing to compare it with."]
    lines = [_against_baseline(comparison, row) for row in others]
    lines += [line for kind in comparison.oracles for line in _against_oracle(comparison, kind)]
    return [*lines, _on_the_whole(comparison)] if others else lines


def scenes_verdict(scenes: Scenes) -> list[str]:
    """One line for each strategy after the baseline, over all scenes."""
    base, *others = scenes.standings
    if not others:
        return [f"{base.label}: nothing to compare it with."]
    lines = [_over_scenes(base.label, standing, len(scenes.scenes)) for standing in others]
    over_oracle = (
        f"{standing.label} takes {number(ratio.mean)}x the time of the {kind} in hindsight "
        f"({_interval(ratio)}; {ratio.pairs} scene{'s' if ratio.pairs > 1 else ''})."
        for kind in scenes.kinds
        for standing in scenes.standings
        if (ratio := standing.over_oracle[kind]) is not None
    )
    return [*lines, *over_oracle]


def cost_words(ratio: Interval, what: str) -> str:
    """``ratio`` of a cost to the baseline's, in words that claim no more than the pairs tell."""
    if ratio.pairs < MIN_PAIRS:
        return f"{number(ratio.mean)}x the {what} to target"
    if not ratio.significant:
        return (
            f"no significant difference in {what} to target "
            f"({number(ratio.mean)}x, {_interval(ratio)})"
        )
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


def gain_words(gain: Interval) -> str:
    """A difference of final accuracies, in the same way."""
    if gain.pairs < MIN_PAIRS:
        return f"final accuracy {points(gain.mean)} points"
    interval = f"95 % interval {points(gain.low)} to {points(gain.high)}"
    if gain.significant:
        side = "higher" if gain.mean > 0 else "lower"
        return f"final accuracy {points(abs(gain.mean), sign=False)} points {side} ({interval})"
    return f"no significant difference in final accuracy ({points(gain.mean)} points, {interval})"


def target_text(comparison: Comparison) -> str:
    """The target, and where it comes from."""
    if comparison.target is None:
        return "no target"
    level = f"target {percent(comparison.target)} %"
    if comparison.share is None:
        return level
    return f"{level} ({percent(comparison.share)} % of the best)"


def pairs_words(pairs: int) -> str:
    """How many seeds are paired, and whether that is enough."""
    counted = f"{pairs} paired seed{'s' if pairs > 1 else ''}"
    return counted if pairs >= MIN_PAIRS else f"{counted}, too few to call anything significant"


def _against_baseline(comparison: Comparison, row: Row) -> str:
    base = comparison.rows[0].label
    seconds, uplink = (comparison.ratio(row, measure) for measure in ("seconds", "uplink_bytes"))
    gain = comparison.gain(row)
    known = [interval for interval in (seconds, uplink, gain) if interval is not None]
    if not known:
        return f"{row.label}: no seed in common with {base}, so nothing can be said."
    if all(interval.identical and not interval.bound for interval in known):
        return f"{row.label}: no difference from {base}; all {known[0].pairs} pairs are equal."
    parts = []
    if seconds is not None and seconds.unknown:
        parts.append("neither reached the target")
    elif not row.reached and comparison.rows[0].reached:
        parts.append("it never reached the target")
    elif seconds is not None and uplink is not None:
        parts += [cost_words(seconds, "time"), cost_words(uplink, "uplink bytes")]
        if missed := len(row.trials) - row.reached:
            parts.append(f"{missed} of {len(row.trials)} runs never reached the target")
    if gain is not None:
        parts.append(gain_words(gain))
    return f"{row.label} against {base}, {pairs_words(known[0].pairs)}: {'; '.join(parts)}."


def _against_oracle(comparison: Comparison, kind: str) -> Iterator[str]:
    """How far each strategy is from what hindsight would have run."""
    oracle = comparison.oracles[kind]
    yield f"The {kind} in hindsight is {oracle.label}."
    for row in comparison.rows:
        ratio = comparison.ratio(row, "seconds", oracle)
        if ratio is None or ratio.unknown:
            continue
        told = "" if ratio.significant or ratio.identical else ", not significant"
        told = told if ratio.pairs >= MIN_PAIRS else ""
        bound = {"": "", "<": "at most ", ">": "at least ", "~": "about "}[ratio.bound]
        yield f"{row.label} takes {bound}{number(ratio.mean)}x its time ({_interval(ratio)}{told})."


def _over_scenes(base: str, standing: Standing, scenes: int) -> str:
    seconds, uplink = standing.ratios["seconds"], standing.ratios["uplink_bytes"]
    if seconds is None or uplink is None:
        return f"{standing.label}: neither it nor {base} reached a target in any scene."
    known = len(standing.known)
    words = [cost_words(seconds, "time"), cost_words(uplink, "uplink bytes")]
    if standing.missed:
        words.append(f"it never reached the target in {len(standing.missed)} of them")
    lost = f"{len(standing.lost)} of {known} scenes are lost"
    if standing.lost:
        lost += f", {len(standing.lost_clearly)} of them significantly"
        lost += f" ({', '.join(standing.lost)})"
    words.append(lost)
    if scenes > known:
        words.append(f"in {scenes - known} nothing can be said")
    few = "" if known >= MIN_PAIRS else ", too few to call anything significant"
    counted = f"{known} scene{'s' if known > 1 else ''}"
    return f"{standing.label} against {base} over {counted}{few}: {'; '.join(words)}."


def _interval(ratio: Interval) -> str:
    if ratio.pairs < MIN_PAIRS:
        return "too few for an interval"
    return f"95 % interval {number(ratio.low)}x to {number(ratio.high)}x"


def _on_the_whole(comparison: Comparison) -> str:
    base, *others = comparison.rows
    if comparison.target is None:
        return "No target is set (run.target), so only final accuracy is compared."
    faster = [
        (ratio.mean, place)
        for place, row in enumerate(others)
        if (ratio := comparison.ratio(row, "seconds")) and ratio.significant and ratio.mean < 1
    ]
    goal = f"{percent(comparison.target)} % accuracy"
    if not faster:
        return f"No strategy reaches {goal} significantly sooner than {base.label}."
    best = others[min(faster)[1]]
    return f"Soonest at {goal}: {best.label}{told_apart(comparison, best)}."


def told_apart(comparison: Comparison, best: Row) -> str:
    """Names those that may be as soon as the soonest; empty where there are none."""
    alike = [
        row.label
        for row in comparison.rows
        if row is not best and row.reached
        if (ratio := comparison.ratio(row, "seconds", best)) and not ratio.significant
    ]
    return f" (not significantly sooner than {', '.join(alike)})" if alike else ""
