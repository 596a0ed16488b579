"""Clients who add a constant to the model, in seconds that a test says; and real simulations."""

from concurrent.futures import Future

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict

from fedsys._flwr_private import set_task_identity
from fedsys.cli.run import run_experiment
from fedsys.config.load import parse_experiment
from fedsys.middleware.control import unwrap, wrap
from fedsys.middleware.mod import codec_mod
from fedsys.telemetry.checkpoint import pack_checkpoint, unpack_checkpoint
from fedsys.telemetry.runfolder import RunFolder
from netem.grid import VirtualGrid
from netem.link import Direction, Link
from netem.rate import RateCurve
from strategies._buffered import budget_for
from strategies.server_app import controller_for

START = {"w": np.array([0.5, -1, 2, 8], np.float32), "seen": np.array(0, np.int64)}
INSTANT = Link(
    up=Direction(curve=RateCurve.constant(1e22), delay_ms=0.0, layer="goodput"),
    down=Direction(curve=RateCurve.constant(1e22), delay_ms=0.0, layer="goodput"),
    tcp="none",
)
"""Transfers take no time that shows, so that seconds are those of computing."""


class WatchedGrid(VirtualGrid):
    """Notes who is in flight."""

    def __init__(self, **options):
        super().__init__(**options)
        self.flight, self.pushed, self.most = {}, [], 0

    def push_messages(self, messages):
        messages = list(messages)
        ids = super().push_messages(messages)
        for message_id, message in zip(ids, messages, strict=True):
            node = message.metadata.dst_node_id
            assert node not in self.flight.values()
            self.flight[message_id] = node
            self.pushed.append(node)
        self.most = max(self.most, len(self.flight))
        return ids

    def pull_messages(self, message_ids):
        replies = super().pull_messages(message_ids)
        self.cancel([reply.metadata.reply_to_message_id for reply in replies])
        return replies

    def cancel(self, message_ids):
        for message_id in message_ids:
            self.flight.pop(message_id, None)
        super().cancel(message_ids)


class Federation:
    """Clients who add a constant to the model, in seconds that the test says."""

    def __init__(self, tmp_path, options, *settings, seconds, controller=None, moves=None):
        set_task_identity(1)
        self.nodes = sorted(seconds)
        self.seconds, self.moves, self.faults = seconds, moves or (lambda node, number: node), {}
        self.tmp_path, self.messages = tmp_path, []
        text = 'strategy.name = "fedbuff"\n' + "".join(
            f"strategy.options.{key} = {value}\n" for key, value in options.items()
        )
        self.experiment = parse_experiment(
            text, [f"partition.clients={len(seconds)}", *settings], where="test"
        )
        self.controller = controller or controller_for(self.experiment)
        self.contexts = {
            node: Context(1, node, {"state-dir": str(tmp_path), "durable": False}, RecordDict(), {})
            for node in seconds
        }

    def strategy(self):
        examples = {node: 10 * node for node in self.nodes}
        return budget_for(self.experiment, self.controller, examples, START)

    def grid(self):
        return WatchedGrid(
            node_ids=self.nodes,
            link_of=lambda node: INSTANT,
            submit=self.submit,
            compute_s=lambda node, reply: self.seconds[node],
            seed=1,
        )

    def submit(self, messages):
        futures = []
        for message in messages:
            future: Future[Message] = Future()
            try:
                future.set_result(self.reply(message))
            except Exception as error:
                future.set_exception(error)
            futures.append(future)
        return futures

    def reply(self, message):
        node = message.metadata.dst_node_id
        number = message.content["config"]["server-round"]
        fault = self.faults.get(node, self.faults.get((node, number), ""))
        reply = codec_mod(message, self.contexts[node], lambda m, c: self.trained(m, c, fault))
        if fault == "damaged":
            name, packet = unwrap(reply.content)
            reply.content[name] = wrap(packet[:-3] + bytes([packet[-3] ^ 1]) + packet[-2:])
        return reply

    def trained(self, message, context, fault):
        if fault == "raises":
            raise ValueError("boom")
        node, number = context.node_id, message.content["config"]["server-round"]
        arrays = {k: a.numpy().copy() for k, a in message.content["arrays"].items()}
        arrays["w"] = arrays["w"] + np.float32(self.moves(node, number))
        arrays["seen"] += node
        if fault == "wrong shape":
            arrays["w"] = np.zeros(3, np.float32)
        metrics = {"num-examples": 10 * node, "local-steps": 1, "samples": 1, "train-loss": 0.5}
        content = {
            "arrays": ArrayRecord({k: Array(a) for k, a in arrays.items()}),
            "metrics": MetricRecord(metrics),
        }
        return Message(RecordDict(content), reply_to=message)


def restored_every_round(federation):
    """The strategy and the records of a run that goes on from a checkpoint after every round."""
    strategy, grid, records = federation.strategy(), federation.grid(), []
    while not strategy.stopped_by:
        records.append(next(strategy.rounds(grid)))
        state = {"strategy": strategy.state(), "grid": grid.state()}
        saved = unpack_checkpoint(pack_checkpoint(len(records), strategy.tensors(), state))
        strategy, grid = federation.strategy(), federation.grid()
        strategy.restore(saved.tensors, saved.state["strategy"], records)
        grid.restore(saved.state["grid"])
    return strategy, records


def told(record):
    return [(report.node_id, report.staleness, report.reason) for report in record.reports]


def simulated_alike(tmp_path, text):
    """The result of a simulation, after asserting that two workers give the bytes of one."""
    experiment = parse_experiment(text, where="test")
    found = []
    for workers in (1, 2):
        folder = RunFolder.create(tmp_path / str(workers), experiment, resume=False)
        result = run_experiment(experiment, folder, workers=workers)
        found.append((result.model_sha256, (folder.path / "rounds.jsonl").read_bytes()))
    assert found[0] == found[1]
    return result
