"""Reads the IDX files of the MNIST family, packed with gzip or not.

Format: two zero bytes, a type code (8: unsigned byte), the number of dimensions, each dimension
as a big-endian 32-bit number, then the values.
"""

import gzip
import math
import zlib
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from fedsys.errors import ConfigError
from fedsys.types import U8

_UNSIGNED_BYTE = 8
_GZIP_MAGIC = b"\x1f\x8b"
_MAX_BYTES = 1 << 31


def read_idx(path: Path, ndim: int) -> U8:
    """The array of unsigned bytes in ``path``, which must have ``ndim`` dimensions.

    Raises ConfigError for any other file, before it has read more than the header promises.
    """
    try:
        with path.open("rb") as plain:
            packed = plain.read(2) == _GZIP_MAGIC
            plain.seek(0)
            if packed:
                with gzip.GzipFile(fileobj=plain) as unpacked:
                    return _read(cast(BinaryIO, unpacked), path, ndim)
            return _read(plain, path, ndim)
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"{path}: cannot be read as IDX: {error}") from error


def _read(file: BinaryIO, path: Path, ndim: int) -> U8:
    magic = file.read(4)
    if magic != bytes([0, 0, _UNSIGNED_BYTE, ndim]):
        raise ConfigError(
            f"{path}: starts with 0x{magic.hex()}, not an IDX file of bytes in {ndim} dimensions"
        )
    sizes = file.read(4 * ndim)
    if len(sizes) != 4 * ndim:
        raise ConfigError(f"{path}: ends within its header")
    shape = [int(size) for size in np.frombuffer(sizes, ">u4")]
    n_bytes = math.prod(shape)
    if n_bytes > _MAX_BYTES:
        raise ConfigError(f"{path}: its header promises {n_bytes} bytes, at most {_MAX_BYTES}")
    values = file.read(n_bytes + 1)
    if len(values) != n_bytes:
        found = "more" if len(values) > n_bytes else len(values)
        raise ConfigError(f"{path}: its header {shape} promises {n_bytes} bytes, it has {found}")
    return np.frombuffer(bytearray(values), np.uint8).reshape(shape)
