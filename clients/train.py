"""Local training: a number of steps from the received weights on one client's examples."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from clients.data.loader import Step
from clients.device import autocast
from clients.optimizer import make_optimizer
from clients.tasks._base import Task
from fedsys.config.schema import Training
from fedsys.errors import FedsysError

# Torch's default of 2^16 overflows in the first steps, and a round may have only a few of them.
_FIRST_LOSS_SCALE = 2.0**12


class Diverged(FedsysError):
    """Training gave a loss or a weight that is not a finite number; the result is of no use."""


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What the training did; the trained weights are in the model."""

    local_steps: int
    samples: int
    """Examples processed, repetitions counted."""
    train_loss: float
    """Mean over the local steps, each at the weights before its update."""
    first_loss: float
    """Of the first step: the loss of the received weights."""


def train(
    model: nn.Module,
    task: Task,
    x: Tensor,
    y: Tensor,
    steps: Iterable[Step],
    training: Training,
    lr: float,
) -> TrainResult:
    """Train ``model`` in place, one optimizer step per element of ``steps``.

    ``model``, ``x`` and ``y`` are on the same device, which may be a GPU. The gradient of a step
    is that of the mean loss over all its batches, plus ``proximal_mu * (w - w_received)``; then it
    is clipped; weight decay comes last. With fp16, a step whose gradient overflows moves nothing.
    Raises Diverged when a loss or a weight is not finite.
    """
    model.train()
    params = [p for p in model.parameters() if p.requires_grad]
    received = [p.detach().clone() for p in params] if training.proximal_mu else []
    optimizer = make_optimizer(params, training, lr)
    precision = autocast(training.precision, x.device)
    scaler = torch.amp.GradScaler(
        x.device.type, init_scale=_FIRST_LOSS_SCALE, enabled=training.precision == "fp16"
    )
    losses: list[Tensor] = []
    samples = 0
    for batches in steps:
        examples = sum(map(len, batches))
        for p in params:
            p.grad = None
        mean = torch.zeros((), device=x.device)
        for batch in batches:
            index = torch.from_numpy(batch).to(x.device)
            with precision:
                loss = task.loss(model, x[index], y[index]) * (len(batch) / examples)
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            mean += loss.detach()
        losses.append(mean)
        samples += examples
        scaler.unscale_(optimizer)  # type: ignore[arg-type]
        _regularize(params, received, training)
        scaler.step(optimizer)  # type: ignore[arg-type]
        scaler.update()
    return _checked(model, losses, samples)


@torch.no_grad()
def _regularize(params: Sequence[Tensor], received: Sequence[Tensor], training: Training) -> None:
    """Add the proximal term to the gradients (FedProx, Li et al. 2020), then clip their norm."""
    if received:
        for p, start in zip(params, received, strict=True):
            if p.grad is not None:
                p.grad.add_(p - start, alpha=training.proximal_mu)
    if training.clip_norm is not None:
        nn.utils.clip_grad_norm_(params, training.clip_norm)


def _checked(model: nn.Module, losses: list[Tensor], samples: int) -> TrainResult:
    # Looked at once at the end: a look at every step would make a GPU wait for the CPU.
    values = torch.stack(losses).tolist()
    for step, value in enumerate(values, start=1):
        if not math.isfinite(value):
            raise Diverged(f"local step {step} of {len(values)}: the training loss is {value}")
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise Diverged(f"after local step {len(values)}: '{name}' is not finite")
    return TrainResult(len(values), samples, sum(values) / len(values), values[0])
