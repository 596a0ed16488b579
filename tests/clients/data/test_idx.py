"""IDX files are read exactly or refused in one line."""

import gzip
import struct

import numpy as np
import pytest

from clients.data.idx import read_idx
from fedsys.errors import ConfigError

PIXELS = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)


def idx_bytes(array):
    sizes = struct.pack(f">{array.ndim}I", *array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_reads_plain_and_packed_files(tmp_path, pack):
    path = tmp_path / "images"
    path.write_bytes(pack(idx_bytes(PIXELS)))

    np.testing.assert_array_equal(read_idx(path, ndim=3), PIXELS)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an IDX file"),
        (b"\x00\x00\x0d\x03", "not an IDX file"),
        (idx_bytes(PIXELS.reshape(-1)), "in 3 dimensions"),
        (idx_bytes(PIXELS)[:9], "ends within its header"),
        (idx_bytes(PIXELS)[:-1], "promises 24 bytes, it has 23"),
        (idx_bytes(PIXELS) + b"\x00", "promises 24 bytes, it has more"),
        (bytes([0, 0, 8, 3]) + b"\xff" * 12, "at most"),
        (gzip.compress(idx_bytes(PIXELS), mtime=0)[:-12], "cannot be read as IDX"),
        (b"\x1f\x8bnonsense", "cannot be read as IDX"),
    ],
)
def test_anything_else_is_refused(tmp_path, content, message):
    path = tmp_path / "images"
    path.write_bytes(content)

    with pytest.raises(ConfigError, match=message):
        read_idx(path, ndim=3)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="nowhere"):
        read_idx(tmp_path / "nowhere", ndim=3)
