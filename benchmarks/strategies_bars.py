"""What is asked of ours, as bars over the figures of a study."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.bars import Bar
from benchmarks.strategies_study import BASELINE, OURS
from fedsys.telemetry.hindsight import FIXED
from fedsys.telemetry.statistics import geometric_mean

NOT_PUBLISHED = (BASELINE, OURS, "int8, 4 epochs")
SLOW_BPS = 1e6
PERFECT = "digits-perfect"
NAN = float("nan")


def bars(found: Mapping[str, Any]) -> Iterator[Bar]:
    """One for each demand; ``nan``, which reaches nothing, where nothing could be measured."""
    scenes = {scene["experiment"]: scene for scene in found["scenes"]}
    links = found["links"]
    is_slow = {name: (one["uplink_bps"] or NAN) <= SLOW_BPS for name, one in links.items()}
    slow = [scene for name, scene in scenes.items() if is_slow[name]]
    for measure, bound in (("seconds", 0.1), ("uplink", 0.01)):
        ratios = [_ratio(scene, measure) for scene in slow]
        yield Bar(f"{measure} over {BASELINE}, links up to 1 Mbit/s", bound, _mean(ratios))
    alone = [ratio for name, ratio in found["updates"].items() if is_slow[name]]
    yield Bar("of that, the coded updates alone", 0.01, _mean(alone))
    over = {name: _over_oracle(scene) for name, scene in scenes.items()}
    static = [ratio for name, ratio in over.items() if links[name]["steady"]]
    others = [ratio for name, ratio in over.items() if not links[name]["steady"]]
    yield Bar("time over the best fixed plan, links alike and steady", 1.05, _mean(static))
    yield Bar("time over the best fixed plan, links that vary or differ", 0.75, _mean(others))
    yield Bar("time over the best fixed plan, worst scenario", 1.25, _worst(over.values()))
    best = {name: best_published(over)[1] for name, over in found["ours_over"].items()}
    yield Bar("time over the best published strategy of each scenario", 0.75, _mean(best.values()))
    yield Bar("time over the best published strategy, worst scenario", 1.05, _worst(best.values()))
    losses = [one[BASELINE] - one[OURS] for one in found["final"].values()]
    yield Bar(f"final accuracy lost against {BASELINE}, worst scenario", 0.005, _worst(losses))
    compressed = found["compressed"]
    name = "share of updates compressed without a network, after one round"
    yield Bar(name, 0.0, NAN if compressed is None else compressed)
    if PERFECT in scenes:
        yield Bar(
            "time over the best other plan without a network",
            1.02,
            max((*found["ours_over"][PERFECT].values(), _over_oracle(scenes[PERFECT]) or 0.0)),
        )
    wrong = [
        abs(one["foretold_s"] / one["simulated_s"] - 1)
        for labels in found["foresight"].values()
        for one in labels.values()
        if one["simulated_s"]
    ]
    yield Bar("error of fedsys plan, seconds a round, worst run", 0.15, _worst(wrong))


def row_of(scene: Mapping[str, Any], label: str) -> Any:
    """The row of a strategy; None where it was not run."""
    return next((row for row in scene["rows"] if row["strategy"] == label), None)


def _ratio(scene: Mapping[str, Any], measure: str) -> float | None:
    row = row_of(scene, OURS)
    return row[f"{measure}_ratio"] if row else None


def _over_oracle(scene: Mapping[str, Any]) -> float | None:
    row = row_of(scene, OURS)
    found = row and row["seconds_over_oracle"].get(FIXED)
    return found["mean"] if found else None


def best_published(ours_over: Mapping[str, float]) -> tuple[str, float | None]:
    """The published strategy that ours leaves least behind, and ours over it in seconds."""
    known = {label: over for label, over in ours_over.items() if label not in NOT_PUBLISHED}
    label = max(known, key=known.__getitem__, default="-")
    return label, known.get(label)


def _mean(ratios: Any) -> float:
    known = [ratio for ratio in ratios if ratio]
    return geometric_mean(known) if known else NAN


def _worst(values: Any) -> float:
    known: Sequence[float] = [value for value in values if value is not None]
    return max(known, default=NAN)
