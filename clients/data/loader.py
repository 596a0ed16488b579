"""Which examples each local step sees: shuffled epochs, cut into batches, grouped into steps."""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np

from fedsys.types import I64

Step = list[I64]
"""Batches of example indices whose gradients make one local step."""


def steps_per_epoch(n: int, batch_size: int, accumulation_steps: int = 1) -> int:
    """Local steps in which a client with ``n`` examples sees each of them once."""
    return math.ceil(len(_batch_starts(n, batch_size)) / accumulation_steps)


def local_steps(
    n: int, batch_size: int, accumulation_steps: int, count: int, rng: np.random.Generator
) -> Iterator[Step]:
    """Exactly ``count`` local steps over ``n`` examples, reshuffled whenever all were seen.

    The last batch of an epoch may be short. A single example left over joins the batch before,
    because batch normalisation cannot train on one.
    """
    starts = _batch_starts(n, batch_size)
    per_epoch = steps_per_epoch(n, batch_size, accumulation_steps)
    for done in range(0, count, per_epoch):
        order = rng.permutation(n)
        batches = [order[a:b] for a, b in pairwise([*starts, n])]
        for step in range(min(per_epoch, count - done)):
            yield batches[step * accumulation_steps : (step + 1) * accumulation_steps]


def joined_steps(
    n: int, batch_size: int, accumulation_steps: int, count: int, rng: np.random.Generator
) -> tuple[I64, Sequence[int]]:
    """What ``local_steps`` gives end to end, and how many examples each step has."""
    sizes = _step_sizes(n, batch_size, accumulation_steps)
    if count == len(sizes):
        return rng.permutation(n), sizes
    epochs = -(-count // len(sizes))
    order = np.concatenate([rng.permutation(n) for _ in range(epochs)])
    taken = (sizes * epochs)[:count]
    return order[: sum(taken)], taken


@lru_cache(maxsize=1024)
def _step_sizes(n: int, batch_size: int, accumulation_steps: int) -> tuple[int, ...]:
    """Examples of each step of one epoch."""
    ends = [*_batch_starts(n, batch_size)[::accumulation_steps], n]
    return tuple(end - start for start, end in pairwise(ends))


def _batch_starts(n: int, batch_size: int) -> list[int]:
    starts = list(range(0, n, batch_size))
    if batch_size > 1 and len(starts) > 1 and n - starts[-1] == 1:
        starts.pop()
    return starts
