"""Where a client computes, and whether that place can compute in the precision asked for."""

import logging
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Literal

import torch

from fedsys.errors import ConfigError

Precision = Literal["fp32", "bf16", "fp16"]

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_LOG = logging.getLogger(__name__)


@lru_cache(maxsize=8)
def choose_device(wanted: Literal["auto", "cpu", "cuda"]) -> torch.device:
    """The device to train on; only torch is asked what there is.

    ``auto`` takes a GPU if there is one and says in one line that there is none. ``cuda`` without
    a GPU is a ConfigError.
    """
    if wanted == "cpu" or torch.cuda.is_available():
        return torch.device("cpu" if wanted == "cpu" else "cuda")
    if wanted == "cuda":
        raise ConfigError("training.device: torch finds no CUDA device; set 'auto' or 'cpu'")
    _LOG.info("training.device = auto: torch finds no CUDA device, training on the CPU")
    return torch.device("cpu")


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """The context for forward passes; ConfigError when ``device`` lacks the precision.

    bf16 runs on any CPU and on GPUs that have it; fp16 on GPUs only, with a loss scale.
    """
    if precision == "fp32":
        return nullcontext()
    if device.type == "cpu" and precision == "fp16":
        raise ConfigError("training.precision: fp16 needs a CUDA device; on a CPU use bf16 or fp32")
    if device.type == "cuda" and precision == "bf16" and not torch.cuda.is_bf16_supported():
        raise ConfigError("training.precision: this CUDA device has no bf16; use fp16 or fp32")
    return torch.autocast(device.type, dtype=_DTYPES[precision])


def seed_torch(seed: int, device: torch.device | None = None) -> None:
    """Seed torch's draws on the CPU and, where ``device`` is one, on the GPUs.

    Not by ``torch.manual_seed``: its first call imports torch's compiler, which takes two seconds,
    and each call leaves a stack trace behind for every kind of GPU that is not in use.
    """
    torch.default_generator.manual_seed(seed)
    if device is not None and device.type == "cuda":
        torch.cuda.manual_seed_all(seed)
