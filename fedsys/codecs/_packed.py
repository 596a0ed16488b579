"""Several small codes in one byte: 2 of 16 kinds, 4 of 4, 5 of 3 or 8 of 2."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedsys.errors import WireError
from fedsys.types import F32, U8


@dataclass(frozen=True, slots=True)
class Packing:
    """``per_byte`` codes of ``kinds`` kinds each make a byte, the first one counting least."""

    kinds: int
    per_byte: int

    def n_bytes(self, n: int) -> int:
        """Bytes that ``n`` codes take."""
        return -(-n // self.per_byte)

    def pack(self, codes: U8) -> bytes:
        """Codes uint8 [n] below ``kinds`` as bytes; the last byte is filled up with zeros."""
        short = -codes.size % self.per_byte
        places = (np.pad(codes, (0, short)) if short else codes).reshape(-1, self.per_byte)
        if self.kinds == 2:
            return bytes(np.packbits(places, bitorder="little").tobytes())
        out = places[:, -1].copy()
        for at in range(self.per_byte - 2, -1, -1):
            out *= self.kinds
            out += places[:, at]
        return out.tobytes()

    def expander(self, data: memoryview, meaning: F32, what: str) -> Callable[[int, int], F32]:
        """A function that gives the ``meaning`` of codes start..stop as float32.

        ``start`` must be a multiple of ``per_byte``. Refuses bytes that no codes make.
        """
        packed = np.frombuffer(data, np.uint8)
        if packed.size and int(packed.max()) >= self.kinds**self.per_byte:
            raise WireError(f"{what}: a byte holds no codes")
        table = meaning[self._digits()]

        def expand(start: int, stop: int) -> F32:
            first = start // self.per_byte
            part = packed[first : first + self.n_bytes(stop - start)]
            values: F32 = np.take(table, part, axis=0).reshape(-1)[: stop - start]
            return values

        return expand

    def _digits(self) -> NDArray[np.intp]:
        """The codes that each byte value stands for."""
        every = np.arange(self.kinds**self.per_byte)[:, None]
        return every // self.kinds ** np.arange(self.per_byte) % self.kinds
