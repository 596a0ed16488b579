"""The task of an experiment with its training data dealt out: what client and server agree on.

Kept per process, because a worker plays many clients and many rounds of the same federation.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from torch import Tensor

from clients.data.partition import Parts, partition
from clients.tasks._base import Examples, Task
from clients.tasks._load import task_for
from fedsys.config.schema import Experiment, Partition, TaskConfig
from fedsys.errors import ConfigError
from fedsys.types import I64


@dataclass(frozen=True)
class FederatedData:
    """A task, its training examples, and the indices of each client's."""

    task: Task
    train: Examples
    parts: Parts

    def of_client(self, client: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of client number ``client``."""
        index = self.part(client)
        return self.train.x[index], self.train.y[index]

    def part(self, client: int) -> I64:
        """Indices of the examples of client number ``client``; ConfigError if there is none."""
        if not 0 <= client < len(self.parts):
            raise ConfigError(
                f"partition-id: no client {client}, partition.clients = {len(self.parts)}"
            )
        return self.parts[client]

    @cached_property
    def digest(self) -> str:
        """Sixteen hex digits that agree exactly when every client has the same examples."""
        sizes = self.parts.sizes
        # Each client's examples after their number.
        text = np.insert(self.parts.order, np.cumsum(sizes) - sizes, sizes)
        return hashlib.blake2b(text.astype("<i8", copy=False).data, digest_size=8).hexdigest()


def federated_data(experiment: Experiment) -> FederatedData:
    """The experiment's task and split; ConfigError when the data or the split cannot be had."""
    return _federated(
        experiment.task.model_dump_json(),
        experiment.partition.model_dump_json(),
        experiment.run.seed,
    )


@lru_cache(maxsize=8)
def _federated(task_json: str, partition_json: str, seed: int) -> FederatedData:
    task, train = _task_and_examples(task_json)
    config = Partition.model_validate_json(partition_json)
    parts = partition(len(train), train.labels, train.user, config, seed)
    return FederatedData(task, train, parts)


@lru_cache(maxsize=2)
def _task_and_examples(task_json: str) -> tuple[Task, Examples]:
    task = task_for(TaskConfig.model_validate_json(task_json))
    return task, task.train_data()
