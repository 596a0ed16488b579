"""The product rule on cases worked out by hand, and the laws its parts obey."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies._estimate import Line
from strategies._offers import BY_SPEC, LADDER, Offer
from strategies._search import WAIT_QUANTILE, Choice, Cohort, best, finer, gain, round_s, waited_s

EXACT, HALF, TINY = Offer("exact", 32, 0.0), Offer("half", 16, 0.19), Offer("tiny", 1, 0.99)


def cohort(*nodes):
    """Of (step_s, upload floor, upload slope); downloads take no time."""
    step_s, floor_s, slope = (np.array(column, np.float64) for column in zip(*nodes, strict=True))
    return Cohort(step_s, floor_s, slope, np.zeros(len(nodes)), np.zeros(len(nodes)))


def size_of(offer):
    return 100 * offer.bits


def product_rule(group, exponent, steps, offers):
    def score(choice):
        return gain(choice, exponent, feedback=False) / round_s(choice, group, size_of, size_of)

    return best(steps, offers, [EXACT], score)


def test_the_ladder_goes_from_light_to_hard():
    assert LADDER[0].spec == "none"
    pairs = list(itertools.pairwise(LADDER))
    assert all(a.bits > b.bits and a.nmse < b.nmse for a, b in pairs)
    assert list(BY_SPEC) == [offer.spec for offer in LADDER]


@pytest.mark.parametrize("feedback", [True, False])
def test_a_codec_that_drops_more_gains_less_and_an_exact_one_gains_all(feedback):
    gains = [offer.gain(feedback) for offer in LADDER]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] == 1
    assert gains[-1] > 0


def test_error_feedback_gives_back_most_of_what_was_dropped():
    assert HALF.gain(feedback=False) == pytest.approx(0.81**0.9)
    assert HALF.gain(feedback=True) == pytest.approx(0.81**0.1)


def test_finer_is_one_step_up_the_ladder_and_stops_at_its_top():
    assert finer(LADDER[3]) == LADDER[2]
    assert finer(LADDER[0]) == LADDER[0]


@given(
    steps=st.integers(1, 500),
    exponent=st.floats(0, 1),
    up=st.sampled_from(LADDER),
    down=st.sampled_from(LADDER),
)
def test_gain_grows_with_steps_but_no_faster(steps, exponent, up, down):
    one, more = (gain(Choice(e, up, down), exponent, feedback=True) for e in (steps, 2 * steps))
    assert one <= more <= 2 * one * (1 + 1e-9)


@given(factor=st.floats(1, 100), steps=st.integers(1, 100), offer=st.sampled_from(LADDER))
def test_a_round_takes_no_less_time_on_slower_links_or_devices(factor, steps, offer):
    choice = Choice(steps, offer, EXACT)
    fast = round_s(choice, cohort((0.1, 0.5, 1e-4), (0.2, 0.1, 1e-5)), size_of, size_of)
    slow_nodes = [(0.1 * factor, 0.5, 1e-4 * factor), (0.2, 0.1, 1e-5)]
    assert round_s(choice, cohort(*slow_nodes), size_of, size_of) >= fast


def test_a_round_waits_for_the_node_at_the_quantile():
    group = cohort(*((0.0, float(seconds), 0.0) for seconds in range(1, 12)))
    assert WAIT_QUANTILE == 0.8
    assert round_s(Choice(1, EXACT, EXACT), cohort((0.0, 7.0, 0.0)), size_of, size_of) == 7.0
    assert round_s(Choice(1, EXACT, EXACT), group, size_of, size_of) == pytest.approx(9.0)


@given(seconds=st.lists(st.floats(0, 1e6), min_size=1, max_size=30))
def test_the_quantile_is_numpy_s(seconds):
    times = np.array(seconds)
    assert waited_s(times) == pytest.approx(np.quantile(times, WAIT_QUANTILE))


def test_the_product_rule_by_hand():
    # One step a second, one second of upload for each 16 bits: seconds(E, exact) = E + 2,
    # seconds(E, half) = E + 1. With exponent 0.5 the best E equals the upload's seconds:
    #   exact, E = 2:  2^0.5 / 4 = 0.354;   half, E = 1:  0.81^0.9 / 2 = 0.414
    group = cohort((1.0, 0.0, 1 / 1600))
    assert product_rule(group, 0.5, [1, 2, 4], [EXACT]).local_steps == 2
    assert product_rule(group, 0.5, [1, 2, 4], [EXACT, HALF]) == Choice(1, HALF, EXACT)
    # Where the codec drops more than the time it saves, it is not used: 0.01^0.9 / 1.06 = 0.015
    assert product_rule(group, 0.5, [1, 2, 4], [EXACT, TINY]) == Choice(2, EXACT, EXACT)


def test_of_nearly_equal_scores_the_codec_that_drops_least_is_taken():
    group = cohort((1.0, 0.0, 0.0))
    almost = Offer("almost", 8, 1e-9)
    assert product_rule(group, 0.0, [1], [almost, EXACT]).up == EXACT
    assert best([1], [almost, EXACT], [EXACT], lambda c: 1.005 if c.up == almost else 1).up == EXACT
    assert best([1], [almost, EXACT], [EXACT], lambda c: 1.02 if c.up == almost else 1).up == almost


def test_lighter_means_that_no_codec_drops_more():
    light, mixed, hard = (Choice(1, a, b) for a, b in ((EXACT, EXACT), (EXACT, HALF), (HALF, TINY)))
    assert light.is_lighter_than(mixed)
    assert light.is_lighter_than(hard)
    assert not mixed.is_lighter_than(light)
    assert not Choice(1, TINY, EXACT).is_lighter_than(Choice(1, HALF, HALF))
    assert not light.is_lighter_than(light)


def test_a_device_whose_clock_shows_no_time_has_a_finite_speed():
    line = Line().seen(100, 0.0)
    group = Cohort.of([(line, line, 0.0)])
    assert group.step_s[0] > 0


def test_without_error_feedback_a_hard_codec_costs_more_gain_than_with_it():
    hard = Choice(local_steps=1, up=LADDER[-1], down=LADDER[0])

    with_feedback = gain(hard, 0.5, feedback=True)
    without = gain(hard, 0.5, feedback=False)

    assert with_feedback == pytest.approx((1 - LADDER[-1].nmse) ** 0.1)
    assert without == pytest.approx((1 - LADDER[-1].nmse) ** 0.9)
