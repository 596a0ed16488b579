"""How many floating-point operations torch runs: its own counter, without its compiler.

``torch.utils.flop_counter.FlopCounterMode`` imports the compiler when it is first used, which
takes a second or two of every run's start.
"""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

# Answered by the tensor itself.
_PASSED_BY = ("is_contiguous", "size", "stride", "storage_offset", "numel", "dim", "layout")


class FlopCount(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the products and convolutions that run inside ``with``, in ``flops``."""

    flops: int = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run ``func``, or what it is made of, and count."""
        kwargs = kwargs or {}
        packet = getattr(func, "_overloadpacket", None)
        if packet is None or packet.__name__ in _PASSED_BY:
            return NotImplemented
        if packet not in flop_registry and func is not torch.ops.prim.device.default:
            with self:
                made_of = func.decompose(*args, **kwargs)
            if made_of is not NotImplemented:
                return made_of
        out = func(*args, **kwargs)
        if packet in flop_registry:
            self.flops += flop_registry[packet](*args, **kwargs, out_val=out)
        return out
