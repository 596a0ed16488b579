"""Models that are a chain of linear layers, and what comes before the first of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from clients.graph import graph_of, has_hooks

Activation = Literal["none", "relu", "tanh", "sigmoid"]

_MODULES: dict[type[nn.Module], Activation] = {
    nn.ReLU: "relu",
    nn.Tanh: "tanh",
    nn.Sigmoid: "sigmoid",
    nn.Identity: "none",
}
_FUNCTIONS: dict[object, Activation] = {
    functional.relu: "relu",
    torch.relu: "relu",
    torch.relu_: "relu",
    functional.tanh: "tanh",
    torch.tanh: "tanh",
    functional.sigmoid: "sigmoid",
    torch.sigmoid: "sigmoid",
}
_METHODS: dict[object, Activation] = {"relu": "relu", "tanh": "tanh", "sigmoid": "sigmoid"}


@dataclass(frozen=True, slots=True)
class Dense:
    """One linear layer and the activation that follows it."""

    weight: str
    """Name in the state dict; [out, in]."""
    bias: str | None
    activation: Activation

    @property
    def names(self) -> tuple[str, ...]:
        """Of its parameters."""
        return (self.weight,) if self.bias is None else (self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class Chain:
    """A model as what it is made of."""

    prepare: Callable[[Tensor], Tensor]
    """From examples to the first layer's input float32 [b, in]; has no parameters."""
    layers: tuple[Dense, ...]


def chain_of(model: nn.Module) -> Chain | None:
    """``model`` as a chain of linear layers with biases or not; None where it is anything else.

    Each parameter is float32, trainable, and used once; there are no buffers.
    """
    if next(model.buffers(), None) is not None:
        return None
    if any(p.dtype != torch.float32 or not p.requires_grad for p in model.parameters()):
        return None
    if type(model) is nn.Linear and not has_hooks(model):
        bias = None if model.bias is None else "bias"
        return Chain(nn.Identity(), (Dense("weight", bias, "none"),))
    graph = graph_of(model, deep=True)
    if graph is None:
        return None
    nodes = list(graph.nodes)
    start = next((i for i, node in enumerate(nodes) if _linear(model, node) is not None), None)
    layers = None if start is None else _layers(model, nodes[start:])
    if start is None or layers is None:
        return None
    names = [name for layer in layers for name in layer.names]
    if sorted(names) != sorted(model.state_dict()):
        return None
    return Chain(_prefix(model, graph, nodes[start]), layers)


def _layers(model: nn.Module, nodes: list[fx.Node]) -> tuple[Dense, ...] | None:
    """The layers that ``nodes``, from the first linear layer to the output, are."""
    layers: list[Dense] = []
    previous: fx.Node | None = None
    for node in nodes:
        if previous is not None and node.all_input_nodes != [previous]:
            return None
        previous = node
        if node.op == "output":
            return tuple(layers) if node.args[0] is node.all_input_nodes[0] else None
        linear = _linear(model, node)
        activation = _activation(model, node)
        if linear is not None:
            bias = None if linear.bias is None else f"{node.target}.bias"
            layers.append(Dense(f"{node.target}.weight", bias, "none"))
        elif activation is not None and layers[-1].activation == "none":
            layers[-1] = Dense(layers[-1].weight, layers[-1].bias, activation)
        elif activation != "none":
            return None
    return None


def _linear(model: nn.Module, node: fx.Node) -> nn.Linear | None:
    module = model.get_submodule(str(node.target)) if node.op == "call_module" else None
    return module if type(module) is nn.Linear else None


def _activation(model: nn.Module, node: fx.Node) -> Activation | None:
    if node.op == "call_module":
        return _MODULES.get(type(model.get_submodule(str(node.target))))
    known = _METHODS if node.op == "call_method" else _FUNCTIONS
    return known.get(node.target)


def _prefix(model: nn.Module, graph: fx.Graph, first: fx.Node) -> Callable[[Tensor], Tensor]:
    """What ``graph`` computes up to the input of its node ``first``."""
    before = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if node is first:
            break
        copies[node] = before.node_copy(node, copies.__getitem__)
    before.output(copies[first.all_input_nodes[0]])
    prefix: Callable[[Tensor], Tensor] = fx.GraphModule(model, before)
    return prefix
