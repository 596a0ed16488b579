"""Every strategy there is, held to what a strategy must be, in emulated rounds and in real ones."""

import json
from concurrent.futures import Future
from dataclasses import replace

import pytest
from flwr.app import Context, RecordDict
from threadpoolctl import threadpool_limits

from clients.server_side import ServerTask
from clients.session import train_reply
from fedsys._flwr_private import set_task_identity
from fedsys.codecs._chain import parse
from fedsys.config.load import dump_toml, parse_experiment
from fedsys.middleware.mod import codec_mod
from fedsys.registry import available, load
from netem.grid import VirtualGrid
from netem.profiles import link_for
from strategies._base import CONTROLLER_PARTS, replay
from strategies._buffered import budget_for
from strategies.server_app import controller_for

NAMES = [name for name in available("strategies") if name != "server_app"]


@pytest.fixture
def watched(world, scene, node):
    """A strategy among ten nodes, no two alike, of which four take part in a round."""

    def start(name, **changes):
        def speeds(node_id):
            return node(up_bps=3e4 * node_id, step_s=0.004 * node_id)

        here = scene(10, **{"cohort": 4} | changes)
        return world(
            load("strategies", name, "strategy")(),
            here,
            speeds,
            norm=lambda round_, node_id: (1 + node_id) / round_,
        )

    return start


@pytest.mark.parametrize("feedback", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_plans_can_be_carried_out(watched, name, feedback):
    one = watched(name, feedback=feedback)
    one.run(12)
    for plan in one.plans:
        nodes = [client.node_id for client in plan.clients]
        assert nodes
        assert len(set(nodes)) == len(nodes)
        assert set(nodes) <= set(one.scene.examples)
        assert plan.reason
        parse(plan.downlink)
        for client in plan.clients:
            assert type(client.local_steps) is int
            assert client.local_steps >= 1
            parse(client.uplink)


@pytest.mark.parametrize("name", NAMES)
def test_a_strategy_that_says_it_chooses_no_codecs_sends_the_files(watched, name):
    one = watched(name, uplink="int8", downlink="fp16")
    one.run(12)
    assert all(hasattr(one.controller, part) for part in CONTROLLER_PARTS)
    if not one.controller.chooses_codecs:
        assert {c.uplink for plan in one.plans for c in plan.clients} == {"int8"}
        assert {plan.downlink for plan in one.plans} == {"fp16"}


@pytest.mark.parametrize("name", NAMES)
def test_a_resumed_run_goes_on_as_the_unbroken_one(watched, name):
    one = watched(name)
    for rounds in (1, 2, 8):
        one.run(rounds)
        state = replay(one.controller, one.scene, one.records)
        assert state == one.state
        number = len(one.plans) + 1
        again = one.controller.plan(one.scene, state, number)
        assert again == one.controller.plan(one.scene, one.state, number)


def silenced(record):
    """The round if nobody had answered."""
    reports = tuple(
        replace(r, accepted=False, reason="no reply", examples=0, local_steps=0, first_loss=None,
                train_loss=None, update_norm=None, download_s=None, train_s=None, upload_s=None,
                arrival_s=None, downlink_bytes=0, uplink_bytes=0)
        for r in record.reports
    )  # fmt: skip
    return replace(record, reports=reports, train_loss=None, step_norm=None, agreement=None)


def unmeasured(record):
    """The round on a grid that measures no times."""
    reports = tuple(
        replace(r, download_s=None, train_s=None, upload_s=None, arrival_s=None)
        for r in record.reports
    )
    return replace(record, reports=reports)


def instant(record):
    """The round on links and devices whose time does not show."""
    reports = tuple(
        replace(r, download_s=0.0, train_s=0.0, upload_s=0.0, arrival_s=0.0) for r in record.reports
    )
    return replace(record, reports=reports, end_s=record.start_s)


def absurd(record):
    """The round as liars would report it, within what the server lets pass."""
    losses = (-1e30, 1e30, 5e-324, 0.0)
    reports = tuple(
        replace(r, first_loss=loss, train_loss=loss, update_norm=1e30)
        for r, loss in zip(record.reports, losses, strict=True)
    )
    return replace(record, reports=reports, train_loss=1e30, step_norm=1e-30)


@pytest.mark.parametrize("damage", [silenced, unmeasured, instant, absurd])
@pytest.mark.parametrize("name", NAMES)
def test_rounds_that_tell_little_or_nothing_are_survived(watched, name, damage):
    one = watched(name)
    heard = watched(name)
    heard.run(8)
    state = one.controller.start(one.scene)
    for number, record in enumerate(heard.records, start=1):
        plan = one.controller.plan(one.scene, state, number)
        shown = record if number == 4 else damage(record)
        state = one.controller.observe(one.scene, state, shown)
    assert plan.clients
    assert all(client.local_steps >= 1 for client in plan.clients)


EXPERIMENT = """
run.seed = 3
run.budget.rounds = {rounds}
partition.clients = 4
partition.kind = "iid"
training.lr = 0.1
network.link = "3g"
task.options.model = "mlp"
[strategy]
name = "{name}"
"""
MOVES = {
    "adacomm": ("local_steps", {"initial_steps": 12, "interval_s": 8.0}),
    "adaptive": ("local_steps", {}),
    "adaquant": ("uplink", {"local_epochs": 2, "initial_levels": 3}),
    "adasparse": ("uplink", {}),
    "cost_effective": ("local_steps", {"probe_rounds": 1}),
    "fedbuff": ("node_id", {"buffer": 3}),
    "feddq": ("uplink", {"local_epochs": 2}),
    "fedluck": ("local_steps", {}),
    "fedprox": ("local_steps", {"local_epochs": 2}),
    "jsac": ("local_steps", {}),
    "k_decay": ("local_steps", {"initial_steps": 12, "rule": "rounds"}),
    "kimad": ("uplink", {"upload_s": 0.4}),
    "nac": ("uplink", {}),
    "oort": ("node_id", {"local_epochs": 2}),
    "two_parts": ("local_steps", {"switch_s": 2.0}),
}
"""The knob that each strategy turns within a few rounds, and options that make it soon."""
ROUNDS = 6


def context_of(node, folder, text):
    config = {"state-dir": str(folder), "partition-id": node - 1, "threads": 1}
    return Context(1, node, config, RecordDict(), {"experiment": text})


def simulated(tmp_path, name, options):
    """The records of a run of real training behind emulated links, in this process."""
    experiment = parse_experiment(
        EXPERIMENT.format(name=name, rounds=ROUNDS),
        [f"strategy.options.{key}={json.dumps(value)}" for key, value in options.items()]
        + (["cohort.size=2"] if name == "oort" else []),
        where="test",
    )
    set_task_identity(1)
    task = ServerTask(experiment)
    contexts = {node: context_of(node, tmp_path, dump_toml(experiment)) for node in range(1, 5)}

    def submit(messages):
        futures = []
        for message in messages:
            future = Future()
            future.set_result(
                codec_mod(message, contexts[message.metadata.dst_node_id], train_reply)
            )
            futures.append(future)
        return futures

    grid = VirtualGrid(
        node_ids=list(contexts),
        link_of=lambda node: link_for("3g", {}, 3, node),
        submit=submit,
        compute_s=lambda node, reply: 0.01 * int(reply.content["metrics"]["local-steps"]),
        seed=3,
    )
    examples = dict(zip(contexts, task.examples_per_client(), strict=True))
    strategy = budget_for(
        experiment, controller_for(experiment), examples, task.initial_arrays(), task.evaluate
    )
    with threadpool_limits(1):
        return list(strategy.rounds(grid))


@pytest.mark.parametrize("name", MOVES)
def test_in_a_simulation_the_model_learns_and_the_knob_moves(tmp_path, name):
    knob, options = MOVES[name]
    records = simulated(tmp_path, name, options)

    assert all(report.accepted for record in records for report in record.reports)
    assert records[-1].test_loss < records[0].test_loss < 2.4
    settings = {tuple(getattr(c, knob) for c in record.plan.clients) for record in records}
    assert len(settings) > 1


def test_every_strategy_but_the_fixed_one_is_simulated():
    assert set(MOVES) == set(NAMES) - {"fixed"}
