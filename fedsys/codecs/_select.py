"""Which values are the largest: an exact selection that looks at every value only once.

A threshold guessed from a sample leaves a few candidates, and only these are ranked exactly.
The sample changes the speed, never the result.
"""

import numpy as np

from fedsys.codecs._base import Index, chunks
from fedsys.types import F32

_SAMPLE = 1 << 16
_DENSE_FRACTION = 0.25
_TINIEST = 2.0**-149


def largest(x: F32, k: int) -> Index:
    """Ascending indices of the ``k`` values of largest magnitude; of equal ones the first.

    Fewer than ``k`` when fewer are different from zero: a zero need not be sent.
    """
    if k > _DENSE_FRACTION * x.size:
        candidates = np.flatnonzero(x)
    else:
        candidates = at_least(x, _guess(x, k))
        if candidates.size < k:
            candidates = np.flatnonzero(x)
    if candidates.size <= k:
        return candidates
    magnitude: F32 = np.abs(x[candidates])
    cut = np.partition(magnitude, magnitude.size - k)[magnitude.size - k]
    keep = magnitude > cut
    ties = np.flatnonzero(magnitude == cut)
    keep[ties[: k - np.count_nonzero(keep)]] = True
    chosen: Index = candidates[keep]
    return chosen


def largest_in_chunks(x: F32, k: int, chunk: int) -> Index:
    """Ascending indices of the ``k`` largest of each run of ``chunk`` values, as ``largest``."""
    whole = x.size // chunk * chunk
    found = []
    for part in chunks(whole, chunk * max(1, _SAMPLE // chunk)):
        rows = np.abs(x[part]).reshape(-1, chunk)
        cut = np.partition(rows, chunk - k, axis=1)[:, chunk - k, None]
        above = rows > cut
        ties = (rows == cut) & (cut > 0)
        room = k - np.count_nonzero(above, axis=1, keepdims=True)
        keep = above | (ties & (np.cumsum(ties, axis=1) <= room))
        found.append(np.flatnonzero(keep) + part.start)
    rest = x[whole:]
    if rest.size:
        found.append(largest(rest, -(-k * rest.size // chunk)) + whole)
    return np.concatenate(found) if found else np.zeros(0, np.intp)


def at_least(x: F32, threshold: float) -> Index:
    """Ascending indices of the values whose magnitude is not zero and reaches ``threshold``."""
    floor = np.float32(max(threshold, _TINIEST))
    parts = [np.flatnonzero(np.abs(x[p]) >= floor) + p.start for p in chunks(x.size)]
    return np.concatenate(parts) if parts else np.zeros(0, np.intp)


def _guess(x: F32, k: int) -> float:
    """A magnitude that, as a sample tells, somewhat more than ``k`` values reach."""
    sample = np.abs(x[:: max(1, x.size // _SAMPLE)])
    expected = k * sample.size / x.size
    rank = int(expected + 4 * np.sqrt(expected) + 2)
    if rank >= sample.size:
        return 0.0
    return float(np.partition(sample, sample.size - rank)[sample.size - rank])
