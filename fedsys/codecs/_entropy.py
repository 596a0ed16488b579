"""Entropy coding of small symbols and of integers without a small bound (library constriction).

Symbols go through an ANS coder with 24-bit probabilities made from integer weights; an integer
is split into a bucket, which is such a symbol, and low bits, which are coded as equally likely.
docs/wire.md says all of it without reference to the library.
"""

from typing import Any

import constriction
import numpy as np
from numpy.typing import NDArray

from fedsys.errors import WireError
from fedsys.types import F64, I64

I32 = NDArray[np.int32]

_STEPS = np.array([256, 279, 304, 332, 362, 395, 431, 470], np.int64)
"""256 * 2**(i / 8), rounded: eight weights per factor of two."""

_MAX_TABLE_BYTE = 1 + 8 * 31 + 7
_WIDE_BITS = 16
"""Low bits beyond this many are coded in two pieces, to stay within 24-bit probabilities."""


def table_of(counts: I64) -> bytes:
    """One byte for each symbol: 0 where it never occurs, 1 + 8 * log2(count) rounded otherwise.

    Weights off by at most 4.5 % cost less than 0.1 % of the bits.
    """
    logs = np.log2(np.maximum(counts, 1))
    return np.where(counts > 0, 1 + np.rint(8 * logs), 0).astype(np.uint8).tobytes()


def weights_of(table: bytes | memoryview) -> F64:
    """Weights from the bytes of ``table_of``; integers, exact in float64."""
    logs = np.frombuffer(table, np.uint8).astype(np.int64) - 1
    weights = np.where(logs >= 0, _STEPS[logs & 7] << (np.maximum(logs, 0) >> 3), 0)
    return weights.astype(np.float64)


def cost_bits(counts: I64, weights: F64) -> float:
    """Bits that symbols occurring ``counts`` times take under ``weights``."""
    probability = np.maximum(weights / weights.sum(), 2.0**-24)
    return float(-(counts * np.log2(probability)).sum())


def model_of(weights: F64) -> Any:
    """The probability model of symbols 0..len(weights)-1; every symbol stays possible."""
    if weights.size < 2 or not weights.sum() > 0:
        weights = np.ones(max(2, weights.size))
    return constriction.stream.model.Categorical(weights, perfect=False)


class SymbolWriter:
    """A stack of symbols: what is pushed last is read first."""

    __slots__ = ("_coder",)

    def __init__(self) -> None:
        """Start empty."""
        self._coder = constriction.stream.stack.AnsCoder()

    def push(self, symbols: I32, model: Any) -> None:
        """Add ``symbols`` under ``model``, so that they are read in their order."""
        if symbols.size:
            self._coder.encode_reverse(symbols, model)

    def finish(self) -> bytes:
        """The bytes, a multiple of four."""
        return bytes(self._coder.get_compressed().astype("<u4").tobytes())


class SymbolReader:
    """The other end of SymbolWriter, for untrusted bytes."""

    __slots__ = ("_coder", "_what")

    def __init__(self, data: memoryview, what: str) -> None:
        """Refuse bytes that no SymbolWriter produces."""
        self._what = what
        if len(data) % 4:
            raise WireError(f"{what}: coded symbols are not whole 32-bit words")
        words = np.frombuffer(data, "<u4").astype(np.uint32)
        if words.size and words[-1] == 0:
            raise WireError(f"{what}: coded symbols end with a zero word")
        self._coder = constriction.stream.stack.AnsCoder(words)

    def pull(self, count: int, model: Any) -> I32:
        """The next ``count`` symbols under ``model``."""
        if not count:
            return np.zeros(0, np.int32)
        symbols: I32 = self._coder.decode(model, count)
        return symbols

    def end(self) -> None:
        """Refuse anything left over: damaged bytes hardly ever come out even."""
        if not self._coder.is_empty():
            raise WireError(f"{self._what}: coded symbols are damaged")


def bucket_of(values: I64, mantissa: int) -> I32:
    """Bucket of each non-negative integer: its own below 2**(mantissa + 1), then 2**mantissa
    buckets for every factor of two.
    """
    # The upper bits of a float64 are exponent and mantissa: exactly the bucket, with an offset.
    bits = values.astype(np.float64).view(np.int64) >> (52 - mantissa)
    large = bits - ((1023 + mantissa - 1) << mantissa)
    return np.where(values >> mantissa > 0, large, values).astype(np.int32)


def bucket_start(bucket: NDArray[Any], mantissa: int) -> I64:
    """The smallest integer of each bucket."""
    wide = bucket.astype(np.int64)
    low_bits = np.maximum((wide >> mantissa) - 1, 0)
    start: I64 = (wide - (low_bits << mantissa)) << low_bits
    return start


def push_low_bits(writer: SymbolWriter, values: I64, bucket: I32, mantissa: int) -> None:
    """Code what the bucket leaves open; buckets with fewer low bits are read first."""
    low_bits = np.maximum((bucket >> mantissa) - 1, 0)
    for width in range(int(low_bits.max(initial=0)), 0, -1):
        low = values[low_bits == width] & ((1 << width) - 1)
        for shift in range((width - 1) // _WIDE_BITS * _WIDE_BITS, -1, -_WIDE_BITS):
            piece = min(_WIDE_BITS, width - shift)
            model = constriction.stream.model.Uniform(1 << piece)
            writer.push((low >> shift & ((1 << piece) - 1)).astype(np.int32), model)


def pull_low_bits(reader: SymbolReader, bucket: I32, mantissa: int) -> I64:
    """The integers whose buckets were read before."""
    low_bits = np.maximum((bucket >> mantissa) - 1, 0)
    values = bucket_start(bucket, mantissa)
    for width in range(1, int(low_bits.max(initial=0)) + 1):
        here = np.flatnonzero(low_bits == width)
        for shift in range(0, width, _WIDE_BITS):
            piece = min(_WIDE_BITS, width - shift)
            model = constriction.stream.model.Uniform(1 << piece)
            values[here] += reader.pull(here.size, model).astype(np.int64) << shift
    return values
