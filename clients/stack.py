"""Whether an experiment's clients can be trained as one stack, found out by trying.

The rule looks at the model, the loss and the machine alone, never at a clock or at who is to be
trained, so every process of a run decides alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np
import torch
from torch import Tensor, nn

from clients.chain import Chain, chain_of
from clients.stacked import Loss, Member, Outcome, train_stack
from clients.tasks._base import Examples, Task
from clients.weights import Exchange, Layout, Weights
from fedsys.config.schema import Training
from fedsys.rng import rng_for
from fedsys.types import F32, I64

_CHUNK_BYTES = 1 << 21
"""Weights of the clients trained at once: what a core's own cache holds."""
_MIN_CHUNK, _MAX_CHUNK = 4, 32

_TRIAL_SIZES = (33, 17, 2)
_TOLERANCE = 1e-4
_PLAIN = Training()


@dataclass(frozen=True, slots=True)
class Stack:
    """How to train several clients of one experiment at once."""

    chain: Chain
    loss: Loss
    layout: Layout
    examples: Examples
    direct: Tensor | None
    """All examples as the first layer takes them, where that costs no memory."""

    @property
    def chunk(self) -> int:
        """Clients to train at once, at most."""
        return min(max(_CHUNK_BYTES // (4 * self.layout.n), _MIN_CHUNK), _MAX_CHUNK)

    def train(self, members: Sequence[Member], rows: int, training: Training) -> list[Outcome]:
        """Train members in batches of ``rows`` rows; what became of each, in order."""
        chain, x = self.chain, self.examples.x
        if self.direct is not None:
            chain, x = replace(chain, prepare=_as_it_is), self.direct
        source = (x, self.examples.y)
        return train_stack(chain, self.loss, self.layout, source, members, rows, training)


def _as_it_is(examples: Tensor) -> Tensor:
    return examples


def rows_for(batch: int, full: int) -> int:
    """Rows of every batch of a client whose largest one has ``batch`` of ``full`` examples.

    A power of two where a client has less than a full batch, so that such clients fit into few
    stacks; never fewer than 2, for which products go another way.
    """
    if batch >= full:
        return max(batch, 2)
    return max(2, min(full, 1 << (batch - 1).bit_length()))


def stack_for(
    model: nn.Module, task: Task, examples: Examples, weights: Exchange, training: Training
) -> Stack | None:
    """The stack of an experiment; None where its clients are to be trained one by one.

    None for other models than chains of linear layers, losses other than mean cross-entropy and
    mean squared error, and where a trial shows numbers other than autograd's, or that a client's
    depend on its neighbours.
    """
    changes_inputs = training.augment and hasattr(task, "augment")
    if training.stacked == "off" or changes_inputs:
        return None
    if training.optimizer != "sgd" or training.precision != "fp32":
        return None
    chain = chain_of(model)
    if chain is None:
        return None
    direct, layout = _direct(chain, examples), weights.layout
    initial, was_training = weights.save(), model.training
    model.train()
    try:
        for loss in get_args(Loss):
            stack = Stack(chain, loss, layout, examples, direct)
            if _fits(loss, layout, chain, examples) and _agrees(
                stack, model, task, weights, training
            ):
                return stack
    except Exception:  # a user's loss may refuse what the trial gives it
        return None
    finally:
        model.train(was_training)
        weights.load(initial)
    return None


def _fits(loss: Loss, layout: Layout, chain: Chain, examples: Examples) -> bool:
    """Whether the targets are of the kind that ``loss`` takes, all of them."""
    outputs, y = layout.shapes[chain.layers[-1].weight][0], examples.y
    if loss == "mse":
        return y.dtype == torch.float32 and y.shape[1:] == (outputs,)
    in_range = y.dtype == torch.int64 and y.ndim == 1
    return in_range and bool((y >= 0).all() and (y < outputs).all())


@torch.no_grad()
def _direct(chain: Chain, examples: Examples) -> Tensor | None:
    """All examples as first-layer inputs, if these are the same memory in another shape."""
    few = examples.x[:2].clone()
    prepared = chain.prepare(few)
    same = prepared.dtype == few.dtype and prepared.data_ptr() == few.data_ptr()
    if not same or prepared.numel() != few.numel() or not examples.x.is_contiguous():
        return None
    return examples.x.view(len(examples), -1)


def _agrees(
    stack: Stack, model: nn.Module, task: Task, weights: Exchange, training: Training
) -> bool:
    """Whether one step from random weights is autograd's, and a client's the same when alone."""
    rng = rng_for(0, "stack trial")
    drawn = rng.permutation(len(stack.examples))
    batches = [b for b in np.split(drawn, np.cumsum(_TRIAL_SIZES))[:-1] if len(b) > 1]
    if not batches:
        return False
    initial = weights.save().flat
    members, gradients, losses = [], [], []
    for batch in batches:
        start = initial + 0.05 * rng.standard_normal(initial.size, np.float32)
        weights.load(Weights(start))
        loss, gradient = _autograd(stack, model, task, batch)
        lr = 0.1 * float(np.linalg.norm(start)) / (float(np.linalg.norm(gradient)) or 1.0)
        members.append(Member(start, len(batch), batch, [len(batch)], lr, 0.0))
        gradients.append(gradient)
        losses.append(loss)
    found = stack.train(members, max(_TRIAL_SIZES), _PLAIN)
    as_autograd = all(
        abs(outcome.losses[0] - loss) <= _TOLERANCE * abs(loss)
        and _close(stack.layout, m.start - outcome.weights, np.float32(m.lr) * gradient, m.start)
        for outcome, m, gradient, loss in zip(found, members, gradients, losses, strict=True)
    )
    return as_autograd and _same_alone(stack, members, training)


def _same_alone(stack: Stack, members: Sequence[Member], training: Training) -> bool:
    """Whether members get the same bits in a stack of one as beside the others."""
    rows = max(2, training.batch_size * training.accumulation_steps)
    longer = [
        replace(
            m,
            order=np.tile(m.order[:rows], count),
            sizes=[len(m.order[:rows])] * count,
            proximal_mu=training.proximal_mu,
        )
        for count, m in enumerate(members, start=1)
    ]
    together = stack.train(longer, rows, training)
    alone = [stack.train([m], rows, training)[0] for m in longer]
    return all(
        np.array_equal(a.weights, t.weights, equal_nan=True) and a.losses == t.losses
        for a, t in zip(alone, together, strict=True)
    )


def _autograd(stack: Stack, model: nn.Module, task: Task, batch: I64) -> tuple[float, F32]:
    """The task's loss on one batch and its gradient, float32 [n]."""
    index = torch.from_numpy(batch)
    loss = task.loss(model, stack.examples.x[index], stack.examples.y[index])
    params = dict(model.named_parameters())
    gradients = torch.autograd.grad(loss, list(params.values()))
    flat = np.empty(stack.layout.n, np.float32)
    parts = stack.layout.parts(flat)
    for name, gradient in zip(params, gradients, strict=True):
        parts[name][...] = gradient.numpy()
    return loss.item(), flat


def _close(layout: Layout, step: F32, expected: F32, start: F32) -> bool:
    """Whether each tensor moved as expected, as far as float32 can tell."""
    parts = (layout.parts(v).values() for v in (step, expected, start))
    rounding = 4 * float(np.finfo(np.float32).eps)
    return all(
        bool(np.abs(s - e).max() <= _TOLERANCE * np.abs(e).max() + rounding * np.abs(w).max())
        for s, e, w in zip(*parts, strict=True)
    )
