"""Whether tensors are those of a model, and how they are brought to its dtypes."""

from collections.abc import Mapping

import numpy as np

from fedsys.errors import WireError
from fedsys.wire.schema import Array, Schema, TensorSpec


def conform(arrays: Mapping[str, Array], schema: Schema) -> dict[str, Array]:
    """``arrays`` in the dtypes of ``schema``; WireError names the first tensor that does not fit.

    Apps and strategies change dtypes on the way: numpy code trains in float64, and Flower's mean
    of an int64 counter is float64. Fractions are rounded where the model has an integer.
    """
    fitting: dict[str, Array] = {}
    for tensor in schema.tensors:
        array = arrays.get(tensor.name)
        if array is None:
            raise WireError(f"tensor '{tensor.name}' is missing")
        if array.shape != tensor.shape:
            raise WireError(
                f"tensor '{tensor.name}' has shape {array.shape}, the model has {tensor.shape}"
            )
        fitting[tensor.name] = _cast(array, tensor)
    extra = arrays.keys() - fitting.keys()
    if extra:
        raise WireError(f"tensor '{min(extra)}' is not one of the model")
    return fitting


def _cast(array: Array, tensor: TensorSpec) -> Array:
    dtype = tensor.storage.newbyteorder("=")
    if array.dtype == dtype:
        return array
    if array.dtype.kind not in "fiub":
        raise WireError(f"tensor '{tensor.name}' is {array.dtype}, the model has {tensor.dtype}")
    if array.dtype.kind == "f" and dtype.kind != "f":
        if not np.isfinite(array).all():
            raise WireError(f"tensor '{tensor.name}' holds NaN or infinite values")
        array = np.rint(array)
    with np.errstate(over="ignore", invalid="ignore"):
        return array.astype(dtype)
