"""What a task is: the model, the data, the loss and the metric of one learning problem.

A task is a frozen dataclass in a file of this folder, or a user's ``package.module:Class``; its
fields are the keys of ``task.options`` in the experiment file.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from fedsys.errors import ConfigError
from fedsys.types import I64


@dataclass(frozen=True, slots=True)
class Examples:
    """Inputs and targets, one example per row, in memory."""

    x: Tensor
    y: Tensor
    user: I64 | None = None
    """Whose example it is, int64 [n]; None when the data has no users."""

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y) or (self.user is not None and len(self.user) != len(self.x)):
            raise ConfigError(f"examples: {len(self.x)} inputs but {len(self.y)} targets or users")
        if len(self.x) == 0:
            raise ConfigError("examples: the data set is empty")

    def __len__(self) -> int:
        return len(self.x)

    @property
    def labels(self) -> I64 | None:
        """The class of each example, int64 [n]; None when targets are not single classes."""
        if self.y.ndim != 1 or self.y.is_floating_point():
            return None
        labels: I64 = self.y.to(torch.int64).numpy()
        return labels


@runtime_checkable
class Task(Protocol):
    """One learning problem; calling a method twice gives equal results.

    It may have a method more, ``augment(x: Tensor, generator: torch.Generator) -> Tensor``: the
    inputs of a batch in training, changed by draws of ``generator``; both are on one device.
    """

    metric: ClassVar[str]
    """Name of what ``evaluate`` sums, e.g. ``accuracy``; larger is better."""

    def train_data(self) -> Examples:
        """The examples that are divided among the clients."""
        ...

    def test_data(self) -> Examples:
        """The examples that only the server sees."""
        ...

    def build_model(self) -> nn.Module:
        """A new model; the caller has seeded torch."""
        ...

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Mean loss of a batch, a scalar to differentiate."""
        ...

    def evaluate(self, model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float, int]:
        """Sum of losses, sum of metrics and number of predictions of a batch."""
        ...


REQUIRED: tuple[str, ...] = ("metric", "train_data", "test_data", "build_model", "loss", "evaluate")
"""What a user's class must have to be a task."""


def check_is_task(candidate: Any, name: str) -> Task:
    """``candidate`` as a Task, or a ConfigError that names what it lacks."""
    if isinstance(candidate, Task):
        return candidate
    lacking = [part for part in REQUIRED if not hasattr(candidate, part)]
    raise ConfigError(f"task '{name}' has no {', '.join(lacking)}; see clients/tasks/_base.py")
