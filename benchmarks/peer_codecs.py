"""What other public software puts on the wire, as bits per parameter and NMSE.

Written anew from what they publish, so that they run here on the same data without installing them:

- NVFlare's message quantizer (docs: "Message Quantization"): a cast to half precision, or the
  bitsandbytes formats it calls, each with a float32 scale a block and its code book once:
  dynamic 8-bit in blocks of 4096 (Dettmers 2016, arXiv 1511.04561), fp4 and nf4 in blocks of 64.
- hivemind's UNIFORM_8BIT (256 bins over six standard deviations) and QUANTILE_8BIT (256 bins of
  equal count), both decoded to the mean of each bin.
- Top-k as most code has it, with an int32 index and a float32 value, and a general compressor.
"""

import zlib
from collections.abc import Callable

import numpy as np

from fedsys.codecs._chain import parse
from fedsys.codecs._measure import measure
from fedsys.rng import rng_for

Peer = Callable[[np.ndarray], tuple[float, float]]

_SCALE_BITS = 32
_DYNAMIC_BLOCK = 4096
_FOUR_BIT_BLOCK = 64
_BINS = 256
_ZSTD_LEVEL = 3

FP4 = np.array([0, 0.0625, 2, 3, 4, 6, 8, 12]) / 12
NF4 = np.array(
    [
        *(-1.0, -0.6961928, -0.5250731, -0.3949175, -0.2844414, -0.1847734, -0.0910500, 0.0),
        *(0.0795803, 0.1609302, 0.2461123, 0.3379152, 0.4407098, 0.5626170, 0.7229568, 1.0),
    ]
)


def dynamic_map() -> np.ndarray:
    """The 256 values of the dynamic 8-bit type: a decimal exponent, then a linear fraction."""
    positive = []
    for exponent in range(7):
        edges = np.linspace(0.1, 1, 2**exponent + 1)
        positive.append(10.0 ** (exponent - 6) * (edges[1:] + edges[:-1]) / 2)
    values = np.concatenate(positive)
    return np.sort(np.concatenate([values, -values, [0.0, 1.0]]))


def half(x: np.ndarray) -> tuple[float, float]:
    """A plain cast to float16."""
    return 16, _nmse(x, x.astype(np.float16).astype(np.float32))


def dynamic8(x: np.ndarray) -> tuple[float, float]:
    """The dynamic 8-bit type, blockwise."""
    return _book(x, dynamic_map(), _DYNAMIC_BLOCK, 8)


def fp4(x: np.ndarray) -> tuple[float, float]:
    """Four-bit floats, blockwise."""
    return _book(x, np.unique(np.concatenate([FP4, -FP4])), _FOUR_BIT_BLOCK, 4)


def nf4(x: np.ndarray) -> tuple[float, float]:
    """Four-bit quantiles of the normal distribution, blockwise."""
    return _book(x, NF4, _FOUR_BIT_BLOCK, 4)


def uniform8(x: np.ndarray) -> tuple[float, float]:
    """256 equal bins around the mean, six standard deviations wide in all."""
    code = np.rint((x - x.mean()) / (6 * x.std(ddof=1) / _BINS)) + _BINS // 2
    return _bins(x, np.clip(code, 0, _BINS - 1).astype(np.intp))


def quantile8(x: np.ndarray) -> tuple[float, float]:
    """256 bins of equal count."""
    borders = np.quantile(x, np.arange(1, _BINS) / _BINS)
    return _bins(x, np.searchsorted(borders, x))


def naive_topk(x: np.ndarray) -> tuple[float, float]:
    """The largest tenth as int32 index and float32 value."""
    k = x.size // 10
    kept = np.argpartition(np.abs(x), -k)[-k:]
    y = np.zeros_like(x)
    y[kept] = x[kept]
    return 64 * k / x.size, _nmse(x, y)


def _compressed_int8(compress: Callable[[bytes], bytes]) -> Peer:
    """Our own int8 behind a general compressor."""

    def peer(x: np.ndarray) -> tuple[float, float]:
        codec, layout = parse("int8"), ((x.size,),)
        body = codec.encode(x, layout, rng_for(0))
        return 8 * len(compress(body)) / x.size, measure(codec, x, layout, rng_for(0)).nmse

    return peer


PEERS: dict[str, Peer] = {
    "NVFlare float16": half,
    "NVFlare blockwise8": dynamic8,
    "NVFlare float4": fp4,
    "NVFlare normfloat4": nf4,
    "hivemind uniform8": uniform8,
    "hivemind quantile8": quantile8,
    "top 10 %, int32 + fp32": naive_topk,
    "int8, then zlib": _compressed_int8(lambda body: zlib.compress(body, 6)),
}

SKIPPED: dict[str, str] = {}
"""Peers that cannot run here, and why."""

try:
    import zstandard
except ImportError:
    SKIPPED["zstd"] = "skipped: not installed (pip install -e .[bench])"
else:
    _zstd = zstandard.ZstdCompressor(level=_ZSTD_LEVEL)
    PEERS["int8, then zstd"] = _compressed_int8(_zstd.compress)
    PEERS["zstd on float32"] = lambda x: (8 * len(_zstd.compress(x.tobytes())) / x.size, 0.0)


def _nmse(x: np.ndarray, y: np.ndarray) -> float:
    wide = x.astype(np.float64)
    return float(((wide - y) ** 2).sum() / (wide**2).sum())


def _book(x: np.ndarray, book: np.ndarray, block: int, bits: int) -> tuple[float, float]:
    """Each block over its largest magnitude, to the nearest entry of an ascending code book."""
    rows = np.pad(x, (0, -x.size % block)).reshape(-1, block)
    scale = np.abs(rows).max(axis=1, keepdims=True)
    code = np.searchsorted((book[1:] + book[:-1]) / 2, rows / np.where(scale > 0, scale, 1))
    sent_bits = bits * x.size + _SCALE_BITS * (len(rows) + 2**bits)
    return sent_bits / x.size, _nmse(x, (book[code] * scale).reshape(-1)[: x.size])


def _bins(x: np.ndarray, code: np.ndarray) -> tuple[float, float]:
    """Each bin decoded to the mean of its values, which are sent as float32."""
    counts = np.maximum(np.bincount(code, minlength=_BINS), 1)
    means = np.bincount(code, weights=x, minlength=_BINS) / counts
    return 8 + 32 * _BINS / x.size, _nmse(x, means[code])
