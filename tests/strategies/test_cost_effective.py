"""The optimum of Luo et al. by hand, the probes' ratio, and the cohort's order statistics."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsys.errors import ConfigError
from strategies.cost_effective import CostEffective, least_time, spread


def best_steps(ratio, a, b, nodes=5, max_steps=100):
    step_s, exchange_s = np.full(nodes, a), np.full(nodes, b)
    return least_time(ratio, step_s, exchange_s, [nodes], max_steps)[0]


@pytest.mark.parametrize(
    ("ratio", "a", "b", "expected"),
    [
        # 2 a E^3 + b E^2 = b A/B with B = 1:  a = 1, b = 8, E = 4:  128 + 128 = 8 * 32
        (32.0, 1.0, 8.0, 4),
        # a = 1, b = 2, E = 3:  54 + 18 = 2 * 36
        (36.0, 1.0, 2.0, 3),
        # b >> a E: E -> sqrt(A/B) = 7
        (49.0, 1e-9, 1.0, 7),
        # b << a E: E -> (A b / 2 a)^(1/3) = (16000 * 0.001 / 2)^(1/3) = 2
        (16_000.0, 1.0, 0.001, 2),
        (0.0, 1.0, 1.0, 1),
        (math.inf, 1.0, 1.0, 100),
    ],
)
def test_steps_solve_the_cubic_of_the_paper(ratio, a, b, expected):
    assert best_steps(ratio, a, b) == expected


@given(ratio=st.floats(0, 1e4), b=st.floats(0.01, 100), factor=st.floats(1, 50))
def test_the_dearer_an_exchange_the_more_steps(ratio, b, factor):
    assert best_steps(ratio, 0.1, b) <= best_steps(ratio, 0.1, factor * b)


@given(ratio=st.floats(0, 1e4), a=st.floats(1e-3, 10), b=st.floats(0, 100))
def test_steps_stay_within_their_bounds(ratio, a, b):
    assert 1 <= best_steps(ratio, a, b, max_steps=30) <= 30


@given(ratio=st.floats(0.5, 500))
def test_the_ratio_is_found_again_from_what_both_probes_would_gain(ratio):
    rule = CostEffective(probe_steps=(5, 20))
    short, long = (1 / (ratio / e + e) for e in (5, 20))
    assert rule.ratio_of(short, long, 1.0) == pytest.approx(ratio, rel=1e-6)


def test_probes_that_differ_more_or_less_than_any_ratio_could_explain_are_at_the_ends():
    rule = CostEffective(probe_steps=(5, 20))
    # At most 20 / 5 = 4 times, where only steps count; at least 1 / 4, where only drift does.
    assert rule.ratio_of(1.0, 4.0, 1.0) == math.inf
    assert rule.ratio_of(1.0, 0.2, 1.0) == 0.0
    assert rule.ratio_of(1.0, -1.0, 1.0) == 0.0
    assert rule.ratio_of(-1.0, 1.0, 1.0) == math.inf


def test_sampling_all_clients_adds_no_spread_and_one_doubles_it():
    assert spread(10, 10) == 1.0
    # 1 + (10 - 1) / (1 * 9)
    assert spread(10, 1) == 2.0


def test_the_cohort_is_the_least_time_over_all_cohorts_that_could_be_drawn():
    # Rounds are (A/B / E + C(K) E); a round is the slowest of K. By enumeration of the cohorts:
    a, b, ratio = np.array([0.1, 0.2, 0.4, 2.0]), np.array([1.0, 1.5, 0.5, 9.0]), 60.0

    def cost(steps, cohort):
        times = a * steps + b
        draws = list(itertools.combinations(range(4), cohort))
        mean = sum(max(times[list(draw)]) for draw in draws) / len(draws)
        return (ratio / steps + spread(4, cohort) * steps) * mean

    expected = min(itertools.product(range(1, 31), range(1, 5)), key=lambda pair: cost(*pair))
    assert least_time(ratio, a, b, range(1, 5), 30) == expected
    assert expected[1] < 4


def test_probes_take_turns_and_then_one_choice_stays(world, scene, node):
    # 1/F rises by 1 / (A/E + B E) in a round, with A = 10, B = 0.1, all taking part: A/B = 100.
    def loss(round_):
        probes = [(5, 20)[at % 2] for at in range(round_ - 1)]
        return 1 / (0.5 + sum(1 / (10 / e + 0.1 * e) for e in probes))

    watched = world(CostEffective(probe_rounds=3), scene(4), node(step_s=1e-6), loss)
    watched.run(12)
    steps = [plan.clients[0].local_steps for plan in watched.plans]
    assert steps[:6] == [5, 20, 5, 20, 5, 20]
    assert watched.state.ratio == pytest.approx(100, rel=1e-6)
    # Steps cost nothing here, so E = sqrt(A/B).
    assert steps[7:] == [10] * 5


def test_with_choose_cohort_the_cohort_changes_too(world, scene, node):
    def speeds(node_id):
        return node(step_s=0.01, up_bps=1e4 if node_id == 1 else 1e7)

    watched = world(CostEffective(probe_rounds=2, choose_cohort=True), scene(6), speeds)
    watched.run(8)
    assert len(watched.plans[0].clients) == 6
    assert len(watched.plans[-1].clients) < 6


@pytest.mark.parametrize("probes", [(20, 5), (5, 5), (0, 5)])
def test_probes_must_differ(probes):
    with pytest.raises(ConfigError, match="probe_steps must be two whole numbers"):
        CostEffective(probe_steps=probes)
