"""Python's search for garbage in cycles, as rare as a program of many small objects needs it."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_THRESHOLDS = (50_000, 20, 100)
"""At 700, its default, a round of a thousand clients spends a third of its time searching."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Search seldom, and never through what exists already, until the end of the block."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
