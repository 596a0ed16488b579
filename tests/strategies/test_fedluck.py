"""FedLuck's bound by hand, its closed form, and that it is decided once."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.fedluck import FRACTIONS, FedLuck, Speed, best_of, best_steps, phi


def test_the_bound_by_hand():
    # k = 2, delta = 0.5, a = 1 s, b = 4 s, p = 2 s:
    #   ((2 - 0.5) (2 + 2)^2 / 4 + 1) / (2 * 0.5) = (6 + 1) / 1
    assert phi(2, 0.5, Speed(1.0, 4.0), 2.0) == pytest.approx(7.0)


def test_the_best_steps_by_hand():
    # delta = 1, a = 0.5 s, b = 3 s, p = 4 s: sqrt(9 + 16 / 1) / 0.5 = 10
    assert best_steps(1.0, Speed(0.5, 3.0), 4.0) == pytest.approx(10.0)


@given(
    fraction=st.sampled_from(FRACTIONS),
    a=st.floats(0.001, 1),
    b=st.floats(0.001, 100),
    p=st.floats(0.1, 100),
    factor=st.floats(0.2, 5),
)
def test_no_other_number_of_steps_is_better(fraction, a, b, p, factor):
    speed = Speed(a, b)
    at = best_steps(fraction, speed, p)
    assert phi(at, fraction, speed, p) <= phi(at * factor, fraction, speed, p) * (1 + 1e-9)


@given(a=st.floats(0.001, 1), b=st.floats(0.001, 100), p=st.floats(0.1, 100))
def test_the_choice_is_the_least_of_the_whole_grid(a, b, p):
    speed = Speed(a, b)
    steps, fraction = best_of(speed, p, FRACTIONS, 40)
    grid = min(phi(k, d, speed, p) for k in range(1, 41) for d in FRACTIONS)
    assert phi(steps, fraction, speed, p) == pytest.approx(grid)


@given(b=st.floats(0.01, 100), factor=st.floats(1, 100))
def test_a_slower_uplink_keeps_no_more_values(b, factor):
    fast, slow = (best_of(Speed(0.05, s), 2.0, FRACTIONS, 100)[1] for s in (b, factor * b))
    assert slow <= fast


@given(a=st.floats(0.01, 1), b=st.floats(0.001, 10), p=st.floats(0.1, 10))
def test_with_steps_without_limit_the_bound_is_least_without_compression(a, b, p):
    # At k*(delta) phi = (2 - delta) 2 a b / p^2 + 2 sqrt(A B), and both terms fall with delta.
    assert best_of(Speed(a, b), p, FRACTIONS, 10**9)[1] == 1.0


def test_the_first_round_measures_and_the_choice_is_for_good(world, scene, node):
    watched = world(FedLuck(), scene(3), lambda n: node(up_bps=2e3 * 10**n, step_s=0.02))
    watched.run(6)
    assert {c.uplink for c in watched.plans[0].clients} == {"none"}
    assert {c.local_steps for c in watched.plans[0].clients} == {10}
    chosen = watched.plans[1].clients
    assert [plan.clients for plan in watched.plans[2:]] == [chosen] * 4
    watched.node = node(up_bps=1e3)
    assert watched.run(3).clients == chosen
    kept = [float(re.search(r"\((.+)\)", c.uplink)[1]) for c in chosen]
    assert kept == sorted(kept)
    assert kept[0] < kept[-1]


def test_the_period_is_that_of_the_median_client_unless_given(world, scene, node):
    watched = world(FedLuck(), scene(3), lambda n: node(step_s=0.01 * n, up_bps=1e6))
    watched.run(1)
    # Node 2: ten steps of 0.02 s; 0.1 s of floor and the whole model at 1 Mbit/s.
    assert watched.state.period_s == pytest.approx(0.2 + 0.1 + 8 * (4 * 17_226 + 2000) / 1e6)
    assert FedLuck(period_s=3.0).start(scene()).period_s == 3.0


def test_a_node_met_later_gets_the_mean_until_it_is_measured(world, scene, node):
    watched = world(FedLuck(), scene(12, cohort=3), node())
    watched.run(8)
    assert {c.uplink for c in watched.plans[0].clients} == {"none"}
    # All nodes are alike, so the mean of some is any one's own.
    later = {(c.local_steps, c.uplink) for plan in watched.plans[1:] for c in plan.clients}
    assert len(later) <= 2
    assert len(watched.state.speeds) > 6
