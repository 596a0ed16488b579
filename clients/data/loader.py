"""Which examples each local step sees: shuffled epochs, cut into batches, grouped into steps."""

import math
from collections.abc import Iterator
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


def _batch_starts(n: int, batch_size: int) -> list[int]:
    starts = list(range(0, n, batch_size))
    if batch_size > 1 and len(starts) > 1 and n - starts[-1] == 1:
        starts.pop()
    return starts
