"""What clients do wrong costs them their part of the round, with a reason, and nobody else's."""

import sys

import numpy as np
import pytest

from fedsys.cli.run import run_experiment
from fedsys.config.load import parse_experiment
from fedsys.engine.pool import Pool
from fedsys.telemetry.runfolder import RunFolder
from netem.grid import VirtualGrid
from netem.profiles import link_for
from strategies._flower import RoundBudget
from strategies.fixed import Fixed

NODES = (1, 2, 3, 4, 5)
BAD = 3
EXAMPLES = {node: 10 * node for node in NODES}
APP = '''
from collections import OrderedDict

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedsys.middleware.control import unwrap, wrap
from fedsys.middleware.mod import codec_mod

FAULTS = {}
"""(node, round) to the name of what goes wrong there; set by the test."""


def fault(context, message):
    return FAULTS.get((context.node_id, message.content["config"]["server-round"]), "")


def tamper(message, context, call_next):
    """Between codec and network: what a bad link or a stranger makes of a reply."""
    name = fault(context, message)
    reply = call_next(message, context)
    if not reply.has_content():
        return reply
    key, packet = unwrap(reply.content)
    damaged = {
        "flipped bit": packet[:-3] + bytes([packet[-3] ^ 1]) + packet[-2:],
        "cut short": packet[: len(packet) // 2],
        "pickle": b"\\x80\\x04N.",
        "empty": b"",
    }
    if name in damaged:
        reply.content[key] = wrap(damaged[name])
    if name == "no packet":
        del reply.content[key]
    return reply


app = ClientApp(mods=[tamper, codec_mod])


@app.train()
def train(message, context):
    node, name = context.node_id, fault(context, message)
    arrays = {k: a.numpy().copy() for k, a in message.content["arrays"].items()}
    arrays["w"] += np.float32(node)
    arrays["seen"] += node
    examples = 10 * node
    if name == "raises":
        raise ValueError("boom")
    if name == "NaN weights":
        arrays["w"][1] = np.nan
    if name == "infinite weights":
        arrays["w"][0] = np.inf
    if name == "absurd weights":
        arrays["w"][0] = 1e30
    if name == "wrong shape":
        arrays["w"] = np.zeros(3, np.float32)
    if name == "wrong dtype":
        arrays["w"] = arrays["w"].astype(np.float64)
    if name == "wrong name":
        arrays["weight"] = arrays.pop("w")
    if name == "a tensor less":
        del arrays["seen"]
    metrics = {"num-examples": examples, "local-steps": 2, "first-loss": 0.5, "train-loss": 0.5}
    changes = {
        "no examples": {"num-examples": 0},
        "negative examples": {"num-examples": -5},
        "half an example": {"num-examples": 0.5},
        "NaN examples": {"num-examples": float("nan")},
        "examples beyond counting": {"num-examples": 1 << 50},
        "NaN loss": {"first-loss": float("nan"), "train-loss": float("inf")},
        "huge loss": {"train-loss": 1e308},
        "list as loss": {"train-loss": [1.0, 2.0]},
        "no steps told": {"local-steps": 0},
    }
    record = OrderedDict((k, Array(a)) for k, a in arrays.items())
    metrics |= changes.get(name, {})
    content = {"arrays": ArrayRecord(record), "metrics": MetricRecord(metrics)}
    if name == "no metrics":
        del content["metrics"]
    return Message(RecordDict(content), reply_to=message)
'''
TEXT = """
run.budget.rounds = 3
partition.clients = 5
"""
START = {"w": np.array([0.5, -1, 2, 8], np.float32), "seen": np.array(0, np.int64)}


@pytest.fixture
def faults(tmp_path, monkeypatch):
    """The faults that the client app commits, to be filled by the test."""
    (tmp_path / "faulty.py").write_text(APP)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "faulty", raising=False)
    import faulty

    return faulty.FAULTS


def federation(tmp_path, *settings, dead=(), fednova=False):
    """Strategy and grid; nodes in ``dead`` vanish after every download."""
    experiment = parse_experiment(TEXT, settings, where="test")
    controller = Fixed(local_steps=2, fednova=fednova)
    strategy = RoundBudget(experiment, controller, EXAMPLES, START, lambda arrays: (1.0, 0.5))
    pool = Pool(
        "faulty:app",
        workers=1,
        run_config={},
        node_config_of=lambda node: {"state-dir": str(tmp_path / "state")},
    )
    grid = VirtualGrid(
        node_ids=NODES,
        link_of=lambda node: link_for("lan", {}, 1, node),
        submit=pool.submit,
        compute_s=lambda node, reply: 1.0,
        seed=1,
        drop=lambda node, turn: node in dead,
    )
    return strategy, grid


def mean_step(nodes):
    """What the model moves by: client ``node`` trains by ``node``, weighs ``10 * node``."""
    return np.float32(sum(node * node for node in nodes) / sum(nodes))


LEFT_OUT = {
    "raises": "ValueError: boom",
    "NaN weights": "NaN or infinite values",
    "infinite weights": "NaN or infinite values",
    "absurd weights": "refused: the update's norm is 1.0e+30",
    "wrong shape": "tensor 'w'",
    "wrong name": "tensor",
    "a tensor less": "tensor",
    "flipped bit": "refused: ",
    "cut short": "refused: ",
    "pickle": "refused: ",
    "empty": "refused: ",
    "no packet": "refused: the reply holds no packet",
    "no examples": "no training examples",
    "negative examples": "refused: metric 'num-examples' must be a count",
    "half an example": "refused: metric 'num-examples' must be a count",
    "NaN examples": "refused: metric 'num-examples' must be a count",
    "examples beyond counting": "refused: metric 'num-examples' must be a count",
    "no metrics": "no training examples",
}


@pytest.mark.parametrize("codec", ["none", "topk(0.5)|int8"])
@pytest.mark.parametrize("fault", LEFT_OUT)
def test_a_faulty_client_is_left_out_with_a_reason_and_the_rest_is_averaged(
    fault, codec, faults, tmp_path
):
    faults[BAD, 1] = fault
    strategy, grid = federation(tmp_path, f"codec.uplink={codec}")
    record = next(strategy.rounds(grid))

    reports = {report.node_id: report for report in record.reports}
    assert [node for node in NODES if not reports[node].accepted] == [BAD]
    assert LEFT_OUT[fault] in reports[BAD].reason
    assert "\n" not in reports[BAD].reason
    assert record.train_loss == pytest.approx(0.5)
    others = [node for node in NODES if node != BAD]
    assert int(strategy.arrays()["seen"]) == max(others)
    if codec == "none":
        moved = strategy.arrays()["w"] - START["w"]
        np.testing.assert_allclose(moved, mean_step(others), rtol=1e-6)


@pytest.mark.parametrize("fault", LEFT_OUT)
def test_one_that_failed_is_back_in_the_next_round(fault, faults, tmp_path):
    faults[BAD, 1] = fault
    strategy, grid = federation(tmp_path, "codec.uplink=topk(0.5)|int8", "codec.downlink=int8")
    records = list(strategy.rounds(grid))
    assert [[r.accepted for r in record.reports].count(True) for record in records] == [4, 5, 5]


def test_a_client_that_vanishes_is_left_out_with_a_reason(faults, tmp_path):
    strategy, grid = federation(tmp_path, dead=(BAD,))
    record = next(strategy.rounds(grid))
    (reason,) = (r.reason for r in record.reports if not r.accepted)
    assert "node 3 unavailable: no sign of life" in reason
    moved = strategy.arrays()["w"] - START["w"]
    np.testing.assert_allclose(moved, mean_step([1, 2, 4, 5]), rtol=1e-6)


def test_silence_ends_at_the_deadline_of_the_clock(faults, tmp_path):
    strategy, grid = federation(tmp_path, "cohort.deadline_s=5", dead=NODES)
    before = strategy.arrays()
    records = list(strategy.rounds(grid))
    assert [record.end_s for record in records] == [5.0, 10.0, 15.0]
    assert {r.reason for x in records for r in x.reports} == {"no reply by the deadline of 5.0 s"}
    assert all(np.array_equal(strategy.arrays()[name], before[name]) for name in before)


@pytest.mark.parametrize("fault", ["raises", "NaN weights", "flipped bit", "no examples"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_round_in_which_all_fail_leaves_the_model_as_it_was(fault, momentum, faults, tmp_path):
    faults.update({(node, 2): fault for node in NODES})
    strategy, grid = federation(tmp_path, f"server.momentum={momentum}")
    rounds = strategy.rounds(grid)
    next(rounds)
    before = strategy.arrays()
    failed = next(rounds)

    after = strategy.arrays()
    assert all(after[name].tobytes() == before[name].tobytes() for name in before)
    assert failed.step_norm is failed.agreement is failed.train_loss is None
    assert all(not report.accepted and report.reason for report in failed.reports)

    last = next(rounds)
    assert all(report.accepted for report in last.reports)
    assert strategy.stopped_by == "rounds"


@pytest.mark.parametrize("fault", ["NaN loss", "huge loss", "list as loss"])
def test_a_figure_that_is_no_figure_costs_the_figure_and_not_the_update(fault, faults, tmp_path):
    faults[BAD, 1] = fault
    strategy, grid = federation(tmp_path)
    record = next(strategy.rounds(grid))
    assert all(report.accepted for report in record.reports)
    (bad,) = (report for report in record.reports if report.node_id == BAD)
    assert bad.train_loss is None
    assert record.train_loss == pytest.approx(0.5)
    moved = strategy.arrays()["w"] - START["w"]
    np.testing.assert_allclose(moved, mean_step(NODES), rtol=1e-6)


def test_a_client_that_does_not_tell_its_steps_is_taken_to_have_done_what_was_asked(
    faults, tmp_path
):
    faults[BAD, 1] = "no steps told"
    strategy, grid = federation(tmp_path, fednova=True)
    next(strategy.rounds(grid))
    moved = strategy.arrays()["w"] - START["w"]
    np.testing.assert_allclose(moved, mean_step(NODES), rtol=1e-6)


def test_another_float_type_is_taken_for_the_model_s(faults, tmp_path):
    faults[BAD, 1] = "wrong dtype"
    strategy, grid = federation(tmp_path)
    record = next(strategy.rounds(grid))
    assert all(report.accepted for report in record.reports)
    assert strategy.arrays()["w"].dtype == np.float32


def test_training_that_diverges_is_reported_as_such_and_the_run_goes_on(tmp_path):
    text = TEXT + "training.lr = 1e30\nstrategy.options.local_steps = 3\n"
    experiment = parse_experiment(text, where="test")
    folder = RunFolder.create(tmp_path / "run", experiment, resume=False)
    result = run_experiment(experiment, folder)
    assert result.stopped_by == "rounds"
    reasons = {report.reason for record in result.records for report in record.reports}
    assert all("Diverged: " in reason for reason in reasons)
    assert len({record.test_loss for record in result.records}) == 1
