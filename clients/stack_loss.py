"""Losses of a stack's clients and their slopes, over several steps whose targets are known.

What can be made for all steps at once is made before the first or after the last of them. Sizes:
t steps, c clients, b rows of a batch, k outputs. ``weights`` [t, c, b, 1] are the shares of the
rows in their client's mean loss; ``shares``, of the same shape, those in the slope, which may have
the learning rate in them.
"""

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class StackLoss(Protocol):
    """One loss over some steps."""

    def __init__(self, targets: Tensor, weights: Tensor, shares: Tensor, outputs: int) -> None:
        """``targets`` [t, c, b, ...] as the loss takes them, of ``outputs`` = k values."""
        ...

    def slope(self, t: int, z: Tensor) -> Tensor:
        """The slope [c, b, k] at outputs ``z`` [c, b, k] of step ``t``, times its shares."""
        ...

    def means(self) -> NDArray[Any]:
        """Each client's loss in each step, [t, c], when all slopes have been asked for."""
        ...


class CrossEntropy:
    """Cross-entropy of logits and classes int64 [t, c, b]."""

    def __init__(self, targets: Tensor, weights: Tensor, shares: Tensor, outputs: int) -> None:
        self._classes, self._weights, self._shares = targets.unsqueeze(3), weights, shares
        shape = (*targets.shape, outputs)
        self._right = torch.zeros(shape).scatter_(3, self._classes, shares)
        self._log_p = torch.empty(shape)

    def slope(self, t: int, z: Tensor) -> Tensor:
        """Softmax minus one at the right class."""
        log_p = torch.log_softmax(z, 2, out=self._log_p[t])
        return log_p.exp().mul_(self._shares[t]).sub_(self._right[t])

    def means(self) -> NDArray[Any]:
        """Minus the mean logarithm of the right class's probability."""
        return -_sums(self._log_p.gather(3, self._classes) * self._weights)


class Squares:
    """Mean squared error over targets float32 [t, c, b, k]."""

    def __init__(self, targets: Tensor, weights: Tensor, shares: Tensor, outputs: int) -> None:
        self._targets, self._weights = targets, weights
        self._shares, self._outputs = shares * (2 / outputs), outputs
        self._errors = torch.empty(targets.shape)

    def slope(self, t: int, z: Tensor) -> Tensor:
        """Twice the error over k."""
        errors = torch.sub(z, self._targets[t], out=self._errors[t])
        return errors * self._shares[t]

    def means(self) -> NDArray[Any]:
        """The mean square."""
        return _sums(self._errors.square_() * self._weights) / self._outputs


def _sums(values: Tensor) -> NDArray[Any]:
    """Over all but the first two axes.

    By numpy, which adds a row up in the same order however many there are.
    """
    rows = values.numpy().reshape(*values.shape[:2], -1)
    with np.errstate(invalid="ignore", over="ignore"):
        sums: NDArray[Any] = np.add.reduce(rows, axis=2)
    return sums
