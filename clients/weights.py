"""The model as named arrays, in the order of its state dict, and back.

BatchNorm statistics and integer counters are part of it: the server decides how to merge them.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from clients.device import seed_torch
from clients.tasks._base import Task
from fedsys.errors import FedsysError
from fedsys.rng import seed_for

Array = NDArray[Any]


def build_model(task: Task, seed: int) -> nn.Module:
    """The initial model of an experiment; the same for equal seeds, in every process."""
    with torch.random.fork_rng(devices=[]):
        seed_torch(seed_for(seed, "model"))
        model = task.build_model()
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            # The same values in another order in memory: 1.4 times faster on a CPU.
            weight = module.weight.data.contiguous(memory_format=torch.channels_last)
            module.weight.data = weight
    return model


def to_arrays(model: nn.Module) -> dict[str, Array]:
    """Copies of all parameters and buffers, with their exact shapes and dtypes."""
    arrays = {}
    for name, tensor in model.state_dict().items():
        if tensor.dtype == torch.bfloat16:
            raise FedsysError(
                f"tensor '{name}' is bfloat16, which numpy lacks; keep the weights float32 and set "
                "training.precision = 'bf16'"
            )
        arrays[name] = np.array(tensor.detach().cpu().numpy(), order="C")
    return arrays


@torch.no_grad()
def load_arrays(model: nn.Module, arrays: Mapping[str, Array]) -> None:
    """Put ``arrays`` into ``model``; values take the dtype of the tensor they go to.

    Raises FedsysError, naming the first tensor that does not fit, before anything is changed.
    """
    state = model.state_dict()
    for name, tensor in state.items():
        if name not in arrays:
            raise FedsysError(f"received model lacks tensor '{name}' {list(tensor.shape)}")
        if arrays[name].shape != tuple(tensor.shape):
            raise FedsysError(
                f"received tensor '{name}' has shape {list(arrays[name].shape)}, this client's "
                f"model has {list(tensor.shape)}"
            )
    unknown = sorted(arrays.keys() - state.keys())
    if unknown:
        raise FedsysError(f"received tensor '{unknown[0]}' is not in this client's model")
    for name, tensor in state.items():
        # A copy, because a decoded message may be read-only, which torch cannot express.
        tensor.copy_(torch.from_numpy(np.array(arrays[name])))
