"""AdaComm's rule on numbers from the paper's formula, and that tau only ever falls."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsys.errors import ConfigError
from strategies.adacomm import AdaComm


@pytest.mark.parametrize(
    ("steps", "loss", "expected"),
    [
        # tau0 = 20, F0 = 2. sqrt(0.5 / 2) 20 = 10
        (20, 0.5, 10),
        # sqrt(1.8 / 2) 20 = 18.97
        (20, 1.8, 19),
        # sqrt(0.02 / 2) 20 = 2
        (20, 0.02, 2),
        # 18.97 is no less than 10: half of that
        (10, 1.8, 5),
        (3, 1.8, 2),
        (1, 1.8, 1),
        # a loss that rose asks for more, and is halved as well
        (20, 3.0, 10),
    ],
)
def test_steps_follow_the_root_of_the_loss_or_are_halved(steps, loss, expected):
    assert AdaComm(initial_steps=20).next_steps(steps, 2.0, loss) == expected


@given(steps=st.integers(1, 100), loss=st.floats(0, 50), tau0=st.integers(1, 100))
def test_steps_never_rise_and_are_at_least_one(steps, loss, tau0):
    assert 1 <= AdaComm(initial_steps=tau0).next_steps(steps, 2.0, loss) <= max(1, steps)


@given(low=st.floats(0.001, 2), factor=st.floats(1, 10))
def test_while_the_rule_itself_lowers_tau_it_is_lower_for_a_lower_loss(low, factor):
    rule = AdaComm(initial_steps=50)
    assert rule.next_steps(51, 2.0, low) <= rule.next_steps(51, 2.0, min(2.0, factor * low))


def test_it_decides_once_an_interval_on_the_mean_loss_of_that_interval(world, scene, node):
    # 20 steps of 0.5 s and 2 exchanges: a round takes a little over 10 s, three take over 30 s.
    losses = [2.0, 0.8, 0.4, 0.2]
    watched = world(
        AdaComm(initial_steps=20, interval_s=30.0),
        scene(2),
        node(step_s=0.5),
        lambda round_: losses[round_ - 1],
    )
    watched.run(3)
    assert [plan.clients[0].local_steps for plan in watched.plans] == [20, 20, 20]
    # Mean of the first interval's losses 2.0, 0.8, 0.4 is 3.2 / 3: sqrt(1.0667 / 2) 20 = 14.6
    assert watched.run(1).clients[0].local_steps == 15


@pytest.mark.parametrize("step_s", [0.001, 0.5, 60.0])
def test_an_interval_may_be_so_many_first_rounds_on_links_and_devices_of_any_speed(
    world, scene, node, step_s
):
    watched = world(
        AdaComm(initial_steps=20, interval_rounds=3, interval_s=1e9),
        scene(2),
        node(step_s=step_s),
        lambda round_: 4.0 / round_,
    )
    watched.run(3)
    # Mean of the losses 4, 2, 4/3: sqrt(2.444 / 4) 20 = 15.6
    assert [plan.clients[0].local_steps for plan in watched.plans] == [20, 20, 20]
    assert watched.run(1).clients[0].local_steps == 16


@pytest.mark.parametrize(
    "options",
    [{"initial_steps": 0}, {"interval_s": 0.0}, {"interval_rounds": 0}, {"shrink": 1.0}],
)
def test_impossible_options_are_refused(options):
    (name,) = options
    with pytest.raises(ConfigError, match=name):
        AdaComm(**options)
