"""Convolutional models in a faster order of memory and of operations.

Two changes, both of which leave the model's values, its state dict and its class alone:

- convolution weights in channels-last order, which the outputs then have too: the same
  mathematics by other kernels, so that sums may differ in their last bits;
- ``max_pool(relu(x))`` computed as ``relu(max_pool(x))``: the same bits, forward and backward, at
  a quarter of the work for a window of 2 by 2, because the largest value is what relu keeps.

Which apply is a rule about the model and the device; nothing is timed.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import fx, nn
from torch.nn import functional

from clients.graph import graph_of, has_hooks

Wanted = Literal["auto", "on", "off"]

_RELU: tuple[object, ...] = (functional.relu, torch.relu, "relu")
_RELU_IN_PLACE: tuple[object, ...] = (torch.relu_, "relu_")
_POOLS: tuple[object, ...] = (
    functional.max_pool1d,
    functional.max_pool2d,
    functional.max_pool3d,
    torch.max_pool1d,
    torch.max_pool2d,
    torch.max_pool3d,
)
_POOL_MODULES = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)


def speed_up(model: nn.Module, wanted: Wanted, device: torch.device) -> nn.Module:
    """``model`` itself, changed so that it runs faster; ``auto`` is on for a CPU only."""
    if wanted == "off" or (wanted == "auto" and device.type != "cpu"):
        return model
    to_channels_last(model)
    pool_before_relu(model)
    return model


@torch.no_grad()
def to_channels_last(model: nn.Module) -> None:
    """Put the weights of 2-d convolutions in channels-last order, where they stay."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            # Not by contiguous(), which leaves the strides of a single channel as they are, and
            # torch looks at them: the output of the first layer would stay in the slow order.
            weight = torch.empty_like(module.weight, memory_format=torch.channels_last)
            module.weight.data = weight.copy_(module.weight.data)


def pool_before_relu(model: nn.Module) -> int:
    """Let each forward that can be followed pool before it applies relu; how many were changed.

    Looks at each module by itself, so that one that cannot be followed leaves the others their
    gain. A module keeps its class; its ``forward`` is another.
    """
    return sum(_rewritten(module) for module in list(model.modules()))


def _rewritten(module: nn.Module) -> bool:
    if next(module.children(), None) is None and type(module).__module__.startswith("torch.nn."):
        return False
    if not any(isinstance(inner, nn.Conv1d | nn.Conv2d | nn.Conv3d) for inner in module.modules()):
        return False
    if "forward" in vars(module) or has_hooks(module):
        return False
    graph = graph_of(module, deep=False)
    if graph is None or not _swap_all(module, graph):
        return False
    changed = fx.GraphModule(module, graph)
    forward: Callable[..., object] = changed.forward
    module.forward = forward
    return True


def _swap_all(module: nn.Module, graph: fx.Graph) -> bool:
    """Swap each relu with the pool after it, in ``graph``; whether there was one."""
    found = False
    for pool in list(graph.nodes):
        relu = pool.args[0] if pool.args else None
        if not _is_pool(module, pool) or not isinstance(relu, fx.Node):
            continue
        before = relu.args[0] if relu.args else None
        if not isinstance(before, fx.Node) or len(relu.users) > 1:
            continue
        in_place = _relu_kind(module, relu)
        if in_place is None or (in_place and len(before.users) > 1):
            continue
        relu.replace_all_uses_with(before)
        pool.replace_all_uses_with(relu)
        relu.args = (pool, *relu.args[1:])
        pool.append(relu)
        found = True
    graph.lint()
    return found


def _relu_kind(module: nn.Module, node: fx.Node) -> bool | None:
    """Whether ``node`` is a relu in place; None where it is no relu."""
    if node.op == "call_module":
        inner = module.get_submodule(str(node.target))
        return inner.inplace if type(inner) is nn.ReLU else None
    if node.target in _RELU_IN_PLACE:
        return True
    if node.target in _RELU:
        return bool(node.kwargs.get("inplace", False)) or True in node.args[1:]
    return None


def _is_pool(module: nn.Module, node: fx.Node) -> bool:
    """Whether ``node`` is a max-pool that gives values and no indices."""
    if node.op == "call_module":
        inner = module.get_submodule(str(node.target))
        return type(inner) in _POOL_MODULES and not inner.return_indices
    is_pool = node.op == "call_function" and node.target in _POOLS
    return is_pool and not node.kwargs.get("return_indices", False) and len(node.args) < 7
