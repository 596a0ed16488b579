"""The model as named arrays, in the order of its state dict, or as one flat vector, and back.

BatchNorm statistics and integer counters are part of it: the server decides how to merge them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from clients.device import seed_torch
from clients.tasks._base import Task
from fedsys.errors import FedsysError
from fedsys.rng import seed_for
from fedsys.types import F32

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Weights:
    """A model without its shapes: what training takes and gives."""

    flat: F32
    """float32 [n]: the float32 tensors of the state dict end to end; may be read-only."""
    exact: Mapping[str, Array] = field(default_factory=dict)
    """The tensors of other dtypes, by name."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Which tensors a model's flat vector is made of, and what is left beside it."""

    shapes: Mapping[str, tuple[int, ...]]
    """Of every tensor of the state dict, in its order."""
    exact: frozenset[str]
    """Names of those that are not float32."""
    n: int
    places: Mapping[str, tuple[slice, tuple[int, ...]]]
    """Where in the flat vector each float32 tensor is, and its shape."""

    @classmethod
    def of(cls, model: nn.Module) -> Self:
        """The layout of ``model``; FedsysError for dtypes that numpy lacks."""
        state = model.state_dict()
        for name, tensor in state.items():
            _check_dtype(name, tensor)
        shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
        exact = frozenset(name for name, tensor in state.items() if tensor.dtype != torch.float32)
        places, n = {}, 0
        for name, shape in shapes.items():
            if name not in exact:
                places[name] = slice(n, n + math.prod(shape)), shape
                n += math.prod(shape)
        return cls(shapes, exact, n, places)

    def weights(self, arrays: Mapping[str, Array]) -> Weights:
        """``arrays`` as Weights; FedsysError, naming the first tensor that does not fit."""
        check_fit(self.shapes, arrays)
        flat = np.empty(self.n, np.float32)
        for name, part in self.parts(flat).items():
            part[...] = arrays[name]
        return Weights(flat, {name: arrays[name] for name in self.exact})

    def arrays(self, weights: Weights) -> dict[str, Array]:
        """All tensors by name in the order of the state dict; the float32 ones are views."""
        parts = self.parts(weights.flat)
        return {
            name: weights.exact[name] if name in self.exact else parts[name] for name in self.shapes
        }

    def parts(self, flat: F32) -> dict[str, F32]:
        """Views of one flat vector, or of several [..., n], one view a float32 tensor.

        FedsysError for another length.
        """
        if flat.shape[-1] != self.n:
            raise FedsysError(f"received {flat.shape[-1]} float32 values, the model has {self.n}")
        stack = flat.shape[:-1]
        return {
            name: flat[..., place].reshape(*stack, *shape)
            for name, (place, shape) in self.places.items()
        }


class Exchange:
    """Puts weights into one model and takes them out again."""

    def __init__(self, model: nn.Module) -> None:
        self.layout = Layout.of(model)
        self._model = model
        # Buffers may be replaced by others as the model runs; parameters stay where they are.
        on_cpu = all(p.device.type == "cpu" for p in model.parameters())
        fixed = on_cpu and next(model.buffers(), None) is None
        self._fixed = {name: t.numpy() for name, t in self._state().items()} if fixed else None

    @torch.no_grad()
    def load(self, weights: Weights) -> None:
        """Copy ``weights``, which are of this layout, into the model."""
        arrays = self.layout.arrays(weights)
        if self._fixed is not None:
            for name, values in self._fixed.items():
                values[...] = arrays[name]
            return
        for name, tensor in self._state().items():
            # A copy, because what came may be read-only, which torch cannot express.
            tensor.copy_(torch.from_numpy(np.array(arrays[name])))

    def save(self, out: F32 | None = None) -> Weights:
        """A copy of the model's weights, the flat vector in ``out`` if one is given."""
        flat = np.empty(self.layout.n, np.float32) if out is None else out
        state = self._fixed or {name: t.cpu().numpy() for name, t in self._state().items()}
        for name, part in self.layout.parts(flat).items():
            part[...] = state[name]
        return Weights(flat, {name: state[name].copy() for name in self.layout.exact})

    def _state(self) -> dict[str, torch.Tensor]:
        return self._model.state_dict()


def build_model(task: Task, seed: int) -> nn.Module:
    """The initial model of an experiment; the same for equal seeds, in every process."""
    with torch.random.fork_rng(devices=[]):
        seed_torch(seed_for(seed, "model"))
        model = task.build_model()
    return model


def to_arrays(model: nn.Module) -> dict[str, Array]:
    """Copies of all parameters and buffers, with their exact shapes and dtypes."""
    arrays = {}
    for name, tensor in model.state_dict().items():
        _check_dtype(name, tensor)
        arrays[name] = np.array(tensor.detach().cpu().numpy(), order="C")
    return arrays


@torch.no_grad()
def load_arrays(model: nn.Module, arrays: Mapping[str, Array]) -> None:
    """Put ``arrays`` into ``model``; values take the dtype of the tensor they go to.

    Raises FedsysError, naming the first tensor that does not fit, before anything is changed.
    """
    state = model.state_dict()
    check_fit({name: tuple(tensor.shape) for name, tensor in state.items()}, arrays)
    for name, tensor in state.items():
        # A copy, because a decoded message may be read-only, which torch cannot express.
        tensor.copy_(torch.from_numpy(np.array(arrays[name])))


def check_fit(shapes: Mapping[str, tuple[int, ...]], arrays: Mapping[str, Array]) -> None:
    """FedsysError, naming the first tensor, unless ``arrays`` are those of this client's model."""
    for name, shape in shapes.items():
        if name not in arrays:
            raise FedsysError(f"received model lacks tensor '{name}' {list(shape)}")
        if arrays[name].shape != shape:
            raise FedsysError(
                f"received tensor '{name}' has shape {list(arrays[name].shape)}, this client's "
                f"model has {list(shape)}"
            )
    unknown = sorted(arrays.keys() - shapes.keys())
    if unknown:
        raise FedsysError(f"received tensor '{unknown[0]}' is not in this client's model")


def _check_dtype(name: str, tensor: torch.Tensor) -> None:
    if tensor.dtype == torch.bfloat16:
        raise FedsysError(
            f"tensor '{name}' is bfloat16, which numpy lacks; keep the weights float32 and set "
            "training.precision = 'bf16'"
        )
