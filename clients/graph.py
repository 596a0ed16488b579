"""A module's forward as a graph of operations, where that is all there is to it.

``torch.fx`` follows one call of a forward. That call stands for all only where the forward takes
one tensor, does the same every time and in both modes, and leaves nothing behind.
"""

from typing import Any

from torch import fx, nn

_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)


class _Shallow(fx.Tracer):
    """Every module inside is one operation."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


class _Deep(fx.Tracer):
    """Modules of torch, and those without parameters, are one operation; the rest is opened."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if super().is_leaf_module(m, module_qualified_name):
            return True
        return not isinstance(m, nn.Sequential) and next(m.parameters(), None) is None


def graph_of(module: nn.Module, *, deep: bool) -> fx.Graph | None:
    """The graph of ``module``'s forward; None where one call does not stand for all.

    ``deep`` opens the modules inside that have parameters and are not torch's own.
    """
    if any(has_hooks(inner) for inner in module.modules()):
        return None
    before = _snapshot(module)
    graphs = []
    try:
        for mode in (True, True, False):
            module.train(mode)
            graphs.append((_Deep() if deep else _Shallow()).trace(module))
    except Exception:  # whatever a user's code raises when it is given no tensor
        return None
    finally:
        for inner, (values, _) in zip(module.modules(), before, strict=True):
            inner.training = values["training"]
    if not _same(before, _snapshot(module)) or len({str(graph) for graph in graphs}) > 1:
        return None
    takes = [node for node in graphs[0].nodes if node.op == "placeholder"]
    return graphs[0] if len(takes) == 1 else None


def has_hooks(module: nn.Module) -> bool:
    """Whether calling ``module`` runs a user's hook."""
    return any(getattr(module, name) for name in _HOOKS)


_State = list[tuple[dict[str, Any], list[int]]]


def _snapshot(module: nn.Module) -> _State:
    """The attributes of all modules inside, and the lengths of those that are containers."""
    state = []
    for inner in module.modules():
        values = dict(vars(inner))
        sizes = [len(v) for v in values.values() if isinstance(v, list | dict | set)]
        state.append((values, sizes))
    return state


def _same(before: _State, after: _State) -> bool:
    return len(before) == len(after) and all(
        b.keys() == a.keys() and all(b[key] is a[key] for key in b) and b_sizes == a_sizes
        for (b, b_sizes), (a, a_sizes) in zip(before, after, strict=True)
    )
