"""Local steps of several clients at once: one batched matrix product a layer instead of one each.

For chains of linear layers, with the backward pass written out. Sizes: c clients, t steps, b rows
of a batch. The products of one client do not depend on the others' in the stack, nor on their
number; ``clients.stack`` checks that on the machine before it is relied upon.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from clients.chain import Activation, Chain, Dense
from clients.weights import Layout
from fedsys.clock import WallClock
from fedsys.config.schema import Training
from fedsys.types import F32, I64

Loss = Literal["cross-entropy", "mse"]


@dataclass(frozen=True, slots=True)
class Member:
    """One client of a stack."""

    start: F32
    """The received weights, float32 [n]."""
    examples: int
    """How many the client has."""
    steps: Sequence[I64]
    """For each local step, the rows of the source that make its batch."""
    lr: float
    proximal_mu: float
    out: F32
    """Where the trained weights go, float32 [n]."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one client, besides its weights."""

    losses: list[float]
    """Mean loss of each step's batch, before its update."""
    is_finite: bool
    """Whether all weights are; False where they only might not be."""
    gather_s: float
    """Its share of the seconds in which examples were picked out."""


@torch.no_grad()
def train_stack(
    chain: Chain,
    loss: Loss,
    layout: Layout,
    source: tuple[Tensor, Tensor],
    members: Sequence[Member],
    rows: int,
    training: Training,
) -> list[Outcome]:
    """Train all ``members``; what became of each, in order.

    ``source`` holds first-layer inputs float32 [n, in] and targets [n, ...]. Batches are filled up
    to ``rows`` with examples of weight 0, so that a client's numbers depend on its own batches
    alone.
    """
    order = sorted(range(len(members)), key=lambda k: -len(members[k].steps))
    sorted_members = [members[k] for k in order]
    stack = _Stack(chain, loss, layout, sorted_members, rows, training)
    losses, finite = stack.run(*source)
    each_s = stack.gather_s / sum(len(m.steps) for m in members)
    outcomes = {
        k: Outcome(values[: len(m.steps)], is_finite, each_s * len(m.steps))
        for k, m, values, is_finite in zip(order, sorted_members, losses, finite, strict=True)
    }
    return [outcomes[k] for k in range(len(members))]


class _Stack:
    """The weights of c clients, those with the most steps first, and what moves them."""

    def __init__(
        self,
        chain: Chain,
        loss: Loss,
        layout: Layout,
        members: Sequence[Member],
        rows: int,
        training: Training,
    ) -> None:
        self._layers, self._loss, self._layout = chain.layers, loss, layout
        self._members = members
        self._params = _stacked_params(chain, layout, members)
        self._index, self._share = _batches(members, rows)
        self._counts = [sum(len(m.steps) > t for m in members) for t in range(len(self._index))]
        self._lr = torch.tensor([m.lr for m in members])[:, None, None]
        self._move = _Rule(self._params, members, training)
        self.gather_s = 0.0

    def run(self, x: Tensor, y: Tensor) -> tuple[list[list[float]], list[bool]]:
        """Take all steps and hand the weights out; losses [c][t], and who has finite weights."""
        steps, clients, rows = self._index.shape
        shares = self._share if self._move.needs_gradient else self._share * self._lr
        losses, clock = torch.zeros(steps, clients), WallClock()
        for t, active in enumerate(self._counts):
            params = {name: p[:active] for name, p in self._params.items()}
            start_s = clock.now_s()
            index = self._index[t, :active].reshape(-1)
            inputs = torch.index_select(x, 0, index).view(active, rows, -1)
            targets = torch.index_select(y, 0, index).view(active, rows, *y.shape[1:])
            self.gather_s += clock.now_s() - start_s
            signals = self._forward(inputs, params)
            losses[t, :active], slope = _loss_and_slope(
                self._loss, signals[-1], targets, self._share[t, :active], shares[t, :active]
            )
            self._backward(signals, slope, params)
            self._move.end_of_step(active)
        # A sum is not finite where a value is not, and costs a tenth of looking at each.
        sums = functools.reduce(torch.add, (p.sum((1, 2)) for p in self._params.values()))
        for place, member in enumerate(self._members):
            for name, part in self._layout.parts(member.out).items():
                part[...] = self._params[name][place].numpy().reshape(part.shape)
        return losses.T.tolist(), sums.isfinite().tolist()

    def _forward(self, inputs: Tensor, params: dict[str, Tensor]) -> list[Tensor]:
        """Input of each layer, and the output of the last; [c, b, width]."""
        signals = [inputs]
        for layer in self._layers:
            weight = params[layer.weight].transpose(1, 2)
            if layer.bias is None:
                z = torch.bmm(signals[-1], weight)
            else:
                z = torch.baddbmm(params[layer.bias], signals[-1], weight)
            signals.append(_activate(layer.activation, z))
        return signals

    def _backward(self, signals: list[Tensor], slope: Tensor, params: dict[str, Tensor]) -> None:
        """Hand each layer's gradient on; ``slope`` is the loss's with respect to the output."""
        for depth in reversed(range(len(self._layers))):
            layer = self._layers[depth]
            slope = _through(layer.activation, signals[depth + 1], slope)
            below = torch.bmm(slope, params[layer.weight]) if depth else slope
            self._move.layer(layer, params, signals[depth], slope)
            slope = below


class _Rule:
    """What a gradient does to the weights, as ``clients.train`` does it for one client."""

    def __init__(
        self, params: dict[str, Tensor], members: Sequence[Member], training: Training
    ) -> None:
        self._params, self._training = params, training
        self._lr = torch.tensor([m.lr for m in members])[:, None, None]
        self._mu = torch.tensor([m.proximal_mu for m in members])[:, None, None]
        self._is_proximal = any(m.proximal_mu for m in members)
        self._received: dict[str, Tensor] = {}
        if self._is_proximal:
            self._received = {name: p.clone() for name, p in params.items()}
        self.needs_gradient = bool(
            self._is_proximal
            or training.clip_norm is not None
            or training.weight_decay
            or training.momentum
        )
        """False where a step adds a multiple of the gradient and nothing else. The slopes are
        then multiplied by the learning rate, and a product is added to the weights as it is made.
        """
        self._gradients: dict[str, Tensor] = {}
        self._velocity: dict[str, Tensor] = {}

    def layer(self, layer: Dense, params: dict[str, Tensor], inputs: Tensor, slope: Tensor) -> None:
        """Take the gradient of one layer: ``slope`` [c, b, out] at its output."""
        bias = slope.sum(1, keepdim=True) if layer.bias is not None else None
        if not self.needs_gradient:
            params[layer.weight].baddbmm_(slope.transpose(1, 2), inputs, alpha=-1)
            if layer.bias is not None and bias is not None:
                params[layer.bias].sub_(bias)
            return
        self._gradients[layer.weight] = torch.bmm(slope.transpose(1, 2), inputs)
        if layer.bias is not None and bias is not None:
            self._gradients[layer.bias] = bias

    def end_of_step(self, active: int) -> None:
        """Move the first ``active`` clients by the gradients of this step."""
        if not self.needs_gradient:
            return
        gradients = self._gradients
        if self._is_proximal:
            for name, g in gradients.items():
                away = self._params[name][:active] - self._received[name][:active]
                g.addcmul_(away, self._mu[:active])
        if self._training.clip_norm is not None:
            _clip(list(gradients.values()), self._training.clip_norm)
        for name, g in gradients.items():
            weights, direction = self._params[name][:active], g
            if self._training.weight_decay:
                g.add_(weights, alpha=self._training.weight_decay)
            if self._training.momentum:
                if name not in self._velocity:
                    self._velocity[name] = torch.zeros_like(self._params[name])
                direction = self._velocity[name][:active]
                direction.mul_(self._training.momentum).add_(g)
            weights.addcmul_(direction, self._lr[:active], value=-1)


def _stacked_params(chain: Chain, layout: Layout, members: Sequence[Member]) -> dict[str, Tensor]:
    """Weights float32 [c, out, in] and biases [c, 1, out], filled with what clients received."""
    params: dict[str, Tensor] = {}
    for layer in chain.layers:
        params[layer.weight] = torch.empty(len(members), *layout.shapes[layer.weight])
        if layer.bias is not None:
            params[layer.bias] = torch.empty(len(members), 1, *layout.shapes[layer.bias])
    same = all(member.start is members[0].start for member in members)
    starts = members[0].start[None] if same else np.stack([m.start for m in members])
    for name, part in layout.parts(starts).items():
        stacked = params[name].numpy()
        stacked[...] = part.reshape(len(starts), *stacked.shape[1:])
    return params


def _batches(members: Sequence[Member], rows: int) -> tuple[Tensor, Tensor]:
    """Rows of the source int64 [t, c, b], and each one's share in its batch's mean [t, c, b, 1]."""
    steps = max(len(m.steps) for m in members)
    index = np.zeros((steps, len(members), rows), np.int64)
    share = np.zeros((steps, len(members), rows, 1), np.float32)
    for k, member in enumerate(members):
        # Filling examples are the client's own: 0 times an infinite one of another would be NaN.
        index[:, k] = member.steps[0][0]
        for t, batch in enumerate(member.steps):
            index[t, k, : len(batch)] = batch
            share[t, k, : len(batch)] = 1 / len(batch)
    return torch.from_numpy(index), torch.from_numpy(share)


def _loss_and_slope(
    loss: Loss, z: Tensor, targets: Tensor, weights: Tensor, shares: Tensor
) -> tuple[Tensor, Tensor]:
    """Loss of each client [c], weighted by ``weights`` [c, b, 1]; its slope times ``shares``."""
    if loss == "mse":
        error = z - targets
        total = (error.square() * weights).sum((1, 2)) / z.shape[2]
        return total, error.mul_(shares).mul_(2 / z.shape[2])
    classes = targets.unsqueeze(2)
    log_p = torch.log_softmax(z, 2)
    total = -(log_p.gather(2, classes) * weights).sum((1, 2))
    slope = log_p.exp_()
    slope.scatter_add_(2, classes, slope.new_full((1, 1, 1), -1).expand(classes.shape))
    return total, slope.mul_(shares)


def _activate(activation: Activation, z: Tensor) -> Tensor:
    if activation == "relu":
        return z.relu_()
    if activation == "tanh":
        return z.tanh_()
    return z.sigmoid_() if activation == "sigmoid" else z


def _through(activation: Activation, output: Tensor, slope: Tensor) -> Tensor:
    """The slope before an activation whose output and slope after it are given."""
    if activation == "relu":
        return slope.mul_(output > 0)
    if activation == "tanh":
        return slope.mul_(1 - output * output)
    return slope.mul_(output * (1 - output)) if activation == "sigmoid" else slope


def _clip(gradients: Sequence[Tensor], max_norm: float) -> None:
    """Scale each client's gradient to at most ``max_norm``, as torch's clip_grad_norm_ does."""
    squares = [torch.linalg.vector_norm(g, dim=(1, 2)).square() for g in gradients]
    # Added one by one, because a sum along an axis goes another way for a stack of one.
    total = functools.reduce(torch.add, squares).sqrt()
    factor = (max_norm / (total + 1e-6)).clamp(max=1)[:, None, None]
    for g in gradients:
        g.mul_(factor)
