"""A run on real devices: its folder, its checkpoints, and what it says in the end."""

from collections.abc import Mapping
from dataclasses import asdict
from operator import itemgetter
from typing import Any, Protocol

from flwr.serverapp import Grid

from fedsys.clock import WallClock
from fedsys.config.schema import Experiment
from fedsys.deploy import _flower
from fedsys.deploy.grid import WireGrid
from fedsys.deploy.orders import END_S, Order
from fedsys.telemetry.lock import sole_writer
from fedsys.telemetry.runfolder import RunFolder
from fedsys.telemetry.summary import summarise
from fedsys.wire.schema import Array as Values
from strategies._base import Controller
from strategies._buffered import require_rounds
from strategies._flower import RoundBudget
from strategies._resumed import resume


class ServerSide(Protocol):
    """What the server needs of the task; see ``clients.server_side``."""

    def examples_per_client(self) -> list[int]:
        """Training examples of each part of the data."""
        ...

    def split(self) -> Mapping[str, Any]:
        """Who has which part."""
        ...

    def initial_arrays(self) -> Mapping[str, Values]:
        """The model at the start."""
        ...

    def evaluate(self, arrays: Mapping[str, Values]) -> tuple[float, float]:
        """Loss and metric on the held-out set."""
        ...


def run_order(
    order: Order,
    experiment: Experiment,
    controller: Controller[Any],
    task: ServerSide,
    inner: Grid,
) -> None:
    """Run ``experiment`` on the order's devices, from the folder's checkpoint if it has one.

    A round is in ``rounds.jsonl`` and in the checkpoint before the next begins; ``result.json``
    is written when a budget has been met, and by nothing else.
    """
    require_rounds(experiment, controller)
    clock = WallClock()
    with sole_writer(order.folder_path, clock, END_S):
        _run(order, experiment, controller, task, inner, clock)


def _run(
    order: Order,
    experiment: Experiment,
    controller: Controller[Any],
    task: ServerSide,
    inner: Grid,
    clock: WallClock,
) -> None:
    start_s = clock.now_s()
    folder = RunFolder.open(order.folder_path)
    _flower.limit_chunks(order.chunk_bytes)
    folder.save_split(task.split())
    counts = task.examples_per_client()
    places = {part + 1: node for node, part in sorted(order.nodes.items(), key=itemgetter(1))}
    examples = {node: int(counts[node - 1]) for node in places}
    arrays = task.initial_arrays()
    strategy = RoundBudget(experiment, controller, examples, arrays, task.evaluate)
    records = resume(folder, strategy, kept=lambda state: _kept(state, places))
    grid = WireGrid(
        inner,
        places=places,
        piece_bytes=order.chunk_bytes,
        model_bytes=sum(array.nbytes for array in arrays.values()),
        exchange_bps=order.exchange_bps,
        begin_s=records[-1].end_s if records else 0.0,
        clock=clock,
        spool=folder.path,
    )
    for record in strategy.rounds(grid):
        records.append(record)
        folder.append(record)
        folder.save_checkpoint(
            record.round,
            strategy.tensors(),
            {"strategy": strategy.state(), "places": list(places.items())},
        )
        if order.keep_every_rounds and record.round % order.keep_every_rounds == 0:
            folder.keep_checkpoint(record.round)
    model_sha256 = folder.save_model(strategy.result())
    summary = summarise(records, experiment.run.target, strategy.stopped_by)
    folder.save_result(
        asdict(summary) | {"model_sha256": model_sha256, "wall_s": clock.now_s() - start_s}
    )


def _kept(state: Mapping[str, Any], places: Mapping[int, int]) -> dict[str, Any]:
    """The strategy's state, but for devices enrolled anew: they hold no model and no residual."""
    same = {node for node, place in state["places"] if places.get(node) == place}
    kept = dict(state["strategy"])
    for name in ("held", "acked"):
        kept[name] = [pair for pair in kept[name] if pair[0] in same]
    return kept
