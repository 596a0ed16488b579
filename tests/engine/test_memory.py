"""A run takes the memory of a few rounds, however many it has had."""

import gc
from collections import Counter

import pytest
from flwr.app import RecordDict

from fedsys.cli.run import run_experiment
from fedsys.config.load import parse_experiment
from fedsys.telemetry.runfolder import RunFolder
from netem.grid import KEPT_SAMPLES
from tests.netem._grid import grid_of, train_message

ROUNDS = 4


@pytest.mark.parametrize("uplink", ["none", "topk(0.05)|int8"])
@pytest.mark.parametrize("batch", ["true", "false"])
def test_rounds_leave_no_cycles_that_hold_models_until_python_searches(tmp_path, uplink, batch):
    text = f"""
    run.budget.rounds = {ROUNDS}
    partition.clients = 20
    codec.uplink = "{uplink}"
    engine.batch = {batch}
    """
    experiment = parse_experiment(text, where="test")
    folder = RunFolder.create(tmp_path / "run", experiment, resume=False)
    garbage: Counter[str] = Counter()

    def after_a_round(record):
        gc.collect()
        if record.round > 1:  # the first one imports
            garbage.update(type(one).__name__ for one in gc.garbage)
        gc.garbage.clear()

    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        run_experiment(experiment, folder, on_round=after_a_round)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    kinds = {kind: garbage[kind] for kind in ("RecordDict", "CommonContent", "Array", "ndarray")}
    assert kinds == dict.fromkeys(kinds, 0)


def test_garbage_of_flowers_own_view_is_what_the_test_above_would_see():
    content = RecordDict()
    gc.collect()
    assert content.array_records == {}
    del content
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        assert "RecordDict" in {type(one).__name__ for one in gc.garbage}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


def test_a_grid_remembers_the_last_exchanges_and_those_that_go_on():
    grid = grid_of()
    slow = train_message(7)
    grid.push_messages([slow])
    first = train_message(8)
    grid.send_and_receive([first])
    for _ in range(KEPT_SAMPLES):
        grid.send_and_receive([train_message(8)])

    assert grid.measured(first.metadata.message_id) is None
    assert grid.measured(slow.metadata.message_id) is not None
    assert grid.measured(f"message-{KEPT_SAMPLES + 2}") is not None
