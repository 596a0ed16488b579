"""FedDQ's bits on numbers from its formula, each client by its own update."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsys.errors import ConfigError
from strategies.feddq import MAX_BITS, FedDq, State


@pytest.mark.parametrize(
    ("norm", "bits"),
    # ceil(log2(range / step)) with 2^8 steps in a first update of norm 4:
    # 4 -> 8, 2 -> 7, 0.5 -> 5, 3 -> 8 + log2(3/4) = 7.58, 5 -> 8.3, 1/64 -> 0 but one is the least
    [(4.0, 8), (2.0, 7), (0.5, 5), (3.0, 8), (5.0, 9), (1 / 64, 1), (1e6, 16)],
)
def test_a_step_of_fixed_size_takes_a_bit_less_for_half_the_range(norm, bits):
    assert FedDq(first_bits=8).bits(State({1: norm}, 4.0), 1) == bits


@given(norm=st.floats(1e-9, 1e9), factor=st.floats(1, 1e6), first=st.integers(1, 16))
def test_bits_fall_with_the_update_and_stay_within_bounds(norm, factor, first):
    rule = FedDq(first_bits=first)
    small, large = (rule.bits(State({1: n}, 1.0), 1) for n in (norm, norm * factor))
    assert 1 <= small <= large <= MAX_BITS


def test_a_node_not_seen_yet_is_taken_for_the_mean_of_the_others():
    # mean of 1 and 3 is 2, half of the first round's 4
    assert FedDq(first_bits=8).bits(State({1: 1.0, 2: 3.0}, 4.0), 9) == 7


def test_shrinking_updates_make_the_uplink_coarser_for_each_client_by_itself(world, scene):
    # Node 1's updates halve each round, node 2's stay; the first round's mean square is 1.
    watched = world(
        FedDq(first_bits=6),
        scene(2),
        norm=lambda round_, node: 2.0 ** (1 - round_) if node == 1 else 1,
    )
    watched.run(5)
    assert [plan.clients[0].uplink for plan in watched.plans] == [
        "ecq(6)", "ecq(6)", "ecq(5)", "ecq(4)", "ecq(3)",
    ]  # fmt: skip
    assert {plan.clients[1].uplink for plan in watched.plans} == {"ecq(6)"}


@pytest.mark.parametrize("options", [{"first_bits": 0}, {"local_epochs": 0}])
def test_impossible_options_are_refused(options):
    (name,) = options
    with pytest.raises(ConfigError, match=name):
        FedDq(**options)
