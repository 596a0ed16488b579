"""Low-rank factors of large matrices (Vogels et al. 2019, PowerSGD)."""

import math
from dataclasses import KW_ONLY, dataclass

import numpy as np
from numpy.typing import NDArray

from fedsys.codecs._base import Dense, Layout, Update, all_finite
from fedsys.codecs._bytes import Cursor, varint
from fedsys.codecs._check import check_int
from fedsys.errors import WireError
from fedsys.types import F32

_MIN_SIDE = 64
_MAX_FACTOR = 1.0e30
"""Factors saturate here, so that no product of them overflows."""


@dataclass(frozen=True, slots=True)
class LowRank:
    """Send each large matrix as two factors of ``rank`` columns; other tensors go on unchanged.

    A tensor counts as a matrix of its first dimension by the rest. It is factored when both
    sides are at least 64 and the factors are less than half of it. ``passes`` power iterations
    from a random start replace PowerSGD's warm start, so no state is kept. Biased: pair it
    with error feedback. The factors are values for the next stage, as in ``lowrank(4)|fp16``.
    """

    rank: int = 4
    _: KW_ONLY
    passes: int = 2

    def __post_init__(self) -> None:
        """Refuse bad parameters before anything starts."""
        check_int("lowrank.rank", self.rank, 1, 256)
        check_int("lowrank.passes", self.passes, 1, 16)

    def encode(self, x: F32, layout: Layout, rng: np.random.Generator) -> tuple[F32 | None, bytes]:
        """Factors and whole tensors, in order; their count as own bytes."""
        parts, at = [np.zeros(0, np.float32)], 0
        for shape in layout:
            rows, columns = _matrix(shape)
            part = x[at : at + rows * columns]
            at += part.size
            if self._factored(rows, columns):
                part = self._factors(part.reshape(rows, columns), rng)
            parts.append(part)
        values = np.concatenate(parts)
        return values, varint(values.size)

    def value_count(self, side: memoryview, n: int) -> int:
        """The count that the own bytes hold."""
        cursor = Cursor(side, "lowrank")
        count = cursor.varint(n)
        cursor.end()
        return count

    def decode(self, side: memoryview, values: F32 | None, n: int, layout: Layout) -> Update:
        """Products of the factors, and the other tensors."""
        sizes = [self._sent(*_matrix(shape)) for shape in layout]
        if values is None or values.size != sum(sizes):
            raise WireError(f"lowrank: this layout takes {sum(sizes)} values")
        out = np.empty(n, np.float32)
        taken = at = 0
        for shape, size in zip(layout, sizes, strict=True):
            rows, columns = _matrix(shape)
            part = values[taken : taken + size]
            target = out[at : at + rows * columns]
            if self._factored(rows, columns):
                _multiply(part, rows, self.rank, target.reshape(rows, columns))
            else:
                target[:] = part
            taken, at = taken + size, at + rows * columns
        if not all_finite(out):
            raise WireError("lowrank: a product of factors overflows")
        return Dense(out)

    def _factored(self, rows: int, columns: int) -> bool:
        factors = self.rank * (rows + columns)
        return min(rows, columns) >= _MIN_SIDE and 2 * factors < rows * columns

    def _sent(self, rows: int, columns: int) -> int:
        return self.rank * (rows + columns) if self._factored(rows, columns) else rows * columns

    def _factors(self, matrix: F32, rng: np.random.Generator) -> F32:
        """Orthonormal columns [rows, rank] and what multiplies them [columns, rank], one vector."""
        wide: NDArray[np.float64] = matrix.astype(np.float64)
        right = rng.standard_normal((wide.shape[1], self.rank))
        left = np.zeros((wide.shape[0], self.rank))
        for _ in range(self.passes):
            left, _ = np.linalg.qr(wide @ right)
            right = wide.T @ left
        factors = np.concatenate([left.reshape(-1), right.reshape(-1)])
        limited: F32 = np.clip(factors, -_MAX_FACTOR, _MAX_FACTOR).astype(np.float32)
        return limited


def _matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of a tensor seen as a matrix."""
    return (shape[0], math.prod(shape[1:])) if shape else (1, 1)


def _multiply(factors: F32, rows: int, rank: int, out: F32) -> None:
    """The product of both factors, one column after the other: the same bits on any machine."""
    left = factors[: rows * rank].reshape(rows, rank)
    right = factors[rows * rank :].reshape(-1, rank)
    out[:] = 0
    with np.errstate(over="ignore", invalid="ignore"):
        for at in range(rank):
            out += np.multiply.outer(left[:, at], right[:, at])


Impl = LowRank
