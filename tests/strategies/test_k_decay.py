"""The three schedules of Mills et al. on numbers from their formulas."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsys.errors import ConfigError
from strategies.k_decay import KDecay, State


@pytest.mark.parametrize(
    # 64 r^(-1/3): r = 8 -> 32, r = 64 -> 16, r = 1000 -> 6.4, r = 300000 -> 0.96
    ("round_", "expected"),
    [(1, 64), (8, 32), (64, 16), (1000, 7), (300_000, 1)],
)
def test_by_rounds_steps_fall_with_the_cube_root_of_the_round(round_, expected):
    assert KDecay(initial_steps=64, rule="rounds").steps(State(), round_) == expected


@pytest.mark.parametrize(
    # 64 (F / 2)^(1/3): F = 0.25 -> 32, F = 2 -> 64, F = 0.002 -> 6.4; above F0 it stays at K0
    ("loss", "expected"),
    [(2.0, 64), (0.25, 32), (0.002, 7), (4.0, 64), (0.0, 1)],
)
def test_by_error_steps_fall_with_the_cube_root_of_the_loss(loss, expected):
    rule = KDecay(initial_steps=64, rule="error", window_rounds=2)
    assert rule.steps(State(2.0, (9.0, loss, loss)), 5) == expected


def test_by_step_one_plateau_drops_the_steps_for_good(world, scene):
    def loss(round_):
        return 2.0 * 0.8 ** min(round_, 6)

    rule = KDecay(initial_steps=30, rule="step", window_rounds=3, drop=0.1)
    watched = world(rule, scene(2), loss=loss)
    watched.run(20)
    steps = [plan.clients[0].local_steps for plan in watched.plans]
    # From round 6 on nothing changes; rounds 6 to 8 against 9 to 11 are the first flat windows.
    assert steps == [30] * 11 + [3] * 9


def test_by_error_the_steps_of_a_falling_loss_fall(world, scene):
    watched = world(KDecay(initial_steps=50, window_rounds=3), scene(2))
    watched.run(20)
    steps = [plan.clients[0].local_steps for plan in watched.plans]
    assert steps == sorted(steps, reverse=True)
    assert steps[0] == 50
    assert steps[-1] < 20


@given(
    k0=st.integers(1, 200),
    rule=st.sampled_from(["rounds", "error", "step"]),
    round_=st.integers(1, 10**6),
    losses=st.lists(st.floats(0, 100), min_size=1, max_size=8),
    dropped=st.booleans(),
)
def test_steps_stay_between_one_and_k0(k0, rule, round_, losses, dropped):
    state = State(losses[0], tuple(losses), dropped)
    assert 1 <= KDecay(initial_steps=k0, rule=rule).steps(state, round_) <= k0


@pytest.mark.parametrize("options", [{"initial_steps": 0}, {"window_rounds": 0}, {"drop": 0.0}])
def test_impossible_options_are_refused(options):
    (name,) = options
    with pytest.raises(ConfigError, match=name):
        KDecay(**options)
