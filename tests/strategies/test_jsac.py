"""The bound of Wang et al. by hand, its minimum, and what is measured from two rounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies._signals import Pace
from strategies.jsac import Jsac, Terrain, gap

FIGURES = st.floats(1e-3, 1e3)


def test_the_gap_by_hand():
    # eta = 0.1, beta = 10, so eta beta = 1; delta = 2, rho = 3, phi = 0.5, tau = 2.
    #   h = (2 / 10) (2^2 - 1) - 0.1 * 2 * 2 = 0.6 - 0.4 = 0.2
    #   T = 100 * 2 / (1 * 2 + 3) = 40
    #   G = (1 + sqrt(1 + 4 * 1600 * 0.5 * 3 * 0.1 * 0.2 / 2)) / (2 * 40 * 0.1 * 0.5) + 3 * 0.2
    #     = (1 + sqrt(97)) / 4 + 0.6 = 3.3122
    terrain = Terrain(rho=3.0, beta=10.0, delta=2.0)
    found = gap(2, 0.1, terrain, Pace(step_s=1.0, exchange_s=3.0), 100.0, phi=0.5)
    assert found == pytest.approx((1 + 97**0.5) / 4 + 0.6)


def test_one_step_does_not_drift():
    # h(1) = (delta / beta) eta beta - eta delta = 0, so G(1) = (1 + 1) / (2 T eta phi)
    terrain = Terrain(rho=3.0, beta=10.0, delta=2.0)
    found = gap(1, 0.1, terrain, Pace(1.0, 3.0), 100.0, phi=0.5)
    assert found == pytest.approx(1 / (100 / 4 * 0.1 * 0.5))


def best(terrain, pace, last=10):
    return Jsac().best_steps(0.1, terrain, pace, 1000.0, last)


def test_equal_gradients_take_all_the_steps_allowed_and_unequal_ones_few():
    pace = Pace(step_s=0.01, exchange_s=1.0)
    assert best(Terrain(rho=1.0, beta=1.0, delta=0.0), pace) == 100
    assert best(Terrain(rho=1.0, beta=1.0, delta=100.0), pace) < 5


def test_free_exchanges_happen_at_every_step():
    assert best(Terrain(rho=1.0, beta=1.0, delta=1.0), Pace(0.01, 0.0)) == 1


@given(rho=FIGURES, beta=FIGURES, delta=FIGURES, b=st.floats(0, 100), last=st.integers(1, 100))
def test_the_choice_is_the_least_of_those_within_reach(rho, beta, delta, b, last):
    terrain, pace = Terrain(rho=rho, beta=beta, delta=delta), Pace(0.05, b)
    found = best(terrain, pace, last)
    reach = range(1, min(100, 10 * last) + 1)
    assert found in reach
    values = [gap(tau, 0.1, terrain, pace, 1000.0, 0.025) for tau in reach]
    assert values[found - 1] == min(values)


@given(delta=FIGURES, factor=st.floats(1, 100))
def test_the_more_clients_differ_the_fewer_the_steps(delta, factor):
    pace = Pace(0.01, 1.0)
    few, many = (best(Terrain(rho=1.0, beta=1.0, delta=d), pace) for d in (factor * delta, delta))
    assert few <= many


def test_the_terrain_is_measured_from_losses_steps_and_norms(world, scene, node):
    # One local step at eta = 0.1; losses 10 and then 2; the server moved by |D| = 1; the updates
    # have norm 1 and agreement 0.5 in the emulated records.
    #   rho = |2 - 10| / 1 = 8;   beta = 2 (2 - 10) / 1 + 2 / 0.1 = 4
    #   delta = sqrt(0.5 * 1) / 0.1 = 7.071
    watched = world(Jsac(), scene(3), node(), lambda round_: 18.0 - 8.0 * round_)
    watched.run(1)
    assert watched.state.terrain is None
    watched.run(1)
    found = watched.state.terrain
    assert (found.rho, found.beta) == (pytest.approx(8.0), pytest.approx(4.0))
    assert found.delta == pytest.approx(0.5**0.5 / 0.1)
    # c and b are the measured ones: 0.01 s a step; 0.2 s of floors and the two transfers.
    size_bits = 8 * (4 * 17_226 + 2000)
    assert watched.state.pace.step_s == pytest.approx(0.01)
    assert watched.state.pace.exchange_s == pytest.approx(0.2 + size_bits / 1e6 + size_bits / 2e6)


def test_a_loss_is_no_more_curved_than_its_training_can_bear(world, scene, node):
    # Losses 2 and then 1.5 would be beta = 2 (1.5 - 2) / 1 + 2 / 0.1 = 19, so eta beta = 1.9.
    watched = world(Jsac(), scene(3), node(), lambda round_: 2.5 - 0.5 * round_)
    watched.run(2)
    assert watched.state.terrain.beta == pytest.approx(1 / 0.1)


def test_it_begins_with_the_steps_asked_for(world, scene, node):
    watched = world(Jsac(initial_steps=80), scene(3), node())
    watched.run(2)
    assert [plan.clients[0].local_steps for plan in watched.plans] == [80, 80]


def test_the_budget_is_the_options_or_the_experiments_or_its_rounds_at_the_first_ones_length(
    world, scene
):
    for options, changes, expected in (
        ({"budget_s": 5.0}, {"budget_s": 7.0}, 5.0),
        ({}, {"budget_s": 7.0}, 7.0),
    ):
        watched = world(Jsac(**options), scene(2, **changes))
        watched.run(2)
        assert watched.state.budget_s == expected
    watched = world(Jsac(), scene(2, rounds=50))
    watched.run(2)
    assert watched.state.budget_s == pytest.approx(50 * watched.records[0].end_s)
