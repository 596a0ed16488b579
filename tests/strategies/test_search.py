"""The search on cases worked out by hand, and the laws its parts obey."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies._estimate import Line
from strategies._offers import BY_SPEC, LADDER, Offer
from strategies._search import (
    LEAST_SHARE,
    WAIT_QUANTILE,
    Choice,
    Cohort,
    climb,
    harder,
    share_out,
    waited_s,
)

EXACT, HALF, TINY = Offer("exact", 32, 0.0), Offer("half", 16, 0.19), Offer("tiny", 1, 0.99)


def group_of(*steps_s):
    zero = np.zeros(len(steps_s))
    return Cohort(np.array(steps_s, np.float64), zero, zero, zero, zero)


def shared(choice, step_s, down_s, up_s, hard_up_s, equalise=True):
    columns = (np.array(column, np.float64) for column in (down_s, up_s, hard_up_s))
    return share_out(choice, group_of(*step_s), *columns, equalise=equalise)


def test_the_ladder_goes_from_light_to_hard():
    assert LADDER[0].spec == "none"
    pairs = list(itertools.pairwise(LADDER))
    assert all(a.bits > b.bits and a.nmse < b.nmse for a, b in pairs)
    assert list(BY_SPEC) == [offer.spec for offer in LADDER]


def test_a_harder_codec_stays_on_the_ladder():
    assert harder(LADDER[1]) == LADDER[3]
    assert harder(LADDER[-2]) == LADDER[-1]
    assert harder(EXACT) == EXACT


def test_equal_nodes_do_equal_work():
    work = shared(Choice(8, HALF, EXACT), [0.5] * 3, [1] * 3, [2] * 3, [1] * 3)
    assert work.steps.tolist() == [8, 8, 8]
    assert not work.is_slow.any()
    assert work.last_s == 1 + 4 + 2


def test_a_slow_node_gets_the_steps_that_fit_and_the_harder_codec():
    # Nine nodes end at 10 s; the slow one would at 1 + 8 x 1.5 + 4 = 17 s. With 2 s of upload
    # there are 7 s left for training, which are 4 steps.
    down_s, up_s, hard_s = [1.0] * 10, [1.0] * 9 + [4.0], [0.5] * 9 + [2.0]
    work = shared(Choice(8, HALF, EXACT), [1.0] * 9 + [1.5], down_s, up_s, hard_s)
    assert work.is_slow.tolist() == [False] * 9 + [True]
    assert work.steps.tolist() == [8] * 9 + [4]
    assert work.finish_s[-1] == 1 + 4 * 1.5 + 2
    assert work.alone_s[-1] == 17
    assert work.last_s == 10


def test_no_node_does_less_than_a_quarter_and_the_round_then_waits():
    work = shared(Choice(8, HALF, EXACT), [1.0] * 9 + [50.0], [1] * 10, [1] * 10, [1] * 10)
    assert work.steps[-1] == 8 // LEAST_SHARE
    assert work.last_s == 1 + 2 * 50 + 1


def test_without_equalising_all_do_the_same():
    work = shared(
        Choice(8, HALF, EXACT), [1.0] * 9 + [50.0], [1] * 10, [1] * 10, [1] * 10, equalise=False
    )
    assert set(work.steps.tolist()) == {8}
    assert work.last_s == 402


@given(seconds=st.lists(st.floats(0, 1e6), min_size=1, max_size=30))
def test_the_quantile_is_numpy_s(seconds):
    times = np.array(seconds)
    assert waited_s(times) == pytest.approx(np.quantile(times, WAIT_QUANTILE))


def test_the_climb_finds_the_top_of_a_hill_whose_knobs_act_apart():
    def height(choice):
        return -((choice.local_steps - 8) ** 2) + choice.up.bits - choice.down.bits

    knobs = {"local_steps": (1, 2, 4, 8, 16), "up": (EXACT, HALF, TINY), "down": (HALF, TINY)}
    top = climb(Choice(1, TINY, HALF), knobs, lambda choice: 100 + height(choice))
    assert top == Choice(8, EXACT, TINY)


def test_of_nearly_equal_scores_the_codec_that_drops_least_is_taken():
    knobs = {"up": (HALF, EXACT)}
    start = Choice(1, HALF, EXACT)
    assert climb(start, knobs, lambda c: 1.005 if c.up == HALF else 1).up == EXACT
    assert climb(start, knobs, lambda c: 1.02 if c.up == HALF else 1).up == HALF


def test_lighter_means_the_same_but_for_a_codec_that_drops_less():
    light, mixed, hard = (Choice(1, a, b) for a, b in ((EXACT, EXACT), (EXACT, HALF), (HALF, TINY)))
    assert light.is_lighter_than(mixed)
    assert light.is_lighter_than(hard)
    assert not mixed.is_lighter_than(light)
    assert not Choice(1, TINY, EXACT).is_lighter_than(Choice(1, HALF, HALF))
    assert not light.is_lighter_than(light)
    assert not replace(light, local_steps=2).is_lighter_than(mixed)


def test_a_device_whose_clock_shows_no_time_has_a_finite_speed():
    line = Line().seen(100, 0.0)
    group = Cohort.of([(line, line, 0.0)])
    assert group.step_s[0] > 0
