"""Entropy-coded uniform quantizer with a dead zone: the fewest bytes for a squared error.

One step for the whole vector makes the slope of error against bits the same everywhere, which is
optimal (Gish and Pierce 1968, Asymptotically efficient quantizing; Sullivan 1996, Efficient
scalar quantization of exponential and Laplacian random variables).
"""

from dataclasses import dataclass

import numpy as np

from fedsys.codecs._base import Dense, Layout, Sparse, Update, chunks
from fedsys.codecs._bytes import Cursor, varint
from fedsys.codecs._check import check_number
from fedsys.codecs._entropy import SymbolReader, SymbolWriter
from fedsys.codecs._hash import new_seed, read_seed, stratified_index
from fedsys.codecs._indices import decode_index, encode_index
from fedsys.codecs._levels import LevelCode, Quantizer, sendable
from fedsys.codecs._rate import SortedSample
from fedsys.codecs._select import at_least
from fedsys.types import F32

_DENSE, _SPARSE = 0, 1
_SPARSE_FRACTION = 0.1
"""Below this share of nonzero levels, gaps between them cost less time than zeros, equal bits."""

_FINER_PASSES = 3
_FILLED_FRACTION, _AIM_FRACTION = 0.95, 0.98

_RUN = 1 << 16
"""Levels coded at a time; part of the wire format."""

_SAMPLE = 1 << 18
_TINY = 2.0**-90
_MAX_BITS = 8.0


@dataclass(frozen=True, slots=True)
class Ecq:
    """Send about ``bits`` bits per parameter, from 8 down to 0.03, at the least squared error.

    Values are divided by one step, rounded with a widened zero bin, entropy coded, and decoded
    to the mean of what was rounded to the same level. Within 0.26 bits of the rate-distortion
    bound for Gaussian values, closer at low rates. Short vectors may exceed ``bits`` by their
    code table (some ten bytes), and at least the largest value is always sent.
    """

    bits: float = 1.0

    def __post_init__(self) -> None:
        """Refuse bad parameters before anything starts."""
        check_number("ecq.bits", self.bits, 0, _MAX_BITS)

    def encode(self, x: F32, layout: Layout, rng: np.random.Generator) -> tuple[F32 | None, bytes]:
        """Mode and level code, then the levels; nothing at all for zeros."""
        top = max((float(np.abs(x[part]).max()) for part in chunks(x.size)), default=0.0)
        if top < _TINY:
            return None, b""
        sample = _sample(x, top, rng)
        ordered = SortedSample(np.abs(sample))
        quantizer, nonzero_fraction = _choose(ordered, self.bits, x.size)
        if nonzero_fraction > _SPARSE_FRACTION:
            return None, _encode_dense(x, top, sample, quantizer)
        return None, _fill(x, ordered, self.bits, _encode_sparse(x, quantizer))

    def value_count(self, side: memoryview, n: int) -> int:
        """No values follow."""
        return 0

    def decode(self, side: memoryview, values: F32 | None, n: int, layout: Layout) -> Update:
        """Levels at the means of what they stand for."""
        if not side:
            return Dense(np.zeros(n, np.float32))
        cursor = Cursor(side, "ecq")
        mode, code = cursor.varint(_SPARSE), LevelCode.read(cursor)
        return (_decode_sparse if mode == _SPARSE else _decode_dense)(cursor, code, n)


def _sample(x: F32, top: float, rng: np.random.Generator) -> F32:
    """All values or, of a long vector, one from each of many equal runs, and the largest."""
    if x.size <= _SAMPLE:
        return x
    seed = read_seed(memoryview(new_seed(rng)), "ecq")
    sample: F32 = x[stratified_index(seed, _SAMPLE, x.size)[0]]
    sample[0] = top
    return sample


def _choose(ordered: SortedSample, bits: float, n: int) -> tuple[Quantizer, float]:
    """The quantizer that meets ``bits``, code table included, and its share of nonzero levels."""
    trial = ordered.fit(bits)
    table_bits = 8 * (12 + 2 * trial.buckets)
    if table_bits > 0.005 * bits * n:
        trial = ordered.fit(max(bits - table_bits / n, bits / 2))
    return sendable(trial.quantizer), trial.nonzero_fraction


def _fill(x: F32, ordered: SortedSample, bits: float, body: bytes) -> bytes:
    """A finer sparse body where ``body`` leaves much of ``bits`` unused.

    Rate control reckons with large values at random places. In a model they lie together, whose
    index set is shorter; what that saves buys a finer step.
    """
    budget_bytes, last, tried = bits * x.size / 8, body, bits
    for _ in range(_FINER_PASSES):
        if len(body) >= _FILLED_FRACTION * budget_bytes:
            break
        tried = min(_MAX_BITS, tried * _AIM_FRACTION * budget_bytes / len(last))
        last = _encode_sparse(x, _choose(ordered, tried, x.size)[0])
        if len(body) < len(last) <= budget_bytes:
            body = last
    return body


def _encode_dense(x: F32, top: float, sample: F32, quantizer: Quantizer) -> bytes:
    """Runs go onto the coder's stack from the last to the first, to come off in order."""
    top_level = int(quantizer.levels(np.array([top], np.float32))[0])
    code = LevelCode.fit(quantizer, sample, quantizer.levels(sample), top_level)
    writer = SymbolWriter()
    for part in reversed(list(chunks(x.size, _RUN))):
        code.push(writer, quantizer.levels(x[part]))
    return varint(_DENSE) + code.pack() + writer.finish()


def _decode_dense(cursor: Cursor, code: LevelCode, n: int) -> Dense:
    reader = SymbolReader(cursor.rest(), "ecq")
    out = np.empty(n, np.float32)
    for part in chunks(n, _RUN):
        out[part] = code.pull(reader, part.stop - part.start)
    reader.end()
    return Dense(out)


def _encode_sparse(x: F32, quantizer: Quantizer) -> bytes:
    index = at_least(x, 0.999 * quantizer.step * (1 - quantizer.offset))
    levels = quantizer.levels(x[index])
    index, levels = index[levels != 0], levels[levels != 0]
    code = LevelCode.fit(quantizer, x[index], levels, int(np.abs(levels).max(initial=0)))
    places = encode_index(index, x.size)
    writer = SymbolWriter()
    code.push(writer, levels)
    counts = varint(index.size) + varint(len(places))
    return b"".join([varint(_SPARSE), code.pack(), counts, places, writer.finish()])


def _decode_sparse(cursor: Cursor, code: LevelCode, n: int) -> Sparse:
    k = cursor.varint(n)
    places = cursor.take(cursor.varint(1 << 62))
    reader = SymbolReader(cursor.rest(), "ecq")
    values = code.pull(reader, k)
    reader.end()
    return Sparse(decode_index(places, k, n), values, n)


Impl = Ecq
