"""What the controller decides in worlds whose best answer is plain, and the laws of its state."""

import math

import pytest

from fedsys.errors import ConfigError
from strategies._base import replay
from strategies._known import WINDOW
from strategies._offers import BY_SPEC, LADDER
from strategies.adaptive import Adaptive

HARDNESS = {offer.spec: at for at, offer in enumerate(LADDER)}


def settled(world, scene, node, controller=None, rounds=12):
    watched = world(controller or Adaptive(), scene(), node)
    watched.run(rounds)
    return watched


def hardness(plan):
    return HARDNESS[plan.clients[0].uplink]


def test_replaying_the_records_gives_the_state_of_the_run_that_made_them(world, scene, node):
    def speeds(node_id):
        return node(up_bps=1e5 * node_id, step_s=0.005 * node_id)

    here = scene(8, cohort=3)
    watched = world(Adaptive(), here, speeds)
    for rounds in (1, 1, 1, 5, 9):
        watched.run(rounds)
        assert replay(Adaptive(), here, watched.records) == watched.state


def test_equal_states_give_equal_plans(world, scene, node):
    one, two = (settled(world, scene, node(up_bps=3e5)) for _ in range(2))
    assert one.plans == two.plans


def test_the_slower_the_uplink_the_harder_the_codec(world, scene, node):
    rates_bps = (1e15, 1e8, 1e7, 1e6, 1e5, 1e4, 1e3)
    found = [hardness(settled(world, scene, node(up_bps=bps)).plans[-1]) for bps in rates_bps]
    assert found == sorted(found)
    assert found[0] == 0
    assert found[-1] >= HARDNESS["ecq(0.5)"]


def test_the_slower_the_network_the_more_steps_between_exchanges(world, scene, node):
    steps = []
    for bps in (1e15, 1e7, 1e6, 1e5, 1e4):
        watched = settled(world, scene, node(up_bps=bps, down_bps=bps))
        steps.append(watched.plans[-1].clients[0].local_steps)
    assert steps == sorted(steps)
    assert steps[0] < steps[-1]


@pytest.mark.parametrize("floor_s", [0.0, 0.1, 1.0])
def test_an_unlimited_link_is_not_compressed_whatever_its_delay(world, scene, node, floor_s):
    endless = node(up_bps=1e15, down_bps=1e15, floor_s=floor_s)
    plan = settled(world, scene, endless).plans[-1]
    assert {c.uplink for c in plan.clients} == {"none"}
    assert plan.downlink == "none"


def test_without_any_network_time_few_steps_are_taken(world, scene, node):
    endless = node(up_bps=1e15, down_bps=1e15, floor_s=0.0)
    assert settled(world, scene, endless).plans[-1].clients[0].local_steps == 2


def test_it_is_told_nothing_and_still_ends_near_the_best_choice_there_is(world, scene, node):
    here = node(up_bps=2e5, down_bps=1e6, floor_s=0.2)
    watched = settled(world, scene, here)
    progress = watched.state.progress

    def time(steps, up, down):
        up_s, down_s = (
            here.floor_s + 8 * BY_SPEC[spec].size_bytes(17_226, 2000) / bps
            for spec, bps in ((up, here.up_bps), (down, here.down_bps))
        )
        rounds = progress.rounds(steps, BY_SPEC[up], BY_SPEC[down], clients=6)
        return rounds * (up_s + down_s + steps * here.step_s)

    best = min(time(e, u, d) for e in range(2, 321) for u in BY_SPEC for d in BY_SPEC)
    plan = watched.plans[-1]
    assert time(plan.clients[0].local_steps, plan.clients[0].uplink, plan.downlink) < 1.1 * best


def test_a_steady_world_is_left_as_it_was_decided(world, scene, node):
    watched = settled(world, scene, node(up_bps=3e5), rounds=20)
    late = {(p.clients[0].local_steps, p.clients[0].uplink, p.downlink) for p in watched.plans[6:]}
    assert len(late) == 1


@pytest.mark.parametrize(("before_bps", "after_bps"), [(1e7, 1e4), (1e4, 1e7)])
def test_a_link_that_changed_is_planned_for_in_the_next_round(
    world, scene, node, before_bps, after_bps
):
    watched = settled(world, scene, node(up_bps=before_bps))
    before = hardness(watched.plans[-1])
    watched.node = node(up_bps=after_bps)
    watched.run(1)
    after = watched.run(1)
    assert (hardness(after) > before) is (after_bps < before_bps)
    assert hardness(after) != before
    assert "link of 6 nodes changed" in after.reason


def fitting(world, scene, node, *, kept, rounds):
    """A world where the common model keeps the part ``kept`` of what clients gain in a round."""
    watched = world(Adaptive(), scene, node(up_bps=1e5))
    watched.run(12)
    base, last = watched.loss(12), 12
    watched.fitted = 0.5
    watched.loss = lambda round_: base * (1 - 0.5 * kept) ** (round_ - last)
    watched.run(rounds)
    return watched


@pytest.mark.parametrize(("kept", "halved"), [(0.1, True), (0.3, False)])
def test_clients_that_drift_apart_get_half_the_steps(world, scene, node, kept, halved):
    watched = fitting(world, scene(), node, kept=kept, rounds=2)
    before = watched.plans[-1].clients[0].local_steps
    after = watched.run(3)
    assert (after.clients[0].local_steps == before // 2) is halved
    assert (watched.state.max_steps is not None) is halved


def test_steps_keep_halving_while_clients_drift_apart_down_to_one_epoch(world, scene, node):
    watched = fitting(world, scene(), node, kept=0.0, rounds=40)
    assert watched.plans[-1].clients[0].local_steps == scene().steps_per_epoch(1)


def test_where_a_part_answers_only_many_rounds_tell_a_drift(world, scene, node):
    here = scene(12, cohort=6)
    watched = fitting(world, here, node, kept=0.0, rounds=WINDOW - 1)
    assert watched.state.max_steps is None
    watched.run(2 * WINDOW)
    assert watched.state.max_steps is not None


def test_a_round_closes_at_half_of_the_cohort_unless_that_is_switched_off(world, scene, node):
    plan = settled(world, scene, node()).plans[-1]
    assert (plan.quorum.share, plan.quorum.least) == (0.5, 2)  # a quarter of six, at least
    assert plan.deadline_s is None
    assert settled(world, scene, node(), Adaptive(quorum=False)).plans[-1].quorum is None


def test_what_a_few_slow_nodes_take_does_not_change_what_is_decided(world, scene, node):
    def speeds(node_id):
        return node(up_bps=2e3 if node_id == 1 else 1e6, step_s=0.5 if node_id == 1 else 0.01)

    slow, even = (settled(world, scene, n).plans[-1] for n in (speeds, node(up_bps=1e6)))
    assert slow.clients[1].local_steps == even.clients[1].local_steps
    assert slow.clients[1].uplink == even.clients[1].uplink
    waiting = settled(world, scene, speeds, Adaptive(quorum=False)).plans[-1]
    assert HARDNESS[waiting.clients[1].uplink] > HARDNESS[even.clients[1].uplink]


@pytest.mark.parametrize("max_epochs", [1, 3])
def test_nobody_trains_more_than_the_epochs_allowed(world, scene, node, max_epochs):
    here = scene(6)
    here.examples.update({2: 20, 3: 1000})
    watched = world(Adaptive(max_epochs=max_epochs), here, node(up_bps=1e4))
    watched.run(12)
    for plan in watched.plans:
        for client in plan.clients:
            assert 1 <= client.local_steps <= max_epochs * here.steps_per_epoch(client.node_id)


def test_with_its_switches_off_it_leaves_the_experiment_as_it_is(world, scene, node):
    off = Adaptive(
        choose_steps=False, choose_uplink=False, choose_downlink=False, quorum=False,
    )  # fmt: skip
    here = scene(4, uplink="int4", downlink="fp16")
    here.examples.update({2: 20, 3: 1000})
    watched = world(off, here, node(up_bps=1e3))
    watched.run(2 * WINDOW + 3)
    assert not off.chooses_codecs
    for plan in watched.plans:
        assert (plan.deadline_s, plan.quorum) == (None, None)
        assert plan.downlink == "fp16"
        assert {c.uplink for c in plan.clients} == {"int4"}
        assert [c.local_steps for c in plan.clients] == [10, 2, 63, 10]


def test_a_codec_of_the_file_that_is_not_on_the_ladder_is_kept_when_it_may_not_choose(scene):
    controller = Adaptive(choose_uplink=False)
    here = scene(2, uplink="ecq(1.5)")
    plan = controller.plan(here, controller.start(here), 1)
    assert {c.uplink for c in plan.clients} == {"ecq(1.5)"}


def test_newcomers_that_get_the_whole_model_do_not_spoil_the_size_of_a_difference(
    world, scene, node
):
    watched = world(Adaptive(), scene(40, cohort=4), node(up_bps=1e5, down_bps=1e5))
    watched.run(30)
    for (way, spec), size_bytes in watched.state.sizes.items():
        if way == "down" and spec != "none":
            assert size_bytes < 2.1 * BY_SPEC[spec].size_bytes(17_226, 2000)


def test_the_step_is_stretched_less_the_smaller_the_part_that_takes_part(scene):
    controller = Adaptive()
    everybody, few = scene(16), scene(16, cohort=4)
    state = controller.start(everybody)
    assert controller.plan(everybody, state, 1).max_stretch == 2.0
    assert controller.plan(few, state, 1).max_stretch == pytest.approx(1.5)
    assert Adaptive(stretch=False).plan(everybody, state, 1).max_stretch == 1.0


def test_after_a_loss_that_rose_the_step_is_not_stretched(world, scene, node):
    watched = world(Adaptive(), scene(), node(), lambda round_: 2.0 if round_ < 4 else 3.0)
    watched.run(4)
    assert watched.run(1).max_stretch == 1.0
    assert watched.run(1).max_stretch == 2.0


def test_a_loss_of_others_who_have_it_harder_is_no_loss_that_rose(world, scene, node):
    """Where four of forty answer, losses go up and down with who they are."""
    watched = world(Adaptive(), scene(40, cohort=4), node(), lambda round_: 2.0 + round_ % 2)
    watched.run(20)
    assert {plan.max_stretch for plan in watched.plans} == {1 + math.sqrt(0.1)}
    risen = world(Adaptive(), scene(40, cohort=4), node(), lambda round_: 2.0 + (round_ > 8))
    risen.run(16)
    assert risen.run(1).max_stretch == 1.0


def test_every_plan_says_why_in_words_with_figures(world, scene, node):
    watched = world(Adaptive(), scene(), lambda n: node(up_bps=1e4 * n))
    watched.run(8)
    for plan in watched.plans:
        spec, steps = plan.clients[-1].uplink, plan.clients[-1].local_steps
        assert f"{steps} steps (half as good as endless ones at" in plan.reason
        assert f"up {spec}, down {plan.downlink}; " in plan.reason
        assert "s down and" in plan.reason
        assert "drops" in plan.reason
        assert plan.reason.startswith(("best progress per second", "link of "))


@pytest.mark.parametrize(("cohort", "key_frames"), [(10, True), (10, False), (100, True)])
def test_key_frames_are_planned_for_where_few_of_many_are_asked(
    world, scene, node, cohort, key_frames
):
    many = scene(100, cohort=cohort, first_model="int8", key_frames=key_frames)
    plan = world(Adaptive(), many, node()).run(3)
    expected = key_frames and cohort < 100
    assert ("down int8 of the whole model; " in plan.reason) is expected


@pytest.mark.parametrize("options", [{"max_epochs": 0}, {"max_epochs": 2.5}])
def test_impossible_options_are_refused(options):
    with pytest.raises(ConfigError, match="max_epochs must be a whole number of 1 or more"):
        Adaptive(**options)
