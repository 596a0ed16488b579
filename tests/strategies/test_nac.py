"""NAC-FL's choice against all choices there are, its running means, and what links do to it."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from strategies._specs import QUANTIZERS
from strategies.nac import Nac, best_of, rounds_of

BITS = {offer.spec: offer.bits for offer in QUANTIZERS[True]}
NMSE = (0.5, 0.2, 0.0)


def test_the_rounds_factor_is_the_root_of_one_and_the_mean_error():
    assert rounds_of([0.0, 0.0]) == 1.0
    # sqrt(1 + (0.9 + 0.6) / 2) = sqrt(1.75)
    assert rounds_of([0.9, 0.6]) == pytest.approx(1.75**0.5)


def test_the_choice_by_hand():
    # One client, done after 1, 2 or 4 s; r = 1.2 and D = 6 s:
    #   1.2 * 1 + 6 sqrt(1.5) = 8.55;   1.2 * 2 + 6 sqrt(1.2) = 8.97;   1.2 * 4 + 6 = 10.8
    assert best_of(np.array([[1.0], [2.0], [4.0]]), NMSE, 1.2, 6.0) == [0]
    # with D = 20 s: 25.7, 24.3, 24.8
    assert best_of(np.array([[1.0], [2.0], [4.0]]), NMSE, 1.2, 20.0) == [1]


def test_a_client_with_time_to_spare_sends_as_light_as_the_slowest_one_allows():
    # The second client needs 5 s at least; the first is done by then with its lightest.
    assert best_of(np.array([[1.0, 5.0], [2.0, 50.0], [4.0, 99.0]]), NMSE, 1.0, 1.0) == [2, 0]


@given(
    seconds=arrays(np.float64, (3, 3), elements=st.floats(0.01, 100)),
    r=st.floats(1, 2),
    duration=st.floats(0.01, 1000),
)
def test_no_other_choice_is_better(seconds, r, duration):
    finish_s = np.sort(seconds, axis=0)

    def cost(choice):
        d = max(finish_s[at, client] for client, at in enumerate(choice))
        return r * d + duration * math.sqrt(1 + sum(NMSE[at] for at in choice) / 3)

    least = min(cost(choice) for choice in itertools.product(range(3), repeat=3))
    assert cost(best_of(finish_s, NMSE, r, duration)) == pytest.approx(least)


def test_both_means_are_those_of_all_rounds_so_far(world, scene, node):
    watched = world(Nac(), scene(3), node(up_bps=2e5))
    watched.run(7)
    nmse = {offer.spec: offer.nmse for offer in QUANTIZERS[True]}
    h = [rounds_of([nmse[c.uplink] for c in plan.clients]) for plan in watched.plans]
    d = [record.end_s - record.start_s for record in watched.records]
    assert watched.state.rounds_factor == pytest.approx(np.mean(h))
    assert watched.state.duration_s == pytest.approx(np.mean(d))


def bits_at(world, scene, node, up_bps):
    watched = world(Nac(), scene(3), node(up_bps=up_bps))
    return BITS[watched.run(12).clients[0].uplink]


def test_the_slower_the_uplink_the_fewer_the_bits(world, scene, node):
    found = [bits_at(world, scene, node, bps) for bps in (1e3, 1e4, 1e5, 1e6, 1e15)]
    assert found == sorted(found)
    assert found[0] < 3
    # With any delay a link seems to have some slope; six bits lose 0.03 %.
    assert found[-1] > 6


def test_a_bad_hour_is_compressed_more_than_the_good_ones_around_it(world, scene, node):
    watched = world(Nac(), scene(3), node(up_bps=1e6))
    good = BITS[watched.run(10).clients[0].uplink]
    watched.node = node(up_bps=3e4)
    watched.run(1)
    bad = BITS[watched.run(1).clients[0].uplink]
    watched.node = node(up_bps=1e6)
    watched.run(1)
    assert bad < good
    assert BITS[watched.run(1).clients[0].uplink] >= good


def test_the_slow_client_alone_is_compressed_hard(world, scene, node):
    watched = world(Nac(), scene(4), lambda n: node(up_bps=2e4 if n == 1 else 1e7))
    slow, *others = (BITS[c.uplink] for c in watched.run(8).clients)
    assert slow < min(others)
