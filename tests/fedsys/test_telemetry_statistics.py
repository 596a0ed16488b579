"""Ratios and intervals match hand-worked cases, and never make a winner of a run that failed."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsys.telemetry.statistics import (
    Score,
    Spread,
    geometric_mean,
    paired_difference,
    paired_ratio,
    spread,
    student_975,
)

COSTS = st.lists(st.floats(1e-3, 1e9), min_size=1, max_size=6)


def scores(*values):
    return [Score(value) for value in values]


def test_median_and_extremes():
    assert spread(scores(3, 1, 2)) == Spread(2, 1, 3)
    assert spread(scores(4, 1, 2, 3)) == Spread(2.5, 1, 4)
    assert spread(scores(5)) == Spread(5, 5, 5)


def test_a_run_that_never_got_there_ranks_behind_all_that_did():
    gave_up_early = Score(10, censored=True)
    assert spread([gave_up_early, *scores(50, 70)]) == Spread(70, 50, 70, False, True)
    assert spread([gave_up_early, gave_up_early, Score(50)]) == Spread(50, 50, 50, True, True)
    assert spread([gave_up_early, Score(30, censored=True)]) == Spread(
        20, 10, 30, median_censored=True, high_censored=True, low_censored=True
    )


def test_geometric_mean_cancels_twice_and_half():
    assert geometric_mean([2, 0.5]) == pytest.approx(1)
    assert geometric_mean([1, 10, 100]) == pytest.approx(10)


def test_ratio_pairs_seed_by_seed():
    # Logs of 0.2, 0.3, 0.3: mean -1.3391, sd 0.2341, margin 4.303 * 0.2341 / sqrt(3) = 0.5816.
    found = paired_ratio(scores(20, 30, 90), scores(100, 100, 300))
    assert found.mean == pytest.approx((0.2 * 0.3 * 0.3) ** (1 / 3))
    assert found.low == pytest.approx(math.exp(-1.3391 - 0.5816), rel=1e-3)
    assert found.high == pytest.approx(math.exp(-1.3391 + 0.5816), rel=1e-3)
    assert found.significant


def test_bootstrap_agrees_with_the_normal_interval_over_many_seeds():
    values = np.random.default_rng(1).normal(0.5, 1.0, 400)
    found = paired_difference(values.tolist())
    half = 1.96 * values.std(ddof=1) / 20
    assert found.low == pytest.approx(values.mean() - half, abs=0.01)
    assert found.high == pytest.approx(values.mean() + half, abs=0.01)


def test_three_noisy_seeds_are_not_enough_though_all_are_positive():
    # Mean 0.5, sd 0.4359, margin 4.303 * 0.4359 / sqrt(3) = 1.083.
    found = paired_difference([0.2, 0.3, 1.0])
    assert (found.low, found.high) == pytest.approx((-0.583, 1.583), abs=1e-3)
    assert not found.significant


def test_an_interval_is_finite_whatever_the_costs():
    found = paired_ratio(scores(1e-9, 1e9), scores(1e9, 1e-9))
    assert found.low >= 0
    assert math.isfinite(found.high)


@pytest.mark.parametrize(("pairs", "expected"), [(1, False), (2, False), (3, True)])
def test_fewer_than_three_pairs_are_never_significant(pairs, expected):
    found = paired_ratio(scores(*[1.0] * pairs), scores(*[9.0] * pairs))
    assert found.significant is expected
    assert not found.identical


@given(costs=COSTS)
def test_a_strategy_against_itself_is_identical_and_exactly_one(costs):
    found = paired_ratio(scores(*costs), scores(*costs))
    assert (found.mean, found.low, found.high) == (1, 1, 1)
    assert found.identical
    assert not found.significant


@given(ours=COSTS, base=COSTS)
def test_swapping_the_two_inverts_the_ratio(ours, base):
    pairs = min(len(ours), len(base))
    a, b = scores(*ours[:pairs]), scores(*base[:pairs])
    assert math.isclose(paired_ratio(a, b).mean * paired_ratio(b, a).mean, 1, rel_tol=1e-9)


@given(ours=st.floats(1e-3, 1e9), base=st.floats(1e-3, 1e9))
def test_a_run_that_missed_the_target_never_beats_one_that_reached_it(ours, base):
    assert paired_ratio([Score(ours, censored=True)], [Score(base)]).mean >= 1
    assert paired_ratio([Score(ours)], [Score(base, censored=True)]).mean <= 1
    both = paired_ratio([Score(ours, censored=True)], [Score(base, censored=True)])
    assert (both.mean, both.bound) == (1, "~")


def test_censored_pairs_are_scored_at_the_horizon_and_marked_as_bounds():
    missed = Score(400, censored=True)
    assert paired_ratio([missed], [Score(100)]).mean == pytest.approx(4)
    assert paired_ratio([missed], [Score(100)]).bound == ">"
    assert paired_ratio([Score(100)], [missed]).mean == pytest.approx(0.25)
    assert paired_ratio([Score(100)], [missed]).bound == "<"
    assert paired_ratio([Score(100), missed], [missed, Score(100)]).bound == "~"


def test_equal_strategies_are_called_different_at_most_once_in_twenty():
    rng = np.random.default_rng(7)
    for seeds in (3, 5, 10):
        calls = sum(
            paired_difference(rng.normal(0, 1, seeds).tolist()).significant for _ in range(400)
        )
        assert calls <= 0.05 * 400 + 3 * math.sqrt(0.05 * 0.95 * 400)


def test_costs_of_zero_do_not_break_a_ratio():
    assert paired_ratio(scores(0), scores(0)).identical
    assert paired_ratio(scores(0), scores(5)).mean < 1e-6


def test_intervals_hold_the_truth_as_often_as_they_say():
    rng = np.random.default_rng(11)
    for pairs in (4, 8, 20):
        held = 0
        for _ in range(300):
            found = paired_difference(rng.normal(0.3, 1.0, pairs).tolist())
            held += found.low <= 0.3 <= found.high
        # 0.95 give or take three deviations of a count of 300; a bootstrap of 20 is a bit short.
        assert 0.89 <= held / 300 <= 0.99


@pytest.mark.parametrize(
    ("freedom", "expected"), [(1, 12.706), (9, 2.262), (10, 2.228), (20, 2.086), (60, 2.000)]
)
def test_students_quantiles_are_those_of_the_tables(freedom, expected):
    assert student_975(freedom) == pytest.approx(expected, abs=0.003)
