"""What other public software puts on the wire, as bits per parameter and NMSE.

Written from their published code, so that they run here on the same data: hivemind's
Uniform8BitQuantization, the 4-bit normal-float blocks that NVFlare's quantizer takes from
bitsandbytes, naive top-k with 32-bit indices, and a general compressor on floats and on int8.
"""

import zlib
from collections.abc import Callable

import numpy as np

from fedsys.codecs._chain import parse
from fedsys.rng import rng_for

NF4 = np.array(
    [
        -1.0,
        -0.6961928,
        -0.5250731,
        -0.3949175,
        -0.2844414,
        -0.1847734,
        -0.0910500,
        0.0,
        0.0795803,
        0.1609302,
        0.2461123,
        0.3379152,
        0.4407098,
        0.5626170,
        0.7229568,
        1.0,
    ],
    np.float32,
)
_NF4_BLOCK = 64


def _nmse(x: np.ndarray, y: np.ndarray) -> float:
    wide = x.astype(np.float64)
    return float(((wide - y) ** 2).sum() / (wide**2).sum())


def uniform8(x: np.ndarray) -> tuple[float, float]:
    """256 equal bins over the mean plus or minus 6 standard deviations, decoded to bin means."""
    low, width = x.mean() - 6 * x.std(), 12 * x.std() / 256
    code = np.clip(((x - low) / width).astype(np.int64), 0, 255)
    counts = np.maximum(np.bincount(code, minlength=256), 1)
    book = np.bincount(code, weights=x, minlength=256) / counts
    return 8 + 32 * 256 / x.size, _nmse(x, book[code])


def nf4(x: np.ndarray) -> tuple[float, float]:
    """Normal-float values in blocks of 64 with a float32 scale each."""
    rows = np.pad(x, (0, -x.size % _NF4_BLOCK)).reshape(-1, _NF4_BLOCK)
    scale = np.abs(rows).max(axis=1, keepdims=True)
    unit = rows / np.where(scale > 0, scale, 1)
    code = np.searchsorted((NF4[1:] + NF4[:-1]) / 2, unit)
    return 4 + 32 / _NF4_BLOCK, _nmse(x, (NF4[code] * scale).reshape(-1)[: x.size])


def naive_topk(x: np.ndarray) -> tuple[float, float]:
    """The largest tenth as int32 index and float32 value."""
    k = x.size // 10
    kept = np.argpartition(np.abs(x), -k)[-k:]
    y = np.zeros_like(x)
    y[kept] = x[kept]
    return 64 * k / x.size, _nmse(x, y)


def zlib_on_int8(x: np.ndarray) -> tuple[float, float]:
    """Our own int8 behind a general compressor."""
    codec, layout = parse("int8"), ((x.size,),)
    body = codec.encode(x, layout, rng_for(0))
    y = codec.decode(body, x.size, layout).dense()
    return 8 * len(zlib.compress(body, 6)) / x.size, _nmse(x, y)


PEERS: dict[str, Callable[[np.ndarray], tuple[float, float]]] = {
    "hivemind uniform8": uniform8,
    "nf4 block 64": nf4,
    "naive top 10 %": naive_topk,
    "zlib on int8": zlib_on_int8,
}
