"""A run without training: the real strategy, codecs, middleware and links, and updates of noise.

What a round takes hardly depends on what an update says, but on how many bytes it becomes; so the
figures are known before anything is trained. Losses fall on a made-up curve, from round to round
and during local steps, because some strategies decide by them.
"""

import math
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from clients.server_side import ServerTask
from fedsys.config.schema import Experiment
from fedsys.middleware.control import array_records
from fedsys.middleware.mod import codec_mod
from fedsys.rng import rng_for
from fedsys.types import F32, NodeConfig, RoundRecord
from netem.emulation import virtual_grid
from strategies._buffered import budget_for
from strategies.server_app import controller_for

_SCALE = 0.01
"""Of the Laplace noise in an update; codecs look at relative sizes."""
_SHARED = {"iid": 0.58, "dirichlet": 0.39, "shards": 0.33, "user": 0.55}
"""Part of an update that all clients of a round agree on (as the first rounds of our scenarios show
it: updates then agree as much)."""
_FIRST_LOSS = 2.3
_DECAY_STEPS = {"iid": 90.0, "dirichlet": 45.0, "shards": 17.0, "user": 45.0}
"""Local steps in which a client's own loss falls by a factor e: soon where its data are few labels
(as the first rounds of our scenarios show them)."""
_TASK_STEPS = {"char_lm": 3.0}
"""Of a text so many times as many."""
_MOMENTUM_POWER = 1 / 6
"""With momentum m they are fewer, as (1 - m) to this power (as the Fashion-MNIST scenes show)."""
_KEPT = 0.5
"""Part of what clients gain on their own data that the next round's model has."""
_RUN_ID = 1


@dataclass(frozen=True, slots=True)
class Stage:
    """What does not depend on strategy, codecs or links: read once for many rehearsals."""

    arrays: Mapping[str, Any]
    examples: Mapping[int, int]
    """Node to its training examples."""
    flops_per_sample: float

    @classmethod
    def of(cls, experiment: Experiment) -> "Stage":
        """Reads the data and builds the model; ConfigError as ``check_experiment``."""
        task = ServerTask(experiment)
        counts = enumerate(task.examples_per_client(), start=1)
        examples = {node: int(count) for node, count in counts}
        return cls(task.initial_arrays(), examples, task.flops_per_sample())


def rehearse(experiment: Experiment, stage: Stage, rounds: int) -> list[RoundRecord]:
    """The first rounds as they would be recorded; times, bytes and plans as in a simulation."""
    controller = controller_for(experiment)
    strategy = budget_for(experiment, controller, stage.examples, stage.arrays)
    nodes = range(1, len(stage.examples) + 1)
    with tempfile.TemporaryDirectory(prefix="fedsys-") as folder:
        actors = _Actors(experiment, stage, Path(folder))
        grid = virtual_grid(experiment, nodes, actors.submit, stage.flops_per_sample)
        return list(islice(strategy.rounds(grid), rounds))


@dataclass(slots=True)
class _Actors:
    """All clients: they receive, code and reply as real ones, and train nothing."""

    experiment: Experiment
    stage: Stage
    folder: Path
    _loss: float = _FIRST_LOSS
    """Made up: falls with every reply."""

    def submit(self, messages: Sequence[Message]) -> list[Future[Message]]:
        """Answer each message at once."""
        loss = self._loss
        answered: list[Future[Message]] = []
        for message in messages:
            reply: Future[Message] = Future()
            try:
                node = message.metadata.dst_node_id
                reply.set_result(
                    codec_mod(message, self._context(node), lambda m, c: self._reply(m, c, loss))
                )
            except Exception as error:
                reply.set_exception(error)
            answered.append(reply)
        return answered

    def _reply(self, message: Message, context: Context, loss: float) -> Message:
        node, config = context.node_id, message.content["config"]
        round_number, steps = (_whole(config, key) for key in ("server-round", "local-steps"))
        examples, samples = self.stage.examples[node], self._samples(node, steps)
        mean_share = _mean_share(steps, self.experiment)
        cohort = self.experiment.cohort.count(len(self.stage.examples))
        self._loss *= (1 - _KEPT * (1 - mean_share)) ** (1 / cohort)
        received = array_records(message.content)["arrays"]
        trained = {
            name: Array(self._moved(array.numpy(), name, round_number, node))
            for name, array in received.items()
        }
        metrics: dict[str, int | float | list[int] | list[float]] = {
            "num-examples": examples,
            "local-steps": steps,
            "samples": samples,
            "train-loss": loss * mean_share,
            "first-loss": loss,
            "train-seconds": 0.0,
        }
        content = RecordDict({"arrays": ArrayRecord(trained), "metrics": MetricRecord(metrics)})
        return Message(content, reply_to=message)

    def _moved(self, array: Any, name: str, round_number: int, node: int) -> Any:
        """The array after training: moved by noise, part of which all clients share."""
        if array.dtype.kind != "f":
            return array
        seed = self.experiment.run.seed
        parts = [
            _noise(array.shape, seed, name, round_number),
            _noise(array.shape, seed, name, round_number, node),
        ]
        shared = _SHARED[self.experiment.partition.kind]
        step = shared * parts[0] + (1 - shared) * parts[1]
        return (array + step).astype(array.dtype)

    def _samples(self, node: int, steps: int) -> int:
        """Examples that so many local steps take; the last step of an epoch may be short."""
        training, n = self.experiment.training, self.stage.examples[node]
        step = training.batch_size * training.accumulation_steps
        epochs, rest = divmod(steps, -(-n // step))
        return epochs * n + rest * step

    def _context(self, node: int) -> Context:
        config: NodeConfig = {"state-dir": str(self.folder), "durable": False}
        return Context(_RUN_ID, node, config, RecordDict(), {})


def _mean_share(steps: int, experiment: Experiment) -> float:
    """Mean loss over so many local steps, as a share of the first one."""
    fewer = math.pow(1 - experiment.training.momentum, _MOMENTUM_POWER)
    more = _TASK_STEPS.get(experiment.task.name, 1.0)
    x = max(1, steps) / (_DECAY_STEPS[experiment.partition.kind] * fewer * more)
    return -math.expm1(-x) / x


def _noise(shape: Sequence[int], seed: int, *path: str | int) -> F32:
    values = rng_for(seed, "rehearsal", *path).laplace(0.0, _SCALE, tuple(shape))
    return values.astype(np.float32)


def _whole(config: Any, key: str) -> int:
    value = config[key] if isinstance(config, ConfigRecord) else 0
    return int(value) if isinstance(value, int) else 0
