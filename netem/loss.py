"""Which packets a direction loses: Gilbert's chain, drawn as gaps and runs and not per packet.

One mapping for every way of enforcing a link (Gilbert, "Capacity of a burst-noise channel",
1960): in the bad state every packet is lost, in the good state none.
"""

from collections.abc import Iterator

import numpy as np

_BLOCK = 64
"""Runs drawn at once; a transfer seldom needs more."""


def loss_chain(loss_fraction: float, burst_packets: float) -> tuple[float, float]:
    """Chance that a packet after a kept one is lost, and that one after a lost one is kept.

    The second, bad to good, is 1 / burst; the first, good to bad, is what makes the stationary
    loss ``loss_fraction``. Independent losses come in bursts of 1 / (1 - loss) already, so a
    shorter burst than that means independent losses.
    """
    ends = min(1 - loss_fraction, 1 / burst_packets)
    return ends * loss_fraction / (1 - loss_fraction), ends


def loss_runs(
    rng: np.random.Generator, loss_fraction: float, burst_packets: float
) -> Iterator[tuple[int, int]]:
    """(first, after): packets first to after - 1 are lost; ascending, and without an end.

    Packets count from 0, the first of which follows a kept one. Each loss costs a draw, the
    packets between them nothing.
    """
    begins, ends = loss_chain(loss_fraction, burst_packets)
    after = 0
    while True:
        gaps = rng.geometric(begins, _BLOCK).tolist()
        runs = rng.geometric(ends, _BLOCK).tolist()
        for gap, run in zip(gaps, runs, strict=True):
            first = after + gap - 1
            after = first + run
            yield first, after
            after += 1  # the packet that ended the run was kept
