"""A run on the nodes of Flower's own simulation: they train, and virtual time passes here."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from itertools import cycle
from pathlib import Path
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid
from threadpoolctl import threadpool_limits

from fedsys._flwr_private import reply_to
from fedsys.clock import WallClock
from fedsys.config.schema import Experiment
from fedsys.engine.tasks import Pumped
from fedsys.errors import ConfigError
from fedsys.middleware.place import placed
from fedsys.nodes import NodeCounts
from fedsys.telemetry.runfolder import RunFolder
from fedsys.telemetry.summary import summarise
from strategies._base import Controller
from strategies._buffered import budget_for
from strategies._resumed import resume

LOOK_S = 0.02
"""Between two looks for replies."""

Emulate = Callable[..., Any]
"""``netem.emulation.virtual_grid``."""


def run_simulated(
    experiment: Experiment,
    controller: Controller[Any],
    task: Any,
    inner: Grid,
    emulate: Emulate,
    *,
    path: Path,
    run_id: int,
) -> None:
    """Run ``experiment`` with ``inner``'s nodes as its clients, into the run folder ``path``.

    Seconds, records and model are those of ``fedsys simulate``. There may be fewer nodes than
    clients: a node plays whichever it is asked to. A run that was ended goes on from its
    checkpoint. ``task`` is a ``clients.server_side.ServerTask``.
    """
    clock = WallClock()
    start_s = clock.now_s()
    folder = RunFolder.create(path, experiment, resume=True)
    if folder.result() is not None:
        return
    folder.save_split(task.split())
    nodes = range(1, experiment.partition.clients + 1)
    strategy = budget_for(
        experiment,
        controller,
        NodeCounts(nodes, task.sizes),
        task.initial_arrays(),
        task.evaluate,
    )
    # Sums over several threads differ in the last bits from sums over one.
    with threadpool_limits(1):
        players = Players(inner)
        grid = emulate(experiment, nodes, players.submit, task.flops_per_sample(), run_id=run_id)
        records = resume(folder, strategy, grid)
        for record in strategy.rounds(grid):
            records.append(record)
            folder.append(record)
            folder.save_checkpoint(
                record.round,
                strategy.tensors(),
                {"strategy": strategy.state(), "grid": grid.state()},
            )
    model_sha256 = folder.save_model(strategy.result())
    summary = summarise(records, experiment.run.target, strategy.stopped_by)
    folder.save_result(
        asdict(summary) | {"model_sha256": model_sha256, "wall_s": clock.now_s() - start_s}
    )
    folder.finish()


class Players:
    """Nodes of a Grid that play clients: messages go out at once, replies are asked for."""

    def __init__(self, inner: Grid, clock: WallClock | None = None) -> None:
        self._inner = inner
        self._clock = clock or WallClock()
        nodes = sorted(inner.get_node_ids())
        if not nodes:
            raise ConfigError("Flower's simulation has no nodes: set num-supernodes")
        self._nodes = cycle(nodes)
        self._waiting: dict[str, tuple[Message, Pumped[Message]]] = {}

    def submit(self, messages: Sequence[Message]) -> list[Future[Message]]:
        """Have each message's client played by the next node; the futures of the replies."""
        sent = []
        for message in messages:
            about = message.metadata
            content = placed(message.content, about.dst_node_id)
            node = next(self._nodes)
            sent.append(Message(content, node, about.message_type, group_id=about.group_id))
        ids = list(self._inner.push_messages(sent))
        if len(ids) != len(sent):
            raise ConfigError("Flower's simulation takes no messages any more")
        replies: list[Future[Message]] = []
        for message_id, message in zip(ids, messages, strict=True):
            reply: Pumped[Message] = Pumped(self._pump)
            self._waiting[message_id] = message, reply
            replies.append(reply)
        return replies

    def _pump(self, timeout_s: float | None) -> None:
        """Take the replies that have come; a pause where there are none."""
        came = list(self._inner.pull_messages(list(self._waiting)))
        for found in came:
            message, reply = self._waiting.pop(found.metadata.reply_to_message_id)
            if found.has_error():
                reply.set_result(Message(found.error, reply_to=message))
            else:
                reply.set_result(reply_to(message, found.content))
        if not came:
            self._clock.sleep_s(LOOK_S if timeout_s is None else min(LOOK_S, timeout_s))
