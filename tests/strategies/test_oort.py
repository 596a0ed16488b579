"""Oort's utility and exploration on numbers from the paper, and who ends up in cohorts."""

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsys.errors import ConfigError
from strategies.oort import Oort, State, Tried


def tried(**nodes):
    """node_3=(utility, seconds, round)."""
    return {int(name[5:]): Tried(u, s, r, 1) for name, (u, s, r) in nodes.items()}


def test_utilities_by_hand():
    # Round e^2, so ln R = 2: bonus sqrt(0.2 / L). Without a percentile to clip at, scaled utilities
    # are 0, 0.5 and 1; T is the median time, 2 s, and alpha = 2.
    state = State(
        tried(node_1=(10, 1.0, 1), node_2=(20, 2.0, 5), node_3=(30, 4.0, 20)), percentile=50.0
    )
    found = Oort(clip_percentile=100.0).utilities(state, round_number=round(math.e**2))
    bonus = 0.1 * math.log(7)
    assert found[1] == pytest.approx(math.sqrt(bonus / 1))
    assert found[2] == pytest.approx(0.5 + math.sqrt(bonus / 5))
    assert found[3] == pytest.approx((1 + math.sqrt(bonus / 20)) * (2 / 4) ** 2)


def test_one_client_with_a_huge_loss_is_clipped():
    state = State({n: Tried(1.0 + n % 2, 1.0, 1, 1) for n in range(39)} | {99: Tried(1e6, 1, 1, 1)})
    found = Oort().utilities(state, 2)
    assert found[99] == pytest.approx(max(found[n] for n in range(39)))


@pytest.mark.parametrize(
    # 0.9 * 0.98^r, at least 0.2
    ("round_", "share"),
    [(1, 0.882), (10, 0.7354), (74, 0.2018), (75, 0.2), (1000, 0.2)],
)
def test_exploration_decays_by_two_percent_to_a_fifth(round_, share):
    assert Oort().exploration_at(round_) == pytest.approx(share, abs=1e-4)


@settings(max_examples=60)
@given(
    known=st.integers(0, 40),
    nodes=st.integers(1, 40),
    cohort=st.integers(1, 40),
    round_=st.integers(1, 200),
    utility=st.floats(0, 1e6),
)
def test_a_cohort_is_full_distinct_and_explores_its_share(
    scene, known, nodes, cohort, round_, utility
):
    here = scene(nodes, cohort=min(cohort, nodes))
    state = State(
        {n: Tried(utility * n, n, 1, 1) for n in range(1, min(known, nodes) + 1)}, (), 30.0
    )
    again, new = Oort().choose(here, state, round_)
    size = min(cohort, nodes)
    assert len(set(again) | set(new)) == len(again) + len(new) == size
    assert set(again) <= set(state.tried)
    assert not set(new) & set(state.tried)
    untried = nodes - len(state.tried)
    share = max(0.2, 0.9 * 0.98**round_)
    # Explorers are the share of the cohort, rounded up, as far as there are any; and more where
    # too few are known.
    assert len(new) == min(untried, max(math.ceil(round(size * share, 9)), size - len(again)))


def test_all_are_explored_before_long(world, scene):
    watched = world(Oort(), scene(20, cohort=5))
    watched.run(8)
    assert len(watched.state.tried) == 20


def test_clients_with_more_to_learn_are_asked_more_often(world, scene):
    here = scene(20, cohort=4)
    here.examples.update(dict.fromkeys(range(1, 11), 16))
    watched = world(Oort(min_exploration=0.2), here, loss=lambda round_: 1.0)
    watched.run(60)
    asked = Counter(c.node_id for plan in watched.plans[20:] for c in plan.clients)
    assert sum(asked[n] for n in range(11, 21)) > 3 * sum(asked[n] for n in range(1, 11))


def test_slow_clients_are_asked_less_often(world, scene, node):
    def speeds(node_id):
        return node(up_bps=1e6 if node_id > 10 else 2e4)

    watched = world(Oort(), scene(20, cohort=4), speeds, loss=lambda round_: 1.0)
    watched.run(40)
    asked = Counter(c.node_id for plan in watched.plans[12:] for c in plan.clients)
    assert sum(asked[n] for n in range(11, 21)) > 5 * sum(asked[n] for n in range(1, 11))


def test_the_pacer_allows_longer_rounds_when_less_is_won(world, scene):
    def percentile(loss):
        watched = world(Oort(pacer_rounds=5), scene(10, cohort=5), loss=loss)
        watched.run(30)
        return watched.state.percentile

    # Judged after rounds 10, 15, 20, 25 and 30.
    assert percentile(lambda round_: 2.0 * 0.9**round_) == 30.0 + 5 * 5.0
    assert percentile(lambda round_: 1.0 * 1.1**round_) == 30.0


def test_who_was_asked_often_enough_makes_room_for_the_others(world, scene):
    watched = world(Oort(max_times=3), scene(12, cohort=4), loss=lambda round_: 1.0)
    watched.run(9)
    asked = Counter(c.node_id for plan in watched.plans for c in plan.clients)
    assert set(asked.values()) == {3}
    assert len(watched.run(1).clients) == 4


@pytest.mark.parametrize(
    "options", [{"exploration": 1.5}, {"min_exploration": 0.0}, {"pacer_rounds": 0}]
)
def test_impossible_options_are_refused(options):
    (name,) = options
    with pytest.raises(ConfigError, match=name):
        Oort(**options)
