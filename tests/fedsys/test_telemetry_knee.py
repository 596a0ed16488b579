"""The knee lies where the paper says, and where there is none, none is found."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsys.telemetry.knee import knee


def test_the_papers_own_curve_has_its_knee_at_two_ninths():
    # Figure 2 of the paper: f(x) = 5 - 1 / (x + 0.1) on ten points of [0, 1], knee at x = 0.22.
    x = np.linspace(0, 1, 10)
    assert x[knee(x, 1 / (x + 0.1))] == pytest.approx(2 / 9)


def test_the_knee_of_a_hyperbola_is_the_geometric_mean_of_its_ends():
    # On 1/x the slope of the chord over [a, b] is -1/(ab), which 1/x has at x = sqrt(ab).
    x = np.linspace(1, 4, 301)
    assert x[knee(x, 1 / x)] == pytest.approx(2.0, abs=0.01)


def test_decades_are_compared_by_their_logarithms():
    x = np.array([1, 10, 100, 1000])
    assert knee(x, [10.0, 2.0, 1.5, 1.0]) == 1


def test_what_comes_after_the_least_cost_does_not_count():
    x = [1, 2, 4, 8, 16, 32]
    down = [100, 50, 30, 25, 24]
    assert knee(x[:5], down) == knee(x, [*down, 1e6])


@pytest.mark.parametrize(
    "costs",
    [
        [5.0, 4.0, 3.0, 2.0],  # a line
        [1.0, 2.0, 3.0, 4.0],  # the first is the best
        [3.0, 1.0, 2.0, 3.0],  # two points down to the best
        [1.0, 1.0, 1.0, 1.0],
        [math.inf, 2.0, 1.5, 1.0],
        [10.0, 9.0, 7.0, 1.0],  # bends the other way
    ],
)
def test_a_line_a_rise_and_a_flat_have_no_knee(costs):
    assert knee([1, 2, 3, 4], costs) is None


@given(
    costs=st.lists(st.floats(0.1, 1e6), min_size=3, max_size=12),
    factor=st.floats(0.1, 1e3),
)
def test_the_unit_of_the_cost_does_not_move_the_knee(costs, factor):
    x = list(range(1, len(costs) + 1))
    at = knee(x, costs)
    assert knee(x, [factor * cost for cost in costs]) == at
    assert at is None or 0 < at <= int(np.argmin(costs))
