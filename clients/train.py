"""Local training: a number of steps from the received weights on one client's examples."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from clients.data.loader import Step
from clients.device import autocast
from clients.optimizer import make_optimizer
from clients.tasks._base import Task
from clients.weights import Array
from fedsys.clock import WallClock
from fedsys.config.schema import Training
from fedsys.errors import FedsysError

# Torch's default of 2^16 overflows in the first steps, and a round may have only a few of them.
_FIRST_LOSS_SCALE = 2.0**12

_BLOCK_EXAMPLES = 1024
"""Gathered at once, about: few enough to stay in the cache until their step comes."""


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
    gather_s: float = field(default=0.0, compare=False)
    """Seconds in which examples were picked out and prepared."""


def train(
    model: nn.Module,
    task: Task,
    x: Tensor,
    y: Tensor,
    steps: Iterable[Step],
    training: Training,
    lr: float,
    augment: Callable[[Tensor], Tensor] | None = None,
) -> TrainResult:
    """Train ``model`` in place, one optimizer step per element of ``steps``.

    ``model``, ``x`` and ``y`` are on the same device, which may be a GPU. The gradient of a step
    is that of the mean loss over all its batches, plus ``proximal_mu * (w - w_received)``; then it
    is clipped; weight decay comes last. With fp16, a step whose gradient overflows moves nothing.
    ``augment`` changes the inputs of a batch. Raises Diverged when a loss is not finite;
    ``clients.cohort`` looks at the weights.
    """
    model.train()
    params = [p for p in model.parameters() if p.requires_grad]
    received = [p.detach().clone() for p in params] if training.proximal_mu else []
    optimizer = make_optimizer(params, training, lr)
    precision = autocast(training.precision, x.device)
    scaler = _scaler(x.device) if training.precision == "fp16" else None
    losses: list[Tensor] = []
    samples = 0
    gathered = _Gathered(x, y, steps)
    for batches in gathered:
        examples = sum(len(targets) for _, targets in batches)
        is_whole = len(batches) == 1 and scaler is None
        for p in params if not is_whole else ():
            p.grad = None
        parts = []
        for inputs, targets in batches:
            with precision:
                seen = inputs if augment is None else augment(inputs)
                loss = task.loss(model, seen, targets)
                if len(batches) > 1:
                    loss = loss * (len(targets) / examples)
            parts.append(loss.detach())
            if is_whole:
                _set_gradients(params, loss)
                continue
            scaled = loss if scaler is None else scaler.scale(loss)
            scaled.backward()  # type: ignore[no-untyped-call]
        losses.append(parts[0] if len(parts) == 1 else torch.stack(parts).sum())
        samples += examples
        if scaler is not None:
            scaler.unscale_(optimizer)  # type: ignore[arg-type]
        if received or training.clip_norm is not None:
            _regularize(params, received, training)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)  # type: ignore[arg-type]
            scaler.update()
    # Looked at once at the end: a look at every step would make a GPU wait for the CPU.
    return result_of(torch.stack(losses).tolist(), samples, gathered.seconds)


def _set_gradients(params: Sequence[Tensor], loss: Tensor) -> None:
    """As ``loss.backward()`` would, in less time, where nothing is to be added up."""
    for p, gradient in zip(
        params, torch.autograd.grad(loss, params, allow_unused=True), strict=True
    ):
        p.grad = gradient


def _scaler(device: torch.device) -> torch.amp.GradScaler:
    return torch.amp.GradScaler(device.type, init_scale=_FIRST_LOSS_SCALE)


class _Gathered:
    """Inputs and targets of each step's batches.

    The examples of many steps are gathered at once and sliced, which costs less than indexing at
    every step.
    """

    def __init__(self, x: Tensor, y: Tensor, steps: Iterable[Step]) -> None:
        self._x, self._y, self._steps = x, y, steps
        self.seconds = 0.0

    def __iter__(self) -> Iterator[list[tuple[Tensor, Tensor]]]:
        clock = WallClock()
        for block in _blocks(self._steps):
            start_s = clock.now_s()
            order = np.concatenate([batch for step in block for batch in step])
            index = torch.from_numpy(order).to(self._x.device)
            # Less than half the time of x[index].
            inputs, targets = (torch.index_select(of, 0, index) for of in (self._x, self._y))
            end = 0
            self.seconds += clock.now_s() - start_s
            for step in block:
                batches = []
                for batch in step:
                    start, end = end, end + len(batch)
                    batches.append((inputs[start:end], targets[start:end]))
                yield batches


def _blocks(steps: Iterable[Step]) -> Iterator[list[Step]]:
    block: list[Step] = []
    left = _BLOCK_EXAMPLES
    for step in steps:
        block.append(step)
        left -= sum(map(len, step))
        if left <= 0:
            yield block
            block, left = [], _BLOCK_EXAMPLES
    if block:
        yield block


@torch.no_grad()
def _regularize(params: Sequence[Tensor], received: Sequence[Tensor], training: Training) -> None:
    """Add the proximal term to the gradients (FedProx, Li et al. 2020), then clip their norm."""
    if received:
        for p, start in zip(params, received, strict=True):
            if p.grad is not None:
                p.grad.add_(p - start, alpha=training.proximal_mu)
    if training.clip_norm is not None:
        nn.utils.clip_grad_norm_(params, training.clip_norm)


def result_of(losses: list[float], samples: int, gather_s: float) -> TrainResult:
    """The result of steps with these losses; Diverged when one is not finite."""
    for step, value in enumerate(losses, start=1):
        if not math.isfinite(value):
            raise Diverged(f"local step {step} of {len(losses)}: the training loss is {value}")
    return TrainResult(len(losses), samples, sum(losses) / len(losses), losses[0], gather_s)


def check_finite(arrays: Mapping[str, Array], steps: int) -> None:
    """Diverged, naming the first of the weights after so many steps that is not finite."""
    for name, values in arrays.items():
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise Diverged(f"after local step {steps}: '{name}' is not finite")
