"""What a server needs of a task: initial weights, the held-out examples, and what to record.

The server loads this by name, so that it imports no torch itself.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from clients.data.federated import federated_data
from clients.evaluate import evaluate
from clients.fast_conv import speed_up
from clients.flops import FlopCount
from clients.weights import Array, build_model, load_arrays, to_arrays
from fedsys.config.load import parse_experiment
from fedsys.config.schema import Experiment
from fedsys.types import I64

MAX_LISTED = 100_000
"""Clients whose examples are listed for the record."""
_FLOPS_BATCH = 2


class ServerTask:
    """The task of one experiment as the server sees it.

    Building it reads the data and draws the split, so that a fault in either shows before the
    run starts, as a ConfigError.
    """

    def __init__(self, experiment: Experiment) -> None:
        self._seed = experiment.run.seed
        self._data = federated_data(experiment)
        self._test = self._data.task.test_data()
        model = build_model(self._data.task, self._seed)
        self._model = speed_up(model, experiment.training.fast_conv, torch.device("cpu"))
        self.metric: str = self._data.task.metric

    def initial_arrays(self) -> dict[str, Array]:
        """The weights that round 1 starts from, drawn from the seed, in state-dict order."""
        return to_arrays(build_model(self._data.task, self._seed))

    def evaluate(self, arrays: Mapping[str, Array]) -> tuple[float, float]:
        """Mean loss and metric of ``arrays`` on the test set; bit-equal for equal arrays."""
        load_arrays(self._model, arrays)
        with _one_thread():
            loss, metric, _ = evaluate(self._model, self._data.task, self._test.x, self._test.y)
        return loss, metric

    def flops_per_sample(self) -> float:
        """Floating-point operations, forward and backward, that one training example takes.

        Counted from the matrix products and convolutions that torch runs. A model that has none
        that the counter knows is estimated at 6 per parameter: a multiplication and an addition
        forward, twice that backward.
        """
        model = build_model(self._data.task, self._seed)
        x, y = self._data.train.x[:_FLOPS_BATCH], self._data.train.y[:_FLOPS_BATCH]
        count: FlopCount = FlopCount()  # type: ignore[no-untyped-call]
        with count:
            self._data.task.loss(model, x, y).backward()  # type: ignore[no-untyped-call]
        if count.flops:
            return count.flops / len(x)
        return 6.0 * sum(p.numel() for p in model.parameters() if p.requires_grad)

    def examples_per_client(self) -> list[int]:
        """Number of training examples of each client."""
        counts: list[int] = self.sizes.tolist()
        return counts

    @property
    def sizes(self) -> I64:
        """The same as int64 [clients]."""
        return self._data.parts.sizes

    def split(self) -> dict[str, Any]:
        """Who has what, for the record: ``digest`` identifies the split to the last example.

        ``examples`` are each client's; ``label_counts`` are those of each class at each client,
        None where there are no classes. Both are None where there are more clients than anyone
        will look at.
        """
        labels, parts = self._data.train.labels, self._data.parts
        examples = counts = None
        if len(parts) <= MAX_LISTED:
            examples = parts.sizes.tolist()
        if examples is not None and labels is not None:
            classes = int(labels.max()) + 1
            counts = [np.bincount(labels[p], minlength=classes).tolist() for p in parts]
        return {"digest": self._data.digest, "examples": examples, "label_counts": counts}


@dataclass(frozen=True, slots=True)
class Facts:
    """All that a run's server must know of the task beside evaluations."""

    sizes: I64
    """Training examples of each client, int64 [clients]."""
    split: dict[str, Any]
    arrays: dict[str, Array]
    """Initial weights."""
    flops_per_sample: float


def facts_for(text: str) -> Facts:
    """The facts of the experiment that ``text`` (TOML) describes."""
    task = server_task_for(text)
    return Facts(task.sizes, task.split(), task.initial_arrays(), task.flops_per_sample())


def evaluate_for(text: str, arrays: Mapping[str, Array]) -> tuple[float, float]:
    """``ServerTask.evaluate`` in any process, for the experiment that ``text`` (TOML) describes."""
    return server_task_for(text).evaluate(arrays)


@lru_cache(maxsize=1)
def server_task_for(text: str) -> ServerTask:
    """The task as the server sees it, kept for later calls."""
    return ServerTask(parse_experiment(text, where="run config"))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sums in one order, whatever the machine; the number of threads is put back afterwards."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
