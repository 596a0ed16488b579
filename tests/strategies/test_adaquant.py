"""AdaQuantFL's levels and bits on numbers from the paper's formula."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsys.errors import ConfigError
from strategies.adaquant import AdaQuant, State, bits_of


@pytest.mark.parametrize(
    ("loss", "levels"),
    # ceil(2 sqrt(2.4 / F)): F = 2.4 -> 2, F = 0.6 -> 4, F = 0.024 -> 20, F = 1 -> 3.098
    [(2.4, 2), (0.6, 4), (0.024, 20), (1.0, 4), (9.6, 1)],
)
def test_levels_grow_with_the_inverse_root_of_the_loss(loss, levels):
    assert AdaQuant(initial_levels=2).levels(State(2.4, loss)) == levels


@pytest.mark.parametrize(
    # QSGD with s levels sends ceil(log2(s + 1)) bits and a sign
    ("levels", "bits"),
    [(1, 2), (2, 3), (3, 3), (4, 4), (7, 4), (8, 5), (20, 6), (255, 9)],
)
def test_bits_are_those_of_a_level_and_a_sign(levels, bits):
    assert bits_of(levels) == bits


@given(low=st.floats(1e-6, 10), factor=st.floats(1, 1e3))
def test_a_lower_loss_never_takes_fewer_levels(low, factor):
    rule = AdaQuant()
    assert rule.levels(State(5.0, low)) >= rule.levels(State(5.0, low * factor)) >= 1


def test_without_a_loss_the_levels_are_the_first(scene):
    assert AdaQuant(initial_levels=3).levels(State()) == 3


@pytest.mark.parametrize(
    ("feedback", "specs"),
    # F halves each round: levels 2, 2, 3 (2.83), 4, 6 (5.66), 8, 12 (11.3), 16
    #                      bits   3, 3, 3,        4, 4,        5, 5,         6
    [
        (True, [3, 3, 3, 4, 4, 5, 5, 6]),
        (False, [3, 3, 3, 4, 4, 8, 8, 8]),
    ],
)
def test_a_falling_loss_makes_the_uplink_finer(world, scene, feedback, specs):
    here = scene(3, feedback=feedback, downlink="fp16")
    watched = world(AdaQuant(), here, loss=lambda round_: 2.0**-round_)
    watched.run(8)
    expected = {b: f"ecq({b})" if feedback else f"eden({b})" for b in (3, 4, 5, 6)}
    expected[8] = "int8(rounding=stochastic)"
    assert [plan.clients[0].uplink for plan in watched.plans] == [expected[b] for b in specs]
    assert {plan.downlink for plan in watched.plans} == {"fp16"}


@pytest.mark.parametrize("options", [{"initial_levels": 0}, {"local_epochs": 0}])
def test_impossible_options_are_refused(options):
    (name,) = options
    with pytest.raises(ConfigError, match=name):
        AdaQuant(**options)
