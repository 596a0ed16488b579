"""FedBuff: updates count by their age, a step needs only so many, and nobody waits for the rest."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from fedsys.cli.run import check_deployable, check_experiment
from fedsys.config.load import parse_experiment
from fedsys.errors import ConfigError
from fedsys.middleware.store import ClientStore
from fedsys.rng import rng_for
from fedsys.telemetry.checkpoint import pack_checkpoint, unpack_checkpoint
from fedsys.telemetry.records import read_records, record_line
from strategies.fedbuff import FedBuff
from strategies.fixed import Fixed
from tests.strategies._federation import START, Federation, simulated_alike, told


def without_asking(record):
    """All of the record but why it was asked, and the bytes of it: a request says which it is."""
    reports = tuple(replace(r, downlink_bytes=0, download_s=0.0) for r in record.reports)
    plan = replace(
        record.plan, reason="", clients=[replace(c, reason="") for c in record.plan.clients]
    )
    return replace(record, plan=plan, reports=reports, downlink_bytes=0)


# ---- the rule


def test_updates_of_age_0_and_3_make_the_step_that_was_worked_out_by_hand(tmp_path):
    """Client 1 answers every second; client 2, asked at 0 s, after 6.5 s and three steps."""
    one = Federation(tmp_path, {"buffer": 2}, "run.budget.rounds=4", seconds={1: 1.0, 2: 6.5})
    strategy = one.strategy()
    records = list(strategy.rounds(one.grid()))

    assert [told(record) for record in records[:3]] == [[(1, 0, ""), (1, 0, "")]] * 3
    assert told(records[3]) == [(2, 3, ""), (1, 0, "")]
    assert [record.end_s for record in records] == pytest.approx([2.0, 4.0, 6.0, 7.0])
    # Client 1 moves by 1 and has 10 examples, client 2 by 2 with 20, which count half at age 3.
    step = (20 / 2 * 2 + 10 * 1) / (20 + 10)
    assert step == 1.0
    np.testing.assert_allclose(strategy.arrays()["w"], START["w"] + 3 + step, rtol=1e-6)
    assert records[3].step_norm == pytest.approx(2 * step)
    assert records[3].reports[0].examples == 20


def test_without_the_exponent_old_updates_count_in_full(tmp_path):
    one = Federation(
        tmp_path,
        {"buffer": 2, "staleness_exponent": 0.0},
        "run.budget.rounds=4",
        seconds={1: 1.0, 2: 6.5},
    )
    strategy = one.strategy()
    assert len(list(strategy.rounds(one.grid()))) == 4
    step = (20 * 2 + 10 * 1) / (20 + 10)
    np.testing.assert_allclose(strategy.arrays()["w"], START["w"] + 3 + step, rtol=1e-6)


@pytest.mark.parametrize("codec", ["none", "int8", "topk(0.5)|int8"])
def test_where_all_are_alike_and_fill_the_buffer_it_is_fedavg_bit_for_bit(codec, tmp_path):
    settings = ["run.budget.rounds=4", f"codec.uplink={codec}", "codec.downlink=int8"]
    seconds = dict.fromkeys(range(1, 6), 1.0)

    def moves(node, number):
        return rng_for(5, node, number).standard_normal(4)

    ways = []
    for name, controller in (("buffered", None), ("fedavg", Fixed())):
        one = Federation(
            tmp_path / name,
            {"buffer": 5},
            *settings,
            seconds=seconds,
            controller=controller,
            moves=moves,
        )
        strategy = one.strategy()
        records = list(strategy.rounds(one.grid()))
        known = [without_asking(record) for record in records]
        ways.append((known, {k: v.tobytes() for k, v in strategy.arrays().items()}))
    assert ways[0] == ways[1]
    assert len(ways[0][0]) == 4


def test_a_straggler_does_not_hold_up_the_others(tmp_path):
    seconds = {1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0, 5: 50.0}
    settings = ["run.budget.rounds=10"]
    buffered = Federation(tmp_path / "b", {"buffer": 4}, *settings, seconds=seconds)
    grid = buffered.grid()
    *_, last = buffered.strategy().rounds(grid)
    waiting = Federation(tmp_path / "f", {}, *settings, seconds=seconds, controller=Fixed())
    *_, last_waiting = waiting.strategy().rounds(waiting.grid())
    # The four others fill the buffer each second; ten rounds of all take ten times the straggler.
    assert last.end_s == pytest.approx(10 * 1.0)
    assert last_waiting.end_s == pytest.approx(10 * 50.0)
    assert grid.most == 5
    assert grid.pushed.count(5) == 1


def test_as_many_as_asked_for_are_in_flight_and_everybody_has_a_turn(tmp_path):
    seconds = {node: 1.0 + node / 10 for node in range(1, 9)}
    settings = ["run.budget.rounds=40"]
    one = Federation(tmp_path, {"buffer": 2, "concurrency": 3}, *settings, seconds=seconds)
    grid = one.grid()
    records = list(one.strategy().rounds(grid))
    assert grid.most == 3
    counts = Counter(grid.pushed)
    assert counts.keys() == seconds.keys()
    assert max(counts.values()) < 4 * min(counts.values())
    assert all(len(record.reports) == 2 for record in records)
    # Three workers that are never idle, and clients of 1.1 to 1.8 s, 1.45 on average.
    assert records[-1].end_s == pytest.approx(40 * 2 / 3 * 1.45, rel=0.1)


# ---- what does not count


def test_what_is_too_old_is_left_out_and_goes_back_to_its_client(tmp_path):
    one = Federation(
        tmp_path,
        {"buffer": 2, "max_staleness": 2},
        "run.budget.rounds=5",
        "codec.uplink=topk(0.5)",
        seconds={1: 1.0, 2: 6.5},
    )
    records = list(one.strategy().rounds(one.grid()))
    assert told(records[3]) == [(2, 3, "more than 2 server steps old"), (1, 0, ""), (1, 0, "")]
    assert [report.accepted for report in records[3].reports] == [False, True, True]
    # Its second update, asked for after that, begins with all of the first: twice four values.
    state = ClientStore(tmp_path / "run-1", shared=True).load(2)
    np.testing.assert_array_equal(state.residual, np.full(4, 2, np.float32))
    assert state.pending.turn == 2


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("raises", "ValueError: boom"),
        ("damaged", "refused: "),
        ("wrong shape", "tensor 'w'"),
    ],
)
@pytest.mark.parametrize("codec", ["none", "int8"])
def test_a_client_that_sends_rubbish_is_left_out_and_another_is_asked(
    codec, fault, reason, tmp_path
):
    seconds = {node: 1.0 + node / 10 for node in range(1, 7)}
    one = Federation(
        tmp_path,
        {"buffer": 3, "concurrency": 4},
        "run.budget.rounds=12",
        f"codec.uplink={codec}",
        "codec.downlink=int8",
        seconds=seconds,
    )
    one.faults[3] = fault
    strategy, grid = one.strategy(), one.grid()
    records = list(strategy.rounds(grid))
    assert strategy.stopped_by == "rounds"
    assert grid.most == 4
    bad = [r for record in records for r in record.reports if not r.accepted]
    assert bad
    assert {report.node_id for report in bad} == {3}
    assert all(reason in report.reason for report in bad)
    assert all(sum(r.accepted for r in record.reports) == 3 for record in records)


def test_where_all_fail_the_rounds_run_out_and_the_model_stays(tmp_path):
    one = Federation(
        tmp_path, {"buffer": 2}, "run.budget.rounds=3", seconds={1: 1.0, 2: 1.0, 3: 2.0}
    )
    one.faults.update(dict.fromkeys(one.nodes, "raises"))
    strategy = one.strategy()
    records = list(strategy.rounds(one.grid()))
    assert strategy.stopped_by == "rounds"
    assert [len(record.reports) for record in records] == [3, 3, 3]
    assert all(record.step_norm is None for record in records)
    assert all(np.array_equal(strategy.arrays()[name], START[name]) for name in START)


def test_who_is_silent_past_the_deadline_is_replaced(tmp_path):
    one = Federation(
        tmp_path,
        {"buffer": 2, "concurrency": 2},
        "run.budget.rounds=4",
        "cohort.deadline_s=5",
        seconds={1: 1.0, 2: 100.0, 3: 1.0},
    )
    records = list(one.strategy().rounds(one.grid()))
    lost = [r for record in records for r in record.reports if not r.accepted]
    assert lost
    assert {(r.node_id, r.reason) for r in lost} == {(2, "no reply by the deadline of 5.0 s")}
    assert records[-1].end_s < 20


# ---- resumed runs


@pytest.mark.parametrize("codec", ["none", "topk(0.5)|int8"])
@pytest.mark.parametrize("buffer", [2, 4])
def test_a_run_restored_after_any_round_goes_on_with_those_in_flight(buffer, codec, tmp_path):
    """Five clients answer at the same moment: a checkpoint has replies that were not used yet."""
    seconds = {**dict.fromkeys(range(1, 6), 1.0), 6: 3.5, 7: 2.5}
    settings = ["run.budget.rounds=9", "codec.downlink=int8", f"codec.uplink={codec}"]

    def begun(name):
        return Federation(
            tmp_path / name, {"buffer": buffer, "concurrency": 6}, *settings, seconds=seconds
        )

    whole = begun("whole")
    unbroken = whole.strategy()
    expected = list(unbroken.rounds(whole.grid()))
    assert any(report.staleness for record in expected for report in record.reports)

    broken, records = begun("broken"), []
    strategy, grid = broken.strategy(), broken.grid()
    saved_unused = 0
    while not strategy.stopped_by:
        records.append(next(strategy.rounds(grid)))
        state = {"strategy": strategy.state(), "grid": grid.state()}
        saved = unpack_checkpoint(pack_checkpoint(len(records), strategy.tensors(), state))
        saved_unused += len(saved.state["strategy"]["came"])
        strategy, grid = broken.strategy(), broken.grid()
        strategy.restore(saved.tensors, saved.state["strategy"], records)
        grid.restore(saved.state["grid"])
        assert strategy.state() == saved.state["strategy"] | {
            key: strategy.state()[key] for key in ("held", "acked", "turns")
        }
    assert saved_unused > 0
    assert records == expected
    assert all(
        strategy.arrays()[name].tobytes() == unbroken.arrays()[name].tobytes() for name in START
    )


@pytest.mark.parametrize("lacks", ["reply.0", "flight", "came", "draws"])
def test_a_checkpoint_that_lacks_something_is_refused(lacks, tmp_path):
    one = Federation(tmp_path, {"buffer": 2}, seconds={1: 1.0, 2: 6.5})
    strategy = one.strategy()
    next(strategy.rounds(one.grid()))
    tensors = {name: value for name, value in strategy.tensors().items() if name != lacks}
    state = {name: value for name, value in strategy.state().items() if name != lacks}
    with pytest.raises(ConfigError, match=f"not one of this experiment: '{lacks}'"):
        one.strategy().restore(tensors, state, [])


# ---- as an experiment


TEXT = """
run = { name = "buffered", budget = { rounds = 5 } }
task = { options = { model = "mlp" } }
partition = { clients = 6 }
codec = { uplink = "int8", downlink = "int8" }
network = { link = "3g", dropout_fraction = 0.1, options = { spread = 1.0 } }
strategy = { name = "fedbuff", options = { buffer = 3, concurrency = 4 } }
"""


def test_in_a_simulation_two_workers_give_the_bytes_of_one_and_the_model_learns(tmp_path):
    result = simulated_alike(tmp_path, TEXT)
    losses = [record.test_loss for record in result.records]
    assert losses[-1] < losses[0]
    assert any(r.staleness for record in result.records for r in record.reports)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("buffer = 0", "buffer must be a whole number of 1 or more, got 0"),
        ("buffer = 2.5", "buffer must be a whole number, got 2.5"),
        ("buffer_fraction = 1.5", "buffer_fraction must be above 0 and at most 1, got 1.5"),
        ("concurrency = 0", "concurrency must be a whole number of 1 or more"),
        ("concurrency = 7", "7 clients in flight of partition.clients = 6; at most all of them"),
        ("max_staleness = -1", "max_staleness must be a whole number of 0 or more"),
        ("local_epochs = 0", "local_epochs must be a whole number of 1 or more"),
        ("staleness_exponent = -0.5", "staleness_exponent must be 0 to 2, got -0.5"),
        ("staleness_exponent = inf", "staleness_exponent must be 0 to 2, got inf"),
        ("staleness = 3", "no option 'staleness'; did you mean 'max_staleness'"),
    ],
)
def test_options_that_cannot_be_are_refused_before_any_work(options, message):
    text = f"partition.clients = 6\nstrategy.name = 'fedbuff'\nstrategy.options = {{ {options} }}"
    experiment = parse_experiment(text, where="test")
    with pytest.raises(ConfigError, match="strategy 'fedbuff': .*" + message.replace(".", r"\.")):
        check_experiment(experiment, data=False)


@pytest.mark.parametrize(
    ("options", "clients", "cohort", "updates"),
    [
        ({}, 20, None, 10),
        ({}, 100, 9, 5),
        ({}, 1, None, 1),
        ({"buffer_fraction": 0.25}, 50, None, 13),
        ({"concurrency": 4}, 20, None, 2),
        ({"buffer": 7, "buffer_fraction": 0.25}, 20, None, 7),
    ],
)
def test_a_step_takes_half_of_those_in_flight_unless_told(scene, options, clients, cohort, updates):
    world = scene(clients, cohort=cohort or clients)
    assert FedBuff(**options).updates_per_step(world) == updates


class NoVirtualTime:
    """A grid of real devices, as far as the strategy looks."""

    def push_messages(self, messages):
        pytest.fail("was asked to send something")


def test_on_real_devices_it_is_refused_before_anything_is_sent(tmp_path):
    one = Federation(tmp_path, {}, seconds={1: 1.0, 2: 1.0})
    with pytest.raises(ConfigError, match="'fedbuff' is asynchronous and runs in simulations only"):
        next(one.strategy().rounds(NoVirtualTime()))
    with pytest.raises(ConfigError, match="'fedbuff' is asynchronous and runs in simulations only"):
        check_deployable(parse_experiment(TEXT, where="test"))


def test_records_from_before_there_was_an_age_can_be_read(tmp_path):
    one = Federation(tmp_path, {}, "run.budget.rounds=1", seconds={1: 1.0}, controller=Fixed())
    (record,) = one.strategy().rounds(one.grid())
    line = record_line(record)
    old = line.replace(b',"staleness":0', b"")
    assert old != line
    for text in (old, line):
        (tmp_path / "rounds.jsonl").write_bytes(text)
        assert read_records(tmp_path / "rounds.jsonl") == [record]
