"""Which tensors a model has, and which of them a codec may touch.

Both sides build the schema from their own model; only its 8-byte digest travels with a packet.
"""

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsys.codecs._base import Layout
from fedsys.codecs._bytes import Cursor, varint
from fedsys.errors import ConfigError, WireError
from fedsys.registry import nearest
from fedsys.types import F32

RULES = ["stats", "small", "none"]
FLOATS = ["float16", "float32", "float64", "bfloat16"]
EXACT = ["bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))]
DTYPES = [*FLOATS, *EXACT]

_SMALL_ELEMENTS = 1024
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
_NORM_MODULE = re.compile(
    r"(?:.*_)?(?:batch|layer|group|instance|rms)?_?(?:norm|bn|ln|gn)\d*(?:_.*)?"
)
_MAX_TENSORS = 1 << 16
_MAX_DIMS = 16
_MAX_NAME_BYTES = 512
_FORMAT = 1

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, shape and numpy dtype name of one tensor.

    ``bfloat16``, which numpy lacks, travels and is joined as its uint16 bit patterns.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Number of elements; 1 for a scalar."""
        return math.prod(self.shape)

    @property
    def storage(self) -> np.dtype[Any]:
        """The little-endian numpy dtype in which the elements are stored."""
        return np.dtype("uint16" if self.dtype == "bfloat16" else self.dtype).newbyteorder("<")

    @property
    def n_bytes(self) -> int:
        """Bytes of the elements as they are stored."""
        return self.size * self.storage.itemsize


@dataclass(frozen=True)
class Schema:
    """The tensors of a model in order, and the rule by which they are split.

    Integer and boolean tensors always travel raw, as their own bytes. Of the others:

    - ``raw="stats"``: normalisation layers travel raw, that is ``running_mean``,
      ``running_var`` and everything beside them in the same module, and the tensors of modules
      named as norm, bn, ln or gn (``layer_norm``, ``bn1``, ``norm_2``, ...). Coding them
      saves nothing and a wrong variance breaks the model.
    - ``raw="small"``: so do, in addition, tensors of fewer than 1024 elements.
    - ``raw="none"``: every floating tensor is coded.
    """

    tensors: tuple[TensorSpec, ...]
    raw: str = "stats"

    def __post_init__(self) -> None:
        """Refuse what no receiver would accept."""
        if self.raw not in RULES:
            raise ConfigError(f"raw cannot be {self.raw!r}; {nearest(str(self.raw), RULES)}")
        if len({tensor.name for tensor in self.tensors}) != len(self.tensors):
            raise ConfigError("two tensors have the same name")
        for tensor in self.tensors:
            if tensor.dtype not in DTYPES:
                raise ConfigError(
                    f"tensor '{tensor.name}' has dtype {tensor.dtype}; "
                    f"{nearest(tensor.dtype, DTYPES)}"
                )

    @classmethod
    def of(
        cls,
        arrays: Mapping[str, Array],
        raw: str = "stats",
        bfloat16: frozenset[str] = frozenset(),
    ) -> "Schema":
        """The schema of ``arrays``; those named in ``bfloat16`` are uint16 bit patterns."""
        return cls(
            tuple(
                TensorSpec(name, a.shape, "bfloat16" if name in bfloat16 else a.dtype.name)
                for name, a in arrays.items()
            ),
            raw,
        )

    @cached_property
    def coded(self) -> tuple[bool, ...]:
        """For each tensor, whether the codec handles it (False: its bytes travel raw)."""
        modules = {
            tensor.name.rpartition(".")[0]
            for tensor in self.tensors
            if tensor.name.rpartition(".")[2] in _STATISTICS
        }
        return tuple(self._is_coded(tensor, modules) for tensor in self.tensors)

    @cached_property
    def layout(self) -> Layout:
        """Shapes of the coded tensors, in order."""
        return tuple(t.shape for t, c in zip(self.tensors, self.coded, strict=True) if c)

    @cached_property
    def n(self) -> int:
        """Number of coded parameters."""
        return sum(math.prod(shape) for shape in self.layout)

    @cached_property
    def raw_n_bytes(self) -> int:
        """Bytes of the tensors that travel raw."""
        pairs = zip(self.tensors, self.coded, strict=True)
        return sum(t.n_bytes for t, coded in pairs if not coded)

    @cached_property
    def digest(self) -> bytes:
        """Eight bytes that agree exactly when names, shapes, dtypes and rule do."""
        return hashlib.blake2b(self.to_bytes(), digest_size=8).digest()

    @cached_property
    def exact_n_bytes(self) -> int:
        """Bytes of the coded tensors in their own dtypes."""
        pairs = zip(self.tensors, self.coded, strict=True)
        return sum(t.n_bytes for t, coded in pairs if coded)

    def split(self, arrays: Mapping[str, Array]) -> tuple[F32, bytes]:
        """Coded values float32 [n] and the raw tensors' bytes; ``arrays`` are not modified."""
        flat = np.empty(self.n, np.float32)
        raw, at = [], 0
        for tensor, coded in zip(self.tensors, self.coded, strict=True):
            array = _checked(arrays[tensor.name], tensor)
            if coded:
                with np.errstate(over="ignore"):
                    flat[at : at + tensor.size] = _widen(array, tensor).reshape(-1)
                at += tensor.size
            else:
                raw.append(np.ascontiguousarray(array, tensor.storage).tobytes())
        return flat, b"".join(raw)

    def join(self, flat: F32, raw: bytes | memoryview) -> dict[str, Array]:
        """New arrays with the names, shapes and dtypes of the schema, from both parts."""
        if flat.shape != (self.n,):
            raise WireError(f"{flat.size} coded values, the model has {self.n}")
        if len(raw) != self.raw_n_bytes:
            raise WireError(f"{len(raw)} raw bytes, the model has {self.raw_n_bytes}")
        arrays: dict[str, Array] = {}
        at = raw_at = 0
        for tensor, coded in zip(self.tensors, self.coded, strict=True):
            if coded:
                arrays[tensor.name] = _narrow(flat[at : at + tensor.size], tensor)
                at += tensor.size
            else:
                arrays[tensor.name] = _read_array(raw, tensor, raw_at)
                raw_at += tensor.n_bytes
        return arrays

    def split_exact(self, arrays: Mapping[str, Array]) -> tuple[bytes, bytes]:
        """Bytes of the coded tensors and of the raw ones, each in its own dtype."""
        parts: dict[bool, list[bytes]] = {True: [], False: []}
        for tensor, coded in zip(self.tensors, self.coded, strict=True):
            array = _checked(arrays[tensor.name], tensor)
            parts[coded].append(np.ascontiguousarray(array, tensor.storage).tobytes())
        return b"".join(parts[True]), b"".join(parts[False])

    def join_exact(self, exact: bytes | memoryview, raw: bytes | memoryview) -> dict[str, Array]:
        """New arrays from what ``split_exact`` gave, bit for bit; the bytes are untrusted."""
        if len(exact) != self.exact_n_bytes or len(raw) != self.raw_n_bytes:
            raise WireError(
                f"{len(exact)} and {len(raw)} bytes of tensors, the model has "
                f"{self.exact_n_bytes} and {self.raw_n_bytes}"
            )
        arrays: dict[str, Array] = {}
        at = {True: 0, False: 0}
        for tensor, coded in zip(self.tensors, self.coded, strict=True):
            arrays[tensor.name] = _read_array(exact if coded else raw, tensor, at[coded])
            at[coded] += tensor.n_bytes
        return arrays

    def to_bytes(self) -> bytes:
        """The schema itself, for the one time that it travels."""
        out = [bytes([_FORMAT, RULES.index(self.raw)]), varint(len(self.tensors))]
        for tensor in self.tensors:
            name = tensor.name.encode()
            out += [varint(len(name)), name, bytes([DTYPES.index(tensor.dtype)])]
            out += [varint(len(tensor.shape)), *(varint(size) for size in tensor.shape)]
        return b"".join(out)

    @classmethod
    def from_bytes(cls, data: bytes | memoryview, max_elements: int = 1 << 32) -> "Schema":
        """The schema in untrusted ``data``; of at most ``max_elements`` elements in all."""
        cursor = Cursor(data, "schema")
        if cursor.take(1)[0] != _FORMAT:
            raise WireError(f"schema: format {data[0]}, this receiver reads {_FORMAT}")
        rule = _pick(RULES, cursor.take(1)[0], "rule")
        tensors, left = [], max_elements
        for _ in range(cursor.varint(_MAX_TENSORS)):
            tensor = _read_tensor(cursor, left)
            left -= tensor.size
            tensors.append(tensor)
        cursor.end()
        try:
            return cls(tuple(tensors), rule)
        except ConfigError as error:
            raise WireError(f"schema: {error}") from error

    def _is_coded(self, tensor: TensorSpec, norm_modules: set[str]) -> bool:
        if tensor.dtype not in FLOATS:
            return False
        if self.raw == "none":
            return True
        if self.raw == "small" and tensor.size < _SMALL_ELEMENTS:
            return False
        module, _, _ = tensor.name.rpartition(".")
        return not (module in norm_modules or is_norm(module.rpartition(".")[2]))


def is_norm(module: str) -> bool:
    """Whether a module of that name is a normalisation layer by custom."""
    return _NORM_MODULE.fullmatch(module.lower()) is not None


def _checked(array: Array, tensor: TensorSpec) -> Array:
    """The array itself, which must be what the schema says."""
    if array.shape != tensor.shape or array.dtype != tensor.storage.newbyteorder("="):
        raise ValueError(
            f"tensor '{tensor.name}' is {array.dtype} {array.shape}, "
            f"the schema says {tensor.dtype} {tensor.shape}"
        )
    return array


def _read_array(data: bytes | memoryview, tensor: TensorSpec, at: int) -> Array:
    """A copy of the tensor whose elements start at byte ``at``."""
    values = np.frombuffer(data, tensor.storage, tensor.size, at)
    return values.astype(tensor.storage.newbyteorder("=")).reshape(tensor.shape)


def _widen(array: Array, tensor: TensorSpec) -> Array:
    if tensor.dtype != "bfloat16":
        return array
    bits: Array = array.astype(np.uint32) << 16
    return bits.view(np.float32)


def _narrow(values: F32, tensor: TensorSpec) -> Array:
    """Coded values in the tensor's own dtype; what is too large for it becomes its largest."""
    narrow: Array
    if tensor.dtype == "bfloat16":
        bits = values.view(np.uint32)
        magnitude = np.minimum(bits & 0x7FFFFFFF, 0x7F7F7FFF)
        narrow = (bits >> 16 & 0x8000) | (magnitude + 0x7FFF + (magnitude >> 16 & 1)) >> 16
        narrow = narrow.astype(np.uint16)
    elif tensor.dtype == "float16":
        narrow = np.clip(values, -65504, 65504).astype(np.float16)
    else:
        narrow = values.astype(tensor.dtype)
    return narrow.reshape(tensor.shape)


def _pick(names: list[str], code: int, what: str) -> str:
    if code >= len(names):
        raise WireError(f"schema: {what} {code} is unknown")
    return names[code]


def _read_tensor(cursor: Cursor, max_elements: int) -> TensorSpec:
    try:
        name = str(cursor.take(cursor.varint(_MAX_NAME_BYTES)), "utf-8")
    except UnicodeDecodeError as error:
        raise WireError("schema: a tensor name is not UTF-8") from error
    dtype = _pick(DTYPES, cursor.take(1)[0], "dtype")
    shape = tuple(cursor.varint(max_elements) for _ in range(cursor.varint(_MAX_DIMS)))
    if math.prod(size for size in shape if size) > max_elements:
        raise WireError(f"schema: tensor '{name}' {shape} exceeds the elements allowed")
    return TensorSpec(name, shape, dtype)
