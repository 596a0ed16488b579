"""The sign rule of Han et al. by hand, and that it finds the cheaper side."""

import math
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsys.errors import ConfigError
from strategies.adasparse import PATIENCE, AdaSparse, State, cost_of

COST = st.one_of(st.none(), st.floats(1e-3, 1e3))


def test_the_cost_is_seconds_for_a_unit_of_log_loss():
    # 2 s for a decrease by a factor of e^(1/2)
    assert cost_of(2.0, 1.0, math.exp(-0.5)) == pytest.approx(4.0)
    assert cost_of(2.0, 1.0, 1.0) is None
    assert cost_of(2.0, 1.0, 1.5) is None
    assert cost_of(2.0, None, 1.0) is None


@pytest.mark.parametrize(
    ("cost", "probe_cost", "kept"),
    [
        # Interval [0.2, 1], so B = 0.8; the 8th update: eta = 0.8 / sqrt(16) = 0.2
        (5.0, 4.0, 0.3),
        (4.0, 5.0, 0.7),
        (4.0, 4.0, 0.5),
    ],
)
def test_a_share_moves_by_the_sign_alone(cost, probe_cost, kept):
    state = State(0.2, 1.0, 0.5, 0.4, updates=7)
    after = AdaSparse().moved(state, cost, probe_cost)
    assert after.kept == pytest.approx(kept)
    # k' = k - eta / 2
    assert after.probe == pytest.approx(min(kept - 0.1, 0.9 * kept))


def test_a_step_of_any_size_stays_in_the_interval():
    # The first step is B / sqrt(2) = 0.566
    state = State(0.2, 1.0, 0.5, 0.4)
    assert AdaSparse().moved(state, 9.0, 1.0).kept == 0.2
    assert AdaSparse().moved(state, 1.0, 9.0).kept == 1.0


def test_where_nothing_can_be_compared_it_waits_and_then_sends_more():
    state, rule = State(0.2, 1.0, 0.3, 0.25, updates=7), AdaSparse()
    for _ in range(PATIENCE):
        state = rule.moved(state, None, 1.0)
        assert state.kept == 0.3
    after = rule.moved(state, None, 1.0)
    # 18 updates: eta = 0.8 / 6
    assert after.kept == pytest.approx(0.3 + 0.8 / 6)
    assert after.misses == 0


def test_a_window_of_near_values_shrinks_the_interval_to_them():
    # Visited 0.1 to 0.12: [0.1 / 1.5, 0.12 * 1.5] = [0.0667, 0.18], 0.113 wide, which is less than
    # (sqrt(2) - 1) of 0.998.
    state = State(0.002, 1.0, 0.11, 0.1, updates=400, visited=(0.1, 0.12) * 9 + (0.11,))
    after = AdaSparse().moved(state, 1.0, 1.0)
    assert (after.low, after.high) == (pytest.approx(0.1 / 1.5), pytest.approx(0.18))
    assert (after.updates, after.last_updates, after.visited) == (0, 401, ())


def test_a_window_of_values_far_apart_leaves_the_interval():
    state = State(0.002, 1.0, 0.5, 0.4, updates=400, visited=(0.1, 0.9) * 9 + (0.5,))
    after = AdaSparse().moved(state, 1.0, 1.0)
    assert (after.low, after.high, after.visited) == (0.002, 1.0, ())


@settings(max_examples=40)
@given(
    costs=st.lists(st.tuples(COST, COST), min_size=1, max_size=60),
    first=st.floats(0.01, 1),
    low=st.floats(0.002, 0.5),
)
def test_shares_stay_in_the_interval_and_the_probe_below(scene, costs, first, low):
    rule = AdaSparse(first_fraction=first, min_fraction=low)
    state = rule.start(scene(1))
    for cost, probe_cost in costs:
        state = rule.moved(state, cost, probe_cost)
        assert low <= state.low <= state.kept <= state.high <= 1
        assert 0 < state.probe < state.kept


def fraction(plan):
    return float(re.search(r"\((.+)\)\|", plan.clients[0].uplink)[1])


def test_of_three_rounds_the_second_probes(world, scene):
    watched = world(AdaSparse(first_fraction=0.5), scene(2))
    watched.run(3)
    assert [fraction(plan) for plan in watched.plans] == [0.5, 0.45, 0.5]


def test_where_what_is_sent_does_not_matter_less_and_less_is_sent(world, scene, node):
    # The loss falls by the same factor every round, so only seconds count.
    watched = world(AdaSparse(first_fraction=1.0), scene(2), node(up_bps=1e4))
    watched.run(90)
    assert fraction(watched.plans[-3]) < 0.1


def test_where_exchanges_are_free_more_is_sent_if_it_helps(world, scene, node):
    watched = world(AdaSparse(first_fraction=0.3), scene(2), node(up_bps=1e15))
    losses = [2.0]

    def loss(round_):
        while len(losses) < round_:
            kept = fraction(watched.plans[len(losses) - 1])
            losses.append(losses[-1] * (1 - 0.2 * kept**0.5))
        return losses[round_ - 1]

    watched.loss = loss
    watched.run(90)
    assert fraction(watched.plans[-3]) > 0.8


def test_moved_is_all_that_depends_on_costs():
    state = State(0.2, 1.0, 0.5, 0.4)
    assert AdaSparse().moved(state, 2.0, 1.0) == AdaSparse().moved(replace(state), 20.0, 1.5)


@pytest.mark.parametrize("options", [{"alpha": 1.0}, {"min_fraction": 0.0}, {"window_updates": 0}])
def test_impossible_options_are_refused(options):
    (name,) = options
    with pytest.raises(ConfigError, match=name):
        AdaSparse(**options)
