"""A strategy that asks for trials gets them in its records, and they survive the disk."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict

from fedsys._flwr_private import set_task_identity, stamp
from fedsys.config.load import parse_experiment
from fedsys.middleware.mod import codec_mod
from fedsys.rng import rng_for
from fedsys.telemetry.records import append_record, read_records
from strategies._flower import RoundBudget
from strategies.fixed import Fixed

LADDER = ("int8", "topk(0.1)|int8")


@dataclass(frozen=True)
class Curious(Fixed):
    """Fixed, with trials in every plan."""

    def plan(self, scene, state, round_number):
        return replace(super().plan(scene, state, round_number), trial_codecs=LADDER)


class LocalGrid:
    """Clients in this process, whose training adds noise."""

    def __init__(self, folder):
        set_task_identity(1)
        self.folder = folder

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            stamp(message, run_id=1, src_node_id=1, message_id=f"message-{node}")
            context = Context(1, node, {"state-dir": str(self.folder)}, RecordDict(), {})
            replies.append(codec_mod(message, context, self.train))
        return replies

    @staticmethod
    def train(message, context):
        noise = rng_for(0, "noise", context.node_id).standard_normal(5000).astype(np.float32)
        trained = ArrayRecord({"w": Array(message.content["arrays"]["w"].numpy() + noise)})
        metrics = MetricRecord({"num-examples": 16, "local-steps": 1})
        return Message(RecordDict({"arrays": trained, "metrics": metrics}), reply_to=message)


@pytest.mark.parametrize(("controller", "specs"), [(Fixed(), ()), (Curious(), LADDER)])
def test_trials_are_reported_if_and_only_if_the_plan_asks(tmp_path, controller, specs):
    experiment = parse_experiment("partition.clients = 2\nrun.budget.rounds = 1", where="test")
    start = {"w": np.zeros(5000, np.float32)}
    strategy = RoundBudget(experiment, controller, {1: 16, 2: 16}, start)
    (record,) = strategy.rounds(LocalGrid(tmp_path / "clients"))

    assert [report.accepted for report in record.reports] == [True, True]
    for report in record.reports:
        assert tuple(trial.spec for trial in report.trials) == specs
    if specs:
        int8, top = record.reports[0].trials
        assert int8.bits == pytest.approx(8.06, abs=0.02)
        assert int8.nmse == pytest.approx(4.9e-5, rel=0.1)
        assert top.nmse == pytest.approx(0.561, rel=0.05)
    append_record(tmp_path / "rounds.jsonl", record)
    assert read_records(tmp_path / "rounds.jsonl") == [record]
