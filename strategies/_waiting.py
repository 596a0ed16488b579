"""How long to wait for the last of a cohort: against losing what comes too late."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedsys.types import ClientReport

KEPT = 100
"""Arrivals that are remembered."""
ENOUGH = 10
"""Arrivals below which a round waits for everybody within reason."""
NO_LIMIT = 4.0
FACTORS = (1.15, 1.3, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0)
"""Times the slowest prediction that a round may be given."""


@dataclass(frozen=True, slots=True)
class Punctuality:
    """Arrivals as shares of what was predicted for the slowest of their round."""

    ratios: tuple[float, ...] = ()

    wait_s: float = 0.0
    """What the last one takes beyond its transfers and training: until it asks for work."""

    def seen(self, reports: Sequence[ClientReport], last_s: float) -> "Punctuality":
        """After a round whose slowest client was expected to be done after ``last_s`` of work."""
        expected_s = max(last_s + self.wait_s, 1e-9)
        new = tuple(
            NO_LIMIT if report.arrival_s is None else report.arrival_s / expected_s
            for report in reports
        )
        arrivals = [r.arrival_s for r in reports if r.accepted and r.arrival_s is not None]
        waited_s = max(0.0, max(arrivals, default=last_s) - last_s)
        mixed_s = waited_s if not self.ratios else 0.5 * self.wait_s + 0.5 * waited_s
        return Punctuality((self.ratios + new)[-KEPT:], mixed_s)

    def factor(self, clients: int) -> float:
        """The deadline over the predicted end: most updates per second of waiting."""
        if len(self.ratios) < ENOUGH:
            return NO_LIMIT
        ratios = np.sort(np.array(self.ratios))
        return max(FACTORS, key=lambda factor: _worth(ratios, factor, clients))


def _worth(ratios: np.ndarray, factor: float, clients: int) -> float:
    """Square of the share in time, per expected length of the round.

    The square, because those left out are often the same ones, and the model would miss their data.
    """
    share = float(np.searchsorted(ratios, factor, side="right")) / len(ratios)
    ends = np.minimum(ratios, factor)
    # Chance that the slowest of the cohort is this arrival: powers of the distribution.
    steps = (np.arange(len(ends)) + 1) / len(ends)
    chance = np.diff(steps**clients, prepend=0.0)
    return share**2 / float(chance @ ends)
