"""A set of indices as bytes: gaps between neighbours, entropy coded.

Gaps of a random set are geometric, which needs no table (mode 0). A set with structure, such as
clusters, sends its own histogram of gap sizes (mode 1) when that comes out shorter.
"""

import numpy as np

from fedsys.codecs._base import Index, Sparse
from fedsys.codecs._bytes import Cursor, varint
from fedsys.codecs._entropy import (
    SymbolReader,
    SymbolWriter,
    bucket_of,
    bucket_start,
    cost_bits,
    model_of,
    pull_low_bits,
    push_low_bits,
    table_of,
    weights_of,
)
from fedsys.errors import WireError
from fedsys.types import F32, F64, I64

_MANTISSA = 2
_GEOMETRIC, _TABLE = 0, 1
_MAX_BUCKETS = 256


def write_set(index: Index, n: int) -> bytes:
    """How many indices there are as a varint, then the set itself."""
    return varint(index.size) + encode_index(index, n)


def set_size(side: memoryview, n: int, what: str) -> int:
    """How many indices the untrusted bytes of ``write_set`` announce, at most ``n``."""
    return Cursor(side, what).varint(n)


def read_set(side: memoryview, values: F32 | None, n: int, what: str) -> Sparse:
    """The set from the untrusted bytes of ``write_set``, with one value for each index."""
    cursor = Cursor(side, what)
    k = cursor.varint(n)
    if values is None or values.size != k:
        raise WireError(f"{what}: {k} indices without as many values")
    return Sparse(decode_index(cursor.rest(), k, n), values, n)


def encode_index(index: Index, n: int) -> bytes:
    """Ascending ``index`` within 0..n-1, without repetition, as bytes; empty for an empty set."""
    if not index.size:
        return b""
    gaps = np.diff(index, prepend=-1).astype(np.int64) - 1
    bucket = bucket_of(gaps, _MANTISSA)
    counts = np.bincount(bucket).astype(np.int64)
    geometric = _geometric(index.size, n)
    table = table_of(counts)
    head = varint(_TABLE) + varint(len(table)) + table
    weights = weights_of(table)
    by_table = cost_bits(counts, weights) + 8 * len(head)
    if cost_bits(counts, geometric[: counts.size]) <= by_table:
        head, weights = varint(_GEOMETRIC), geometric
    writer = SymbolWriter()
    push_low_bits(writer, gaps, bucket, _MANTISSA)
    writer.push(bucket, model_of(weights))
    return head + writer.finish()


def decode_index(data: memoryview, k: int, n: int) -> Index:
    """The set of ``k`` indices below ``n`` from untrusted bytes."""
    cursor = Cursor(data, "index")
    if not k:
        cursor.end()
        return np.zeros(0, np.intp)
    if cursor.varint(_TABLE) == _GEOMETRIC:
        weights = _geometric(k, n)
    else:
        weights = weights_of(cursor.take(cursor.varint(_MAX_BUCKETS)))
    reader = SymbolReader(cursor.rest(), "index")
    bucket = reader.pull(k, model_of(weights))
    limit = int(bucket_of(np.array([n]), _MANTISSA)[0])
    if int(bucket.max()) > limit:
        raise WireError(f"index: a gap is wider than the {n} values there are")
    gaps = pull_low_bits(reader, bucket, _MANTISSA)
    reader.end()
    index = np.cumsum(gaps + 1) - 1
    if int(index[-1]) >= n:
        raise WireError(f"index: {int(index[-1])} is beyond the {n} values there are")
    return index.astype(np.intp, copy=False)


def _geometric(k: int, n: int) -> F64:
    """Probability of each gap bucket when ``k`` of ``n`` indices were drawn at random.

    Powers come from multiplications in a fixed order only, because a library's power function
    may round differently on the machine that decodes.
    """
    last = int(bucket_of(np.array([n - k]), _MANTISSA)[0])
    edges = bucket_start(np.arange(last + 2), _MANTISSA)
    return -np.diff(_power((n - k) / n, edges))


def _power(base: float, exponents: I64) -> F64:
    """``base`` to each non-negative exponent, by repeated squaring from the lowest bit up."""
    result = np.ones(exponents.size)
    square = base
    for bit in range(int(exponents.max()).bit_length()):
        result[exponents >> bit & 1 == 1] *= square
        square *= square
    return result
