"""When a round closes, on cases worked out by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsys.closing import Closing
from fedsys.types import Quorum

HALF = Quorum(share=0.5, least=1, factor=1.5, max_staleness=8)


def test_a_round_ends_a_while_after_half_have_answered():
    closing = Closing(HALF, begin_s=10.0, asked=4)
    closing.answered(12.0, own=1)
    assert (closing.is_waiting, closing.until_s) == (True, math.inf)
    closing.answered(14.0, own=1)
    assert (closing.is_waiting, closing.until_s) == (True, 10 + 1.5 * 4)
    closing.answered(15.0, own=1)  # what comes later does not put it off
    assert (closing.is_waiting, closing.until_s) == (True, 16.0)
    closing.answered(15.5, own=1)
    assert not closing.is_waiting


def test_the_deadline_stays_where_it_is_earlier():
    closing = Closing(HALF, begin_s=0.0, asked=2, until_s=5.0)
    closing.answered(4.0, own=1)
    assert closing.until_s == 5.0


def test_who_fails_is_not_counted():
    closing = Closing(HALF, begin_s=0.0, asked=6)
    closing.failed(0.1, own=4)  # errors at once do not close a round
    assert (closing.is_waiting, closing.until_s) == (True, math.inf)
    closing.answered(2.0, own=1)  # of the two that are left it is half
    assert closing.until_s == 3.0
    closing.failed(2.5, own=1)
    assert not closing.is_waiting


def test_late_replies_count_for_the_least_and_not_for_the_share():
    closing = Closing(Quorum(0.5, 3, 1.0, 8), begin_s=0.0, asked=2, late=4)
    closing.answered(1.0, late=3)
    assert closing.until_s == math.inf
    closing.answered(2.0, own=1)
    assert closing.until_s == 2.0
    few = Closing(Quorum(0.5, 3, 1.0, 8), begin_s=0.0, asked=1, late=4)
    few.answered(1.0, own=1)
    assert few.is_waiting
    few.answered(3.0, late=2)
    assert not few.is_waiting


@given(asked=st.integers(0, 6), late=st.integers(0, 6), least=st.integers(0, 9), data=st.data())
def test_nobody_is_waited_for_when_all_have_answered(asked, late, least, data):
    closing = Closing(Quorum(0.5, least, 1.1, 8), 0.0, asked, late)
    order = data.draw(st.permutations([True] * asked + [False] * late))
    for at, is_own in enumerate(order):
        tell = data.draw(st.sampled_from([closing.answered, closing.failed]))
        tell(float(at), own=int(is_own), late=int(not is_own))
    assert not closing.is_waiting


@pytest.mark.parametrize("asked", [0, 3])
def test_without_a_quorum_it_waits_for_everyone(asked):
    closing = Closing(None, 0.0, asked, 5)
    for _ in range(asked):
        assert closing.is_waiting
        closing.answered(1.0, own=1)
    assert not closing.is_waiting
    assert closing.until_s == math.inf
