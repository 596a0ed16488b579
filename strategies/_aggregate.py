"""From the sum of a round's updates to one step of the global model.

Weights are proportional to examples (FedAvg). Where a controller gives clients unequal work,
updates are normalised by their local steps (FedNova, Wang et al. 2020): the step is
(sum p tau) * sum p u / tau, so that nobody is heard louder for having been asked to do more.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedsys.codecs._base import sum_of_squares
from fedsys.partial import Partial, is_exact
from fedsys.types import F32
from fedsys.wire.schema import Array, Schema


@dataclass(frozen=True, slots=True)
class Mean:
    """The weighted mean of the updates in a sum, and of the tensors sent raw."""

    sums: Partial

    @property
    def count(self) -> int:
        """Number of updates."""
        return self.sums.count

    def step(self) -> F32:
        """The mean update float32 [n]; with FedNova times the mean steps.

        Raises ValueError where nothing was added.
        """
        sums = self.sums
        if not sums.count:
            raise ValueError("no update was added")
        scale = sums.steps / sums.weight if sums.normalise else 1.0
        step: F32 = sums.total * np.float32(scale / sums.weight)
        return step

    def agreement(self) -> float:
        """|mean|^2 over the mean of squares.

        1 for equal updates; for orthogonal ones of equal norm the sum of squares of their shares,
        which is 1/count where these are equal.
        """
        sums = self.sums
        if not sums.energy:
            return 1.0
        return sum_of_squares(sums.total) / sums.weight / sums.energy

    def stretch(self, most: float) -> float:
        """Factor for the mean update, from 1 to ``most``.

        Updates that point different ways cancel in their mean, which is then too short a step:
        max(1, mean of squares / (2 |mean|^2)), FedExP (Jhunjhunwala et al., ICLR 2023).
        """
        return max(1.0, min(most, 0.5 / max(self.agreement(), 1e-9)))

    def raw(self) -> dict[str, Array]:
        """The raw tensors: integers and booleans the largest seen, floats the mean as float64."""
        return {
            name: total if is_exact(total) else np.asarray(total / self.sums.weight)
            for name, total in self.sums.raw.items()
        }


@dataclass(frozen=True, slots=True)
class Averaged:
    """A mean over rounds of the global model: what chance brings into single rounds cancels."""

    flat: F32
    """Coded values, float32 [n]."""
    raw: bytes
    """The raw tensors; integers and booleans are the latest ones."""

    def moved(self, schema: Schema, flat: F32, raw: bytes, weight: float) -> "Averaged":
        """The mean with ``weight`` in (0, 1] on a new model, given as this one is."""
        if not 0 < weight <= 1:
            raise ValueError(f"the weight in a mean over rounds must be in (0, 1], got {weight}")
        mean = self.flat + np.float32(weight) * (flat - self.flat)
        if schema.raw_n_bytes:
            before, after = schema.join(mean, self.raw), schema.join(mean, raw)
            mixed = {
                name: new if is_exact(new) else _between(before[name], new, weight)
                for name, new in after.items()
            }
            _, raw = schema.split({k: v.astype(after[k].dtype) for k, v in mixed.items()})
        return Averaged(mean, raw)

    def tensors(self) -> dict[str, Array]:
        """What a checkpoint needs."""
        return {"mean-flat": self.flat, "mean-raw": np.frombuffer(self.raw, np.uint8)}

    @classmethod
    def of(cls, tensors: Mapping[str, Array]) -> "Averaged | None":
        """From the ``tensors`` of a checkpoint; None where they hold no mean."""
        if "mean-flat" not in tensors:
            return None
        return cls(tensors["mean-flat"].copy(), tensors["mean-raw"].tobytes())


def _between(old: Array, new: Array, weight: float) -> Array:
    """In float64: a difference of two float16 may be infinite."""
    start = old.astype(np.float64)
    return np.asarray(start + weight * (new - start))


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
