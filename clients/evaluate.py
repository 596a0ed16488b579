"""Loss and metric of a model on a set of examples."""

import torch
from torch import Tensor, nn

from clients.tasks._base import Task

# Activations of more pictures than this fall out of the CPU's cache: 500 take twice as long.
_BATCH = 100


@torch.no_grad()
def evaluate(model: nn.Module, task: Task, x: Tensor, y: Tensor) -> tuple[float, float, int]:
    """Mean loss, mean metric and number of predictions; zeros when there is nothing to predict.

    All on one device, in evaluation mode, in fixed batches, so that equal weights give equal
    results for an equal number of threads.
    """
    model.eval()
    loss_sum, metric_sum, count = 0.0, 0.0, 0
    for start in range(0, len(x), _BATCH):
        end = start + _BATCH
        loss, metric, n = task.evaluate(model, x[start:end], y[start:end])
        # float() and int(), because a user's task may well return tensors.
        loss_sum += float(loss)
        metric_sum += float(metric)
        count += int(n)
    return (loss_sum / count, metric_sum / count, count) if count else (0.0, 0.0, 0)
