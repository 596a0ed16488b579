"""The search on cases worked out by hand, and the laws its parts obey."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedsys.types import Quorum
from strategies._estimate import Line
from strategies._offers import BY_SPEC, LADDER, Offer
from strategies._search import Choice, Cohort, climb, closes_s

EXACT, HALF, TINY = Offer("exact", 32, 0.0), Offer("half", 16, 0.19), Offer("tiny", 1, 0.99)


def test_the_ladder_goes_from_light_to_hard():
    assert LADDER[0].spec == "none"
    pairs = list(itertools.pairwise(LADDER))
    assert all(a.bits > b.bits and a.nmse < b.nmse for a, b in pairs)
    assert list(BY_SPEC) == [offer.spec for offer in LADDER]


def test_a_round_ends_with_its_last_client_or_a_while_after_enough_of_them():
    done_s = np.array([9.0, 1.0, 2.0, 4.0])
    assert closes_s(done_s, None) == 9.0
    assert closes_s(done_s, Quorum(0.5, 1, 1.5, 8)) == 1.5 * 2.0
    assert closes_s(done_s, Quorum(0.5, 3, 1.5, 8)) == 1.5 * 4.0
    assert closes_s(done_s, Quorum(0.75, 9, 1.5, 8)) == 9.0


@given(seconds=st.lists(st.floats(0, 1e6), min_size=1, max_size=30), share=st.floats(0.01, 1))
def test_no_quorum_makes_a_round_longer(seconds, share):
    done_s = np.array(seconds)
    assert closes_s(done_s, Quorum(share, 1, 1.2, 8)) <= closes_s(done_s, None)


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


def test_a_device_whose_clock_shows_no_time_has_a_finite_speed():
    line = Line().seen(100, 0.0)
    group = Cohort.of([(line, line, 0.0)])
    assert group.step_s[0] > 0
