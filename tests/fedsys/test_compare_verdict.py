"""The verdict says what the seeds carry: a win, a tie, or that nobody can tell."""

import json

import pytest

from fedsys.errors import ConfigError
from fedsys.telemetry.comparison import Trial, compare, comparison_json
from fedsys.telemetry.figures import cost_text, number, ratio_text
from fedsys.telemetry.statistics import Interval, Spread
from fedsys.telemetry.verdict import verdict
from fedsys.types import RoundPlan, RoundRecord


def run(seconds, uplink_bytes, final, stop="rounds"):
    """Two rounds, the target of 0.9 met in the second when ``final`` allows it."""
    plan = RoundPlan(round=1, clients=(), downlink="none", deadline_s=None, reason="")
    rounds = [
        RoundRecord(
            round=number,
            plan=plan,
            reports=(),
            start_s=0.0,
            end_s=seconds * number / 2,
            downlink_bytes=50,
            uplink_bytes=uplink_bytes // 2,
            train_loss=None,
            step_norm=None,
            agreement=None,
            test_metric=final if number == 2 else 0.1,
        )
        for number in (1, 2)
    ]
    return Trial(rounds, stop)


BASE = {1: run(100, 1000, 0.92), 2: run(120, 1000, 0.91), 3: run(90, 1000, 0.93)}
FAST = {1: run(10, 20, 0.918), 2: run(12, 20, 0.912), 3: run(9, 20, 0.926)}


def test_a_win_is_stated_with_factor_interval_and_seeds():
    lines = verdict(compare("x", 0.9, {"plain": BASE, "fast": FAST}))
    assert lines == [
        "fast against plain, 3 paired seeds: "
        "10.0 times less time to target (95 % interval 10.0 to 10.0); "
        "50.0 times less uplink bytes to target (95 % interval 50.0 to 50.0); "
        "no significant difference in final accuracy (-0.13 points, 95 % interval -0.89 to +0.63).",
        "Soonest at 90.0 % accuracy: fast.",
    ]


def test_a_strategy_compared_with_itself_is_no_difference():
    lines = verdict(compare("x", 0.9, {"plain": BASE, "again": BASE}))
    assert lines == [
        "again: no difference from plain; all 3 pairs are equal.",
        "No strategy reaches 90.0 % accuracy significantly sooner than plain.",
    ]


def test_noise_of_either_sign_is_not_significant():
    noisy = {1: run(110, 1000, 0.92), 2: run(100, 1000, 0.91), 3: run(95, 1000, 0.93)}
    line, whole = verdict(compare("x", 0.9, {"plain": BASE, "noisy": noisy}))
    assert "no significant difference in time to target" in line
    assert "times" not in line
    assert whole.startswith("No strategy")


def test_one_seed_claims_nothing_however_large_the_difference():
    line, whole = verdict(compare("x", 0.9, {"plain": {1: BASE[1]}, "fast": {1: FAST[1]}}))
    assert line == (
        "fast against plain, 1 paired seed, too few to call anything significant: "
        "0.100x the time to target; 0.0200x the uplink bytes to target; "
        "final accuracy -0.20 points."
    )
    assert whole.startswith("No strategy")


def test_cheap_runs_that_never_reach_the_target_do_not_win():
    gave_up = {seed: run(1, 2, 0.5, "rounds") for seed in BASE}
    comparison = compare("x", 0.9, {"plain": BASE, "gave up": gave_up})
    line, whole = verdict(comparison)
    assert "it never reached the target; final accuracy" in line
    assert "no significant difference" not in line
    assert ratio_text(comparison.ratio(comparison.rows[1], "seconds")) == ">1.00x*"
    assert whole.startswith("No strategy")
    row = comparison_json(comparison, [])["rows"][1]
    assert row["seconds_to_target"] is None
    assert row["seconds_to_target_scored"] == 1
    assert row["reached_target"] == 0


def test_who_is_as_soon_as_the_soonest_is_named():
    alike = {1: run(9, 20, 0.91), 2: run(14, 20, 0.912), 3: run(9.4, 20, 0.92)}
    rows = {"plain": BASE, "b": FAST, "a": FAST, "alike": alike}
    assert verdict(compare("x", 0.9, rows))[-1] == (
        "Soonest at 90.0 % accuracy: b (not significantly sooner than a, alike)."
    )


def test_runs_that_stopped_at_the_target_say_nothing_of_final_accuracy():
    """Their last metric is how far one round went beyond it."""
    stopped = {seed: run(10, 20, 0.99, "target") for seed in BASE}
    line, _ = verdict(compare("x", 0.9, {"plain": BASE, "stopped": stopped}))
    assert "accuracy" not in line
    some = {**stopped, 3: run(10, 20, 0.95)}
    comparison = compare("x", 0.9, {"plain": BASE, "some": some})
    assert comparison.gain(comparison.rows[1]).pairs == 1


def test_two_that_never_arrive_are_not_called_equal():
    base = {seed: run(100, 1000, 0.5) for seed in (1, 2, 3)}
    other = {seed: run(10, 10, 0.5) for seed in (1, 2, 3)}
    comparison = compare("x", 0.9, {"plain": base, "other": other})
    assert verdict(comparison)[0] == (
        "other against plain, 3 paired seeds: neither reached the target; no significant "
        "difference in final accuracy (+0.00 points, 95 % interval +0.00 to +0.00)."
    )
    assert ratio_text(comparison.ratio(comparison.rows[1], "seconds")) == "-"


def test_a_baseline_that_never_arrives_is_beaten_by_at_least_what_is_known():
    base = {seed: run(100, 1000, 0.5) for seed in (1, 2, 3)}
    line, whole = verdict(compare("x", 0.9, {"plain": base, "fast": FAST}))
    assert "at least 9.75 times less time to target" in line  # (10 * 12 * 9)^(1/3) = 10.26
    assert whole == "Soonest at 90.0 % accuracy: fast."


def test_only_seeds_that_both_have_are_paired():
    comparison = compare("x", 0.9, {"plain": BASE, "fast": {2: FAST[2], 9: FAST[1]}})
    ratio = comparison.ratio(comparison.rows[1], "seconds")
    assert ratio is not None
    assert (ratio.pairs, ratio.mean) == (1, pytest.approx(0.1))
    alone = verdict(compare("x", 0.9, {"plain": BASE, "fast": {9: FAST[1]}}))
    assert "no seed in common" in alone[0]


def test_without_a_target_only_accuracy_is_compared():
    lines = verdict(compare("x", None, {"plain": BASE, "fast": FAST}))
    assert "time" not in lines[0]
    assert lines[1].startswith("No target is set")


def test_json_holds_the_medians_and_is_json():
    found = comparison_json(compare("x", 0.9, {"plain": BASE, "fast": FAST}), ["v"])
    json.dumps(found, allow_nan=False)
    fast = found["rows"][1]
    assert found["seeds"] == [1, 2, 3]
    assert (fast["seconds_to_target"], fast["uplink_bytes_to_target"]) == (10, 20)
    assert (fast["downlink_bytes_to_target"], fast["rounds_to_target"]) == (100, 2)
    assert fast["final_accuracy"] == 0.918
    assert fast["seconds_ratio"] == pytest.approx(0.1)
    assert found["rows"][0]["seconds_ratio"] == 1


def test_json_has_no_ratio_where_neither_reached_the_target():
    rows = comparison_json(compare("x", 0.99, {"plain": BASE, "fast": FAST}), [])["rows"]
    assert [row["reached_target"] for row in rows] == [0, 0]
    for row in rows:
        assert row["seconds_to_target"] is row["seconds_ratio"] is row["uplink_ratio"] is None


def test_nothing_to_compare_is_an_error():
    with pytest.raises(ConfigError, match="no run to compare"):
        compare("x", 0.9, {"plain": {}})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.01234, "0.0123"),
        (0.5, "0.500"),
        (1, "1.00"),
        (45.67, "45.7"),
        (1234.5, "1,234"),
    ],
)
def test_numbers_have_three_digits(value, text):
    assert number(value) == text


def test_marks_in_tables():
    assert cost_text(Spread(10, 5, 20, median_censored=True, high_censored=True), "seconds") == (
        ">10.0 [5.00..>20.0]"
    )
    assert cost_text(Spread(2.5e6, 1e6, 4e6), "uplink_bytes") == "2.50 [1.00..4.00]"
    assert cost_text(Spread(2.5, 2, 3), "rounds") == "2.5 [2..3]"
    assert ratio_text(Interval(0.5, 0.4, 1.1, 3, significant=False)) == "0.500x*"
    assert ratio_text(Interval(0.5, 0.4, 0.6, 3, significant=True, bound="<")) == "<0.500x"
    assert ratio_text(None) == "-"
