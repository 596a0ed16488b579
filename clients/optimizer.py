"""How a local step moves the weights. State starts afresh in every round: a client that was away
would otherwise follow a momentum that belongs to a model the others have left behind.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from fedsys.config.schema import Training


class Optimizer(Protocol):
    """What the training loop, and torch's gradient scaler, need of an optimizer."""

    param_groups: list[dict[str, Any]]

    def step(self) -> object:
        """Move the parameters against their gradients."""
        ...


class Sgd:
    """``w -= lr * (momentum * v + g + weight_decay * w)``, as torch.optim.SGD computes it.

    A few fused calls over all tensors. torch.optim costs more per step than the arithmetic of a
    small model, and its import half a second.
    """

    def __init__(
        self, params: Sequence[Tensor], lr: float, momentum: float, weight_decay: float
    ) -> None:
        self.param_groups: list[dict[str, Any]] = [{"params": list(params)}]
        self.lr = lr
        self.momentum = momentum
        self.weight_decay = weight_decay
        self._velocity: dict[Tensor, Tensor] = {}

    @torch.no_grad()
    def step(self) -> None:
        """Move every parameter that has a gradient; gradients are used up."""
        moved = [p for p in self.param_groups[0]["params"] if p.grad is not None]
        if not moved:
            return
        directions = [p.grad for p in moved]
        if self.weight_decay:
            torch._foreach_add_(directions, moved, alpha=self.weight_decay)
        if self.momentum:
            for p in moved:
                if p not in self._velocity:
                    self._velocity[p] = torch.zeros_like(p)
            velocity = [self._velocity[p] for p in moved]
            torch._foreach_mul_(velocity, self.momentum)
            torch._foreach_add_(velocity, directions)
            directions = velocity
        torch._foreach_add_(moved, directions, alpha=-self.lr)


def make_optimizer(params: Sequence[Tensor], training: Training, lr: float) -> Optimizer:
    """The optimizer of ``[training]`` over ``params``, without memory of earlier rounds."""
    if training.optimizer == "sgd":
        return Sgd(params, lr, training.momentum, training.weight_decay)
    # Imported only where it is used: it pulls in a good part of torch.
    from torch.optim import AdamW

    return AdamW(params, lr=lr, weight_decay=training.weight_decay)
