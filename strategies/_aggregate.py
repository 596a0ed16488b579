"""From a stream of updates to one step of the global model, in memory of one model.

Weights are proportional to examples (FedAvg). Where a controller gives clients unequal work,
updates are normalised by their local steps (FedNova, Wang et al. 2020): the step is
(sum p tau) * sum p u / tau, so that nobody is heard louder for having been asked to do more.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from fedsys.codecs._base import Update, sum_of_squares
from fedsys.types import F32
from fedsys.wire.schema import Array


@dataclass(slots=True)
class Mean:
    """A running weighted mean of updates of ``n`` values, and of the tensors sent raw."""

    n: int
    normalise: bool
    """Divide each update by its local steps and multiply the mean by the mean steps."""
    weight: float = 0.0
    count: int = 0
    _sum: F32 = field(init=False)
    _energy: float = 0.0
    _steps: float = 0.0
    _raw: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._sum = np.zeros(self.n, np.float32)

    def add(
        self, update: Update, raw: Mapping[str, Array], *, examples: int, local_steps: int
    ) -> None:
        """Add one client's update; ``examples`` and ``local_steps`` are at least 1."""
        scale = examples / local_steps if self.normalise else float(examples)
        update.add_to(self._sum, scale)
        self._energy += scale**2 * update.norm2() / examples
        self._steps += examples * local_steps
        self.weight += examples
        self.count += 1
        for name, array in raw.items():
            self._raw[name] = _merged(self._raw.get(name), array, examples)

    def step(self) -> F32:
        """The mean update float32 [n]. Raises ValueError before the first ``add``."""
        if not self.count:
            raise ValueError("no update was added")
        scale = self._steps / self.weight if self.normalise else 1.0
        step: F32 = self._sum * np.float32(scale / self.weight)
        return step

    def agreement(self) -> float:
        """|mean|^2 over the mean of squares: 1 for equal updates, 1/count for orthogonal ones."""
        if not self._energy:
            return 1.0
        return sum_of_squares(self._sum) / self.weight / self._energy

    def raw(self) -> dict[str, Array]:
        """The raw tensors: integers and booleans the largest seen, floats the mean as float64."""
        return {
            name: total if _is_exact(total) else np.asarray(total / self.weight)
            for name, total in self._raw.items()
        }


def _merged(total: Array | None, array: Array, examples: int) -> Array:
    if _is_exact(array):
        return array if total is None else np.asarray(np.maximum(total, array))
    # In float64: float16 would overflow when multiplied by a number of examples.
    scaled = np.asarray(array.astype(np.float64) * examples)
    return scaled if total is None else np.asarray(total + scaled)


def _is_exact(array: Array) -> bool:
    return array.dtype.kind in "biu"


@dataclass(slots=True)
class Optimizer:
    """Turns the mean update into the step taken: SGD with momentum on the server.

    FedAvgM (Hsu et al. 2019); with ``nesterov`` the outer optimizer of DiLoCo (Douillard et al.
    2023). It never touches tensors that travel raw.
    """

    lr: float
    momentum: float
    nesterov: bool
    velocity: F32 | None = None

    def step(self, mean: F32) -> F32:
        """The change of the coded values, float32 [n]; advances the velocity."""
        if self.momentum == 0:
            return mean if self.lr == 1 else mean * np.float32(self.lr)
        momentum = np.float32(self.momentum)
        velocity = mean if self.velocity is None else momentum * self.velocity + mean
        self.velocity = velocity
        ahead = momentum * velocity + mean if self.nesterov else velocity
        return ahead * np.float32(self.lr)

    def tensors(self) -> dict[str, Array]:
        """What a checkpoint needs."""
        return {} if self.velocity is None else {"velocity": self.velocity}

    def restore(self, tensors: Mapping[str, Array]) -> None:
        """Go on from the ``tensors`` of a checkpoint."""
        velocity = tensors.get("velocity")
        self.velocity = None if velocity is None else velocity.copy()
