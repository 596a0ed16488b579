"""Several small codes in one byte: 2 of 16 kinds, 4 of 4, 5 of 3 or 8 of 2; blocks of them."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedsys.codecs._blocks import U16, Blocks, block_rows, read_blocks
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


def pack_blocks(
    x: F32, block: int, packing: Packing, quantise_rows: Callable[[F32], tuple[U16, U8]]
) -> bytes:
    """Scales bfloat16 [blocks], then the packed codes of ``x`` float32 [n].

    ``quantise_rows`` gives scales [blocks] and codes [blocks, length] of blocks [blocks, length].
    """
    codes = np.empty(x.size, np.uint8)
    scales = [np.zeros(0, "<u2")]
    for part, rows in block_rows(x, block):
        short, codes_of_rows = quantise_rows(rows)
        codes[part] = codes_of_rows.reshape(-1)
        scales.append(short)
    return np.concatenate(scales).tobytes() + packing.pack(codes)


def unpack_blocks(
    side: memoryview, n: int, block: int, packing: Packing, meaning: F32, what: str
) -> Blocks:
    """``n`` values from scales and packed codes, with every length checked; WireError."""
    scale, tail = read_blocks(side, n, block, packing.n_bytes(n), what)
    return Blocks(n, block, scale, packing.expander(tail, meaning, what))
