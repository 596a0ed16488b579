"""Local steps of several clients at once: one batched matrix product a layer instead of one each.

For chains of linear layers, with the backward pass written out. Sizes: c clients, t steps, b rows
of a batch. The products of one client do not depend on the others' in the stack, nor on their
number; ``clients.stack`` checks that on the machine before it is relied upon.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from clients.chain import Activation, Chain, Dense
from clients.stack_loss import CrossEntropy, Squares, StackLoss
from clients.weights import Layout
from fedsys.clock import WallClock
from fedsys.config.schema import Training
from fedsys.types import F32, I64

Loss = Literal["cross-entropy", "mse"]

_LOSSES: dict[Loss, type[StackLoss]] = {"cross-entropy": CrossEntropy, "mse": Squares}
_GATHERED_BYTES = 1 << 20
"""Inputs of several steps picked out at once, about: few enough to stay in the cache."""


@dataclass(frozen=True, slots=True)
class Member:
    """One client of a stack."""

    start: F32
    """The received weights, float32 [n]."""
    examples: int
    """How many the client has."""
    order: I64
    """Numbers of the examples of all local steps, end to end."""
    sizes: Sequence[int]
    """Examples of each step's batch."""
    lr: float
    proximal_mu: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one client."""

    weights: F32
    """The trained ones, float32 [n]."""
    losses: list[float]
    """Mean loss of each step's batch, before its update."""
    is_finite: bool
    """Whether all weights are; False where they only might not be."""
    gather_s: float
    """Its share of the seconds in which examples were picked out and prepared."""


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

    ``source`` holds examples as the chain takes them [n, ...] and targets [n, ...]. Batches are
    filled up to ``rows`` with examples of weight 0, so that a client's numbers depend on its own
    batches alone.
    """
    order = sorted(range(len(members)), key=lambda k: -len(members[k].sizes))
    sorted_members = [members[k] for k in order]
    stack = _Stack(chain, loss, layout, sorted_members, rows, training)
    losses, finite = stack.run(*source)
    each_s = stack.gather_s / sum(len(m.sizes) for m in members)
    outcomes = {
        k: Outcome(weights, values[: len(m.sizes)], is_finite, each_s * len(m.sizes))
        for k, m, weights, values, is_finite in zip(
            order, sorted_members, stack.weights, losses, finite, strict=True
        )
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
        self._chain, self._loss = chain, _LOSSES[loss]
        self._outputs = layout.shapes[chain.layers[-1].weight][0]
        self._params, self._places = _stacked_params(chain, layout, members), layout.places
        self.weights: F32 = np.empty((len(members), layout.n), np.float32)
        self._index, self._share = _batches(members, rows)
        self._counts = [sum(len(m.sizes) > t for m in members) for t in range(len(self._index))]
        self._lr = torch.tensor([m.lr for m in members])[:, None, None]
        self._move = _Rule(self._params, members, training)
        self.gather_s = 0.0

    def run(self, x: Tensor, y: Tensor) -> tuple[list[list[float]], list[bool]]:
        """Take all steps to ``weights``; losses [c][t], and who has finite weights."""
        steps, clients, rows = self._index.shape
        shares = self._share if self._move.needs_gradient else self._share * self._lr
        losses = np.zeros((steps, clients), np.float32)
        width = self._params[self._chain.layers[0].weight].shape[2]
        for run in _runs(self._counts, 4 * rows * width):
            active = self._counts[run.start]
            params = {name: p[:active] for name, p in self._params.items()}
            inputs, targets = self._gathered(x, y, run, active)
            loss = self._loss(
                targets, self._share[run, :active], shares[run, :active], self._outputs
            )
            for t, batch in enumerate(inputs):
                signals = self._forward(batch, params)
                self._backward(signals, loss.slope(t, signals[-1]), params)
                self._move.end_of_step(active)
            losses[run, :active] = loss.means()
        sums = torch.zeros(clients)
        for name, trained in self._params.items():
            flat = trained.view(clients, -1)
            # A sum is not finite where a value is not, and costs a tenth of looking at each.
            sums.add_(flat.sum(1))
            self.weights[:, self._places[name][0]] = flat.numpy()
        return losses.T.tolist(), sums.isfinite().tolist()

    def _gathered(
        self, x: Tensor, y: Tensor, run: slice, active: int
    ) -> tuple[tuple[Tensor, ...], Tensor]:
        """First-layer inputs of each step of ``run``, [c, b, in], and targets [t, c, b, ...]."""
        clock = WallClock()
        start_s = clock.now_s()
        index = self._index[run, :active]
        flat = index.reshape(-1)
        prepared = self._chain.prepare(torch.index_select(x, 0, flat))
        targets = torch.index_select(y, 0, flat).view(*index.shape, *y.shape[1:])
        self.gather_s += clock.now_s() - start_s
        return prepared.view(*index.shape, -1).unbind(), targets

    def _forward(self, inputs: Tensor, params: dict[str, Tensor]) -> list[Tensor]:
        """Input of each layer, and the output of the last; [c, b, width]."""
        signals = [inputs]
        for layer in self._chain.layers:
            weight = params[layer.weight].transpose(1, 2)
            if layer.bias is None:
                z = torch.bmm(signals[-1], weight)
            else:
                z = torch.baddbmm(params[layer.bias], signals[-1], weight)
            signals.append(_activate(layer.activation, z))
        return signals

    def _backward(self, signals: list[Tensor], slope: Tensor, params: dict[str, Tensor]) -> None:
        """Hand each layer's gradient on; ``slope`` is the loss's with respect to the output."""
        layers = self._chain.layers
        for depth in reversed(range(len(layers))):
            layer = layers[depth]
            slope = _through(layer.activation, signals[depth + 1], slope)
            below = torch.bmm(slope, params[layer.weight]) if depth else slope
            self._move.layer(layer, params, signals[depth], slope)
            slope = below


def _runs(counts: Sequence[int], client_bytes: int) -> Iterator[slice]:
    """Steps to gather at once: those with equally many clients, of ``client_bytes`` each."""
    start = 0
    while start < len(counts):
        most = max(1, _GATHERED_BYTES // (client_bytes * counts[start]))
        end = start + 1
        while end < len(counts) and end - start < most and counts[end] == counts[start]:
            end += 1
        yield slice(start, end)
        start = end


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
    """Weights float32 [c, out, in] and biases [c, 1, out], filled with what clients received.

    Each in one piece: products that add to a part of something larger go another way for a stack
    of one.
    """
    params: dict[str, Tensor] = {}
    same = all(member.start is members[0].start for member in members)
    starts = members[0].start[None] if same else np.stack([m.start for m in members])
    for name in (name for layer in chain.layers for name in layer.names):
        place, shape = layout.places[name]
        wide = shape if len(shape) > 1 else (1, *shape)
        params[name] = torch.empty(len(members), *wide)
        params[name].numpy()[...] = starts[:, place].reshape(-1, *wide)
    return params


def _batches(members: Sequence[Member], rows: int) -> tuple[Tensor, Tensor]:
    """Numbers of examples int64 [t, c, b], and each one's share in its batch's mean [t, c, b, 1].

    Those that fill a batch up have share 0. They are the client's own: 0 times an infinite one of
    another would be NaN.
    """
    steps = max(len(m.sizes) for m in members)
    index = np.zeros((steps, len(members), rows), np.int64)
    share = np.zeros((steps, len(members), rows, 1), np.float32)
    for k, m in enumerate(members):
        count = len(m.sizes)
        if len(m.order) == count * rows:
            index[:count, k] = m.order.reshape(count, rows)
            share[:count, k] = 1 / rows
            continue
        index[:, k] = m.order[0]
        end = 0
        for t, size in enumerate(m.sizes):
            start, end = end, end + size
            index[t, k, :size] = m.order[start:end]
            share[t, k, :size] = 1 / size
    return torch.from_numpy(index), torch.from_numpy(share)


def _activate(activation: Activation, z: Tensor) -> Tensor:
    if activation == "relu":
        return z.relu_()
    if activation == "tanh":
        return z.tanh_()
    # torch's sigmoid has other bits in the last few places of its memory than before them.
    return z.neg_().exp_().add_(1).reciprocal_() if activation == "sigmoid" else z


def _through(activation: Activation, output: Tensor, slope: Tensor) -> Tensor:
    """The slope before an activation whose output and slope after it are given."""
    if activation == "relu":
        below: Tensor = torch.ops.aten.threshold_backward(slope, output, 0)
        return below
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
