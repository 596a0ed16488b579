"""A run ends at the first budget that it meets, says which, and is always evaluated at its end."""

import numpy as np
import pytest

from fedsys._flwr_private import set_task_identity, stamp
from fedsys.config.load import parse_experiment
from fedsys.errors import ConfigError
from strategies._flower import RoundBudget
from strategies.fixed import Fixed
from strategies.server_app import strategy_for

START = {"w": np.zeros(3, np.float32)}


class SilentGrid:
    """Nobody answers; every round takes ten seconds and a megabyte of uplink."""

    def __init__(self) -> None:
        set_task_identity(1)
        self.rounds = 0

    @property
    def now_s(self) -> float:
        return 10.0 * self.rounds

    @property
    def sent_bytes(self) -> tuple[int, int]:
        return 5_000_000 * self.rounds, 1_000_000 * self.rounds

    def send_and_receive(self, messages, *, timeout=None):
        for message in messages:
            node = message.metadata.dst_node_id
            stamp(message, run_id=1, src_node_id=1, message_id=f"{self.rounds}-{node}")
        self.rounds += 1
        return []


def budgeted(*settings, metrics=()):
    """A strategy whose metric after its k-th evaluation is ``metrics[k]``, and 0 after them."""
    experiment = parse_experiment("partition.clients = 2", settings, where="test")
    left = list(metrics)

    def evaluate(arrays):
        return 1.0, left.pop(0) if left else 0.0

    return RoundBudget(experiment, Fixed(), {1: 16, 2: 16}, START, evaluate)


@pytest.mark.parametrize(
    ("settings", "stopped_by", "rounds"),
    [
        (["run.budget.rounds=4"], "rounds", 4),
        (["run.budget.seconds=25"], "seconds", 3),
        (["run.budget.uplink_mb=2"], "uplink_mb", 2),
        (["run.budget.rounds=3", "run.budget.seconds=30", "run.budget.uplink_mb=3"], "seconds", 3),
        (["run.target=0.8"], "target", 3),
        (["run.target=0.8", "run.stop_at_target=false", "run.budget.rounds=5"], "rounds", 5),
        (["run.target=0.8", "run.budget.rounds=3"], "target", 3),
    ],
)
def test_the_first_budget_that_is_met_ends_the_run(settings, stopped_by, rounds):
    strategy = budgeted(*settings, metrics=[0.1, 0.7, 0.8])
    records = list(strategy.rounds(SilentGrid()))
    assert (strategy.stopped_by, len(records)) == (stopped_by, rounds)
    assert [(r.start_s, r.end_s) for r in records] == [
        (10.0 * k, 10.0 * k + 10) for k in range(rounds)
    ]
    assert {(r.downlink_bytes, r.uplink_bytes) for r in records} == {(5_000_000, 1_000_000)}


@pytest.mark.parametrize(
    "budget", ["run.budget.rounds=5", "run.budget.seconds=45", "run.budget.uplink_mb=4.5"]
)
def test_the_last_round_is_evaluated_whichever_budget_ends_it(budget):
    strategy = budgeted("run.evaluate_every_rounds=2", budget)
    records = list(strategy.rounds(SilentGrid()))
    assert [r.round for r in records if r.test_metric is not None] == [2, 4, 5]


def test_a_metric_that_is_no_number_is_left_out_of_the_record():
    strategy = budgeted("run.budget.rounds=1", metrics=[float("nan")])
    (record,) = strategy.rounds(SilentGrid())
    assert record.test_metric is None
    assert record.test_loss == 1.0


def test_what_is_restored_goes_on_or_has_ended_as_the_original_did():
    settings = ["run.budget.uplink_mb=3", "codec.downlink=int8"]
    strategy, grid = budgeted(*settings), SilentGrid()
    rounds, records = strategy.rounds(grid), []
    for ended in ("", "", "uplink_mb"):
        records.append(next(rounds))
        again = budgeted(*settings)
        again.restore(strategy.tensors(), strategy.state(), records)
        assert strategy.stopped_by == again.stopped_by == ended
        assert again.state() == strategy.state()
        assert list(again.rounds(SilentGrid())) == [] or not ended


@pytest.mark.parametrize("lacks", ["flat", "model-raw"])
def test_a_checkpoint_that_lacks_something_is_refused(lacks):
    strategy = budgeted()
    next(strategy.rounds(SilentGrid()))
    tensors = {name: value for name, value in strategy.tensors().items() if name != lacks}
    with pytest.raises(ConfigError, match=f"not one of this experiment: '{lacks}'"):
        budgeted().restore(tensors, strategy.state(), [])


def test_nodes_and_parts_of_the_data_must_be_equally_many():
    experiment = parse_experiment("[partition]\nclients = 3", where="test")

    with pytest.raises(ConfigError, match=r"clients = 3, but 2 nodes"):
        strategy_for(experiment, [11, 12])
