"""The cohort is a fair draw named by seed and round; plans are values that survive JSON."""

import json
from collections import Counter
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsys.errors import ConfigError
from fedsys.telemetry.records import append_record, read_records
from fedsys.types import Quorum
from strategies._base import check_plan
from strategies.fixed import Fixed


@given(nodes=st.integers(1, 40), cohort=st.integers(1, 40), round_=st.integers(1, 1000))
def test_a_cohort_is_distinct_enrolled_nodes_in_order(scene, nodes, cohort, round_):
    drawn = scene(nodes, cohort=min(cohort, nodes)).sample(round_)
    assert list(drawn) == sorted(set(drawn))
    assert set(drawn) <= set(range(1, nodes + 1))
    assert len(drawn) == min(cohort, nodes)


def test_a_cohort_depends_on_seed_and_round_alone(scene):
    one = [scene(20, cohort=5).sample(r) for r in range(1, 9)]
    assert one == [scene(20, cohort=5).sample(r) for r in range(1, 9)]
    assert len(set(one)) > 4
    assert one != [scene(20, cohort=5, seed=2).sample(r) for r in range(1, 9)]


def test_every_node_has_the_same_chance(scene):
    drawn = Counter(node for r in range(2000) for node in scene(10, cohort=3).sample(r))
    assert set(drawn) == set(range(1, 11))
    # binomial(2000, 0.3): mean 600, deviation 20.5
    assert all(abs(count - 600) < 5 * 20.5 for count in drawn.values())


@pytest.mark.parametrize(("examples", "steps"), [(1, 1), (16, 1), (17, 2), (160, 10)])
def test_an_epoch_is_the_batches_that_hold_all_examples(scene, examples, steps):
    assert scene(examples=examples).steps_per_epoch(1) == steps


def test_fixed_counts_epochs_in_each_client_s_own_batches(scene):
    here = scene(3, examples=160, uplink="int8", downlink="fp16")
    here.examples.update({2: 20})
    plan = Fixed(local_epochs=3).plan(here, None, 1)
    assert {c.node_id: c.local_steps for c in plan.clients} == {1: 30, 2: 6, 3: 30}
    assert {c.uplink for c in plan.clients} == {"int8"}
    assert (plan.downlink, plan.deadline_s, plan.reason) == ("fp16", None, "fixed: 3 epochs")


def test_fixed_steps_are_the_same_for_all(scene):
    here = scene(2)
    here.examples.update({2: 20})
    plan = Fixed(local_steps=7).plan(here, None, 1)
    assert [c.local_steps for c in plan.clients] == [7, 7]


def test_fixed_is_plain_fedavg_and_keeps_the_file_s_codecs():
    assert not Fixed().fednova
    assert not Fixed().chooses_codecs


def test_a_fixed_plan_may_close_at_a_quorum(scene):
    here = scene(10, cohort=9)
    assert Fixed().plan(here, None, 1).quorum is None
    # Half of those asked, and of nine a quarter is three.
    assert Fixed(quorum=True).plan(here, None, 1).quorum == Quorum(0.5, 3, 1.15, 8)


@pytest.mark.parametrize("options", [{"local_epochs": 0}, {"local_steps": 0}, {"local_steps": 1.5}])
def test_fixed_refuses_what_is_no_work(options):
    with pytest.raises(ConfigError, match="whole number of 1 or more"):
        Fixed(**options)


def test_the_experiment_s_deadline_caps_the_strategy_s(scene):
    here = scene(1, deadline_s=5.0)
    for given_s, expected_s in ((None, 5.0), (3.0, 3.0), (9.0, 5.0)):
        plan = here.plan(1, {1: 1}, uplink="none", downlink="none", deadline_s=given_s, reason="")
        assert plan.deadline_s == expected_s


def test_a_round_record_is_the_same_after_json(world, scene, tmp_path):
    watched = world(Fixed(), scene())
    watched.run(3)
    for record in watched.records:
        append_record(tmp_path / "rounds.jsonl", record)
    assert read_records(tmp_path / "rounds.jsonl") == watched.records
    assert json.loads(json.dumps(asdict(watched.records[0])))["plan"]["round"] == 1


@pytest.mark.parametrize("steps", [0, -3, 1.5, True])
def test_a_plan_that_nobody_can_follow_is_one_line_that_names_who_made_it(scene, steps):
    plan = replace(scene(2).plan(4, {1: 5, 2: 5}, reason=""), round=4)
    wrong = replace(plan, clients=(plan.clients[0], replace(plan.clients[1], local_steps=steps)))
    check_plan(plan, "mine")
    with pytest.raises(ConfigError, match=r"'mine', round 4: node 2 .* whole number of 1 or more"):
        check_plan(wrong, "mine")
