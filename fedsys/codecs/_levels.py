"""Signed levels of a uniform quantizer as bytes: step, reconstruction points, code table, symbols.

The symbol of a level is its signed bucket plus the widest bucket, so that it is never negative.
"""

import struct
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedsys.codecs._bytes import Cursor, varint
from fedsys.codecs._entropy import (
    I32,
    SymbolReader,
    SymbolWriter,
    bucket_of,
    model_of,
    pull_low_bits,
    push_low_bits,
    table_of,
    weights_of,
)
from fedsys.errors import WireError
from fedsys.types import F32, I64

MANTISSA = 3
"""Magnitudes up to 15 are symbols of their own, then there are eight for every factor of two."""

_STEP = struct.Struct("<f")
_STEP_BYTES = 3
_SMALLEST_STEP, _LARGEST_STEP = 2.0**-126, 3.0e38
_OWN_SYMBOL = 15
_MAX_BUCKET = 8 * 26 + 7
_FITTED = 4
"""Magnitudes with a reconstruction point of their own; the last one's serves all above."""


@dataclass(frozen=True, slots=True)
class Quantizer:
    """Magnitude m becomes level floor(m / step + offset); below 1/2 it widens the zero bin."""

    step: float
    offset: float

    def levels(self, x: F32) -> I32:
        """Signed level of each value."""
        scaled = x * np.float32(1 / self.step)
        scaled += np.copysign(np.float32(self.offset), x)
        levels: I32 = scaled.astype(np.int32)
        return levels


def sendable(quantizer: Quantizer) -> Quantizer:
    """The quantizer whose step is what the upper 24 bits of a float32 can say."""
    step = _unpack_step(_pack_step(min(quantizer.step, _LARGEST_STEP)))
    return Quantizer(step, quantizer.offset)


@dataclass(frozen=True)
class LevelCode:
    """How levels are written and what they mean; the same on both sides."""

    step: float
    shifts: bytes
    """For magnitude 1, 2, ... how far its values' mean lies above it, in 1/128 step, plus 128."""
    table: bytes
    """Symbol weights, 2 * widest bucket + 1 bytes."""

    @classmethod
    def fit(cls, quantizer: Quantizer, x: F32, levels: I32, top_level: int) -> "LevelCode":
        """The code for levels up to ``top_level``, fitted to the values ``x`` of ``levels``."""
        width = int(bucket_of(np.array([top_level]), MANTISSA)[0])
        symbols = _signed_bucket(levels) + width
        counts = np.bincount(symbols, minlength=2 * width + 1)
        scaled = (np.abs(x) / quantizer.step).astype(np.float32)
        shifts = _fit_shifts(scaled, np.abs(levels), width)
        return cls(quantizer.step, shifts, table_of(counts))

    @classmethod
    def read(cls, cursor: Cursor) -> "LevelCode":
        """The code from the untrusted bytes of ``pack``."""
        step = _unpack_step(bytes(cursor.take(_STEP_BYTES)))
        if not _SMALLEST_STEP <= step <= _LARGEST_STEP:
            raise WireError(f"levels: a step of {step} is out of range")
        width = cursor.varint(_MAX_BUCKET)
        if not width:
            raise WireError("levels: zeros need no code")
        shifts = bytes(cursor.take(min(width, _FITTED)))
        return cls(step, shifts, bytes(cursor.take(2 * width + 1)))

    def pack(self) -> bytes:
        """Step, widest bucket varint, shifts, table."""
        return _pack_step(self.step) + varint(self.width) + self.shifts + self.table

    @property
    def width(self) -> int:
        """The widest bucket."""
        return len(self.table) // 2

    @cached_property
    def _model(self) -> Any:
        return model_of(weights_of(self.table))

    @cached_property
    def _values(self) -> F32:
        """The value of each symbol, where each level has its own."""
        return self._points(np.arange(-self.width, self.width + 1))

    def push(self, writer: SymbolWriter, levels: I32) -> None:
        """Add ``levels`` so that ``pull`` finds them in their order."""
        buckets = levels
        if self.width > _OWN_SYMBOL:
            magnitudes = np.abs(levels).astype(np.int64)
            buckets = _signed_bucket(levels)
            push_low_bits(writer, magnitudes, np.abs(buckets), MANTISSA)
        writer.push(buckets + np.int32(self.width), self._model)

    def pull(self, reader: SymbolReader, count: int) -> F32:
        """The values of the next ``count`` levels."""
        symbols = reader.pull(count, self._model)
        if self.width <= _OWN_SYMBOL:
            return np.take(self._values, symbols)
        buckets = symbols - np.int32(self.width)
        magnitudes = pull_low_bits(reader, np.abs(buckets), MANTISSA)
        return self._points(np.sign(buckets) * magnitudes)

    def _points(self, levels: I64) -> F32:
        magnitudes = np.abs(levels)
        shifts = (np.frombuffer(b"\x80" + self.shifts, np.uint8).astype(np.float64) - 128) / 128
        points = magnitudes + shifts[np.minimum(magnitudes, len(self.shifts))]
        limit = float(np.finfo(np.float32).max)
        return np.clip(np.sign(levels) * points * self.step, -limit, limit).astype(np.float32)


def _pack_step(step: float) -> bytes:
    return _STEP.pack(step)[-_STEP_BYTES:]


def _unpack_step(data: bytes) -> float:
    return float(_STEP.unpack(bytes(_STEP.size - _STEP_BYTES) + data)[0])


def _signed_bucket(levels: I32) -> I32:
    magnitudes = np.abs(levels)
    if not magnitudes.size or int(magnitudes.max()) <= _OWN_SYMBOL:
        return levels
    return np.copysign(bucket_of(magnitudes.astype(np.int64), MANTISSA), levels).astype(np.int32)


def _fit_shifts(scaled: F32, magnitudes: I32, width: int) -> bytes:
    """The mean of magnitude minus level, for each fitted level."""
    shifts = bytearray()
    for level in range(1, min(width, _FITTED) + 1):
        here = magnitudes >= level if level == _FITTED else magnitudes == level
        above = (scaled[here] - magnitudes[here]).mean(dtype=np.float64) if here.any() else 0.0
        shifts.append(int(np.clip(np.rint(128 * (1 + above)), 0, 255)))
    return bytes(shifts)
