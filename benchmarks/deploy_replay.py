"""The rounds of a real run once more in virtual time, with the same devices absent."""

import tempfile
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from safetensors.numpy import save
from threadpoolctl import threadpool_limits

from benchmarks.deploy_rig import fedsys
from clients.client_app import app
from clients.server_side import ServerTask
from fedsys.config.load import dump_toml, parse_experiment
from netem.grid import VirtualGrid
from netem.profiles import link_for
from strategies._flower import RoundBudget
from strategies.server_app import controller_for


def replayed(text: str, records: Sequence[dict[str, Any]]) -> bytes:
    """The model's file after as many rounds as there are ``records``."""
    experiment = parse_experiment(text, where="replay")
    task = ServerTask(experiment)
    counts = task.examples_per_client()
    nodes = range(1, len(counts) + 1)
    present = {
        record["round"]: {r["node_id"] for r in record["reports"] if r["accepted"]}
        for record in records
    }
    config = {"experiment": dump_toml(experiment)}
    with tempfile.TemporaryDirectory(prefix="fedsys-replay-") as folder, threadpool_limits(1):

        def submit(messages: Sequence[Message]) -> list[Future[Message]]:
            futures = []
            for message in messages:
                future: Future[Message] = Future()
                future.set_result(app(message, _context(message, len(nodes), config, folder)))
                futures.append(future)
            return futures

        grid = VirtualGrid(
            node_ids=nodes,
            link_of=lambda node: link_for("perfect", {}, 1, node),
            submit=submit,
            compute_s=lambda node, reply: 0.0,
            seed=experiment.run.seed,
            drop=lambda node, turn: node not in present[turn],
            heartbeat_s=0.1,  # one that was absent is there again in the next round
        )
        examples = dict(zip(nodes, counts, strict=True))
        strategy = RoundBudget(
            experiment, controller_for(experiment), examples, task.initial_arrays()
        )
        for record in strategy.rounds(grid):
            if record.round == len(records):
                break
    return bytes(save(strategy.result()))


def accuracy_without_faults(text: str) -> float:
    """The last accuracy of a simulation in which nothing goes wrong."""
    with tempfile.TemporaryDirectory(prefix="fedsys-calm-") as folder:
        done = fedsys("simulate", text, Path(folder), timeout_s=400)
    return float(done.rounds[-1]["test_metric"])


def _context(message: Message, clients: int, config: dict[str, str], folder: str) -> Context:
    node = message.metadata.dst_node_id
    return Context(
        run_id=1,
        node_id=node,
        node_config={
            "partition-id": node - 1,
            "num-partitions": clients,
            "state-dir": folder,
            "durable": False,
            "threads": 1,
        },
        state=RecordDict(),
        run_config=dict(config),
    )
