"""Cross-entropy and accuracy, for every task whose targets are classes."""

import torch
from torch import Tensor, nn
from torch.nn import functional


def mean_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Mean cross-entropy; logits [..., classes] against classes int64 [...]."""
    logits = model(x)
    return functional.cross_entropy(logits.flatten(0, -2), y.flatten())


def sums(model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float, int]:
    """Sum of cross-entropies, number of right predictions, number of predictions."""
    logits, targets = model(x).flatten(0, -2), y.flatten()
    loss = functional.cross_entropy(logits.double(), targets, reduction="sum")
    right = torch.count_nonzero(logits.argmax(1) == targets)
    return loss.item(), float(right.item()), targets.numel()
