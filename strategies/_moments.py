"""Server optimizers that adapt each value's step: Adagrad, Adam, Yogi (Reddi et al., ICLR 2021).

The equations are those of Flower's FedAdagrad, FedAdam and FedYogi, which hold a model as named
arrays and average replies themselves; here the mean is one flat vector.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedsys.types import F32
from fedsys.wire.schema import Array


@dataclass(slots=True)
class Moments:
    """Turns the mean update D into the step lr' m / (sqrt(v) + tau) of the global model.

    m = beta_1 m + (1 - beta_1) D. v = v + D^2 (adagrad, beta_1 = 0),
    beta_2 v + (1 - beta_2) D^2 (adam), v - (1 - beta_2) D^2 sign(v - D^2) (yogi). For adam,
    lr' = lr sqrt(1 - beta_2^(t + 1)) / (1 - beta_1^(t + 1)) in step t = 1, 2, ...; else lr' = lr.
    """

    kind: Literal["adagrad", "adam", "yogi"]
    lr: float
    beta_1: float
    beta_2: float
    tau: float
    first: F32 | None = None
    second: F32 | None = None
    steps: int = 0

    def step(self, mean: F32) -> F32:
        """The change of the coded values, float32 [n]; advances the moments."""
        first = np.zeros_like(mean) if self.first is None else self.first
        second = np.zeros_like(mean) if self.second is None else self.second
        beta_1 = 0.0 if self.kind == "adagrad" else self.beta_1
        square, new = mean * mean, np.float32(1 - self.beta_2)
        self.steps += 1
        self.first = np.float32(beta_1) * first + np.float32(1 - beta_1) * mean
        if self.kind == "adagrad":
            self.second = second + square
        elif self.kind == "adam":
            self.second = np.float32(self.beta_2) * second + new * square
        else:
            self.second = second - new * square * np.sign(second - square, dtype=np.float32)
        lr = self.lr
        if self.kind == "adam":
            after = self.steps + 1
            lr *= math.sqrt(1 - self.beta_2**after) / (1 - self.beta_1**after)
        scale: F32 = np.sqrt(self.second) + np.float32(self.tau)
        return self.first * np.float32(lr) / scale

    def tensors(self) -> dict[str, Array]:
        """What a checkpoint needs."""
        if self.first is None or self.second is None:
            return {}
        return {"first": self.first, "second": self.second, "steps": np.array([self.steps])}

    def restore(self, tensors: Mapping[str, Array]) -> None:
        """Go on from the ``tensors`` of a checkpoint."""
        if "first" not in tensors:
            self.first, self.second, self.steps = None, None, 0
            return
        self.first, self.second = tensors["first"].copy(), tensors["second"].copy()
        self.steps = int(tensors["steps"][0])
