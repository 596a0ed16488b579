"""How long to wait for the last of a cohort: against losing what comes too late."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedsys.types import ClientReport

KEPT = 100
"""Arrivals that are remembered."""
ENOUGH = 10
"""Arrivals below which a round waits for everybody within reason."""
NO_LIMIT = 4.0
FACTORS = (1.15, 1.3, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0)
"""Times the slowest prediction that a round may be given."""
DOUBT = 0.1
"""Made-up replies that come between any two factors, and nine times as many that do not: a wait
that was not tried for long is tried again where many are missing."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """When a reply came, over what was predicted for the slowest of its round."""

    ratio: float
    came: bool = True
    """False: it had not come when the round closed, which was then."""


@dataclass(frozen=True, slots=True)
class Punctuality:
    """What is known of arrivals."""

    arrivals: tuple[Arrival, ...] = ()

    wait_s: float = 0.0
    """What the last one takes beyond its transfers and training: until it asks for work."""
    answering: float = 1.0
    """Share of those asked who answered before the round closed."""

    def seen(
        self, reports: Sequence[ClientReport], last_s: float, deadline_s: float | None = None
    ) -> "Punctuality":
        """After a round whose slowest client was expected to be done after ``last_s`` of work."""
        expected_s = max(last_s + self.wait_s, 1e-9)
        closed = NO_LIMIT if deadline_s is None else deadline_s / expected_s
        in_time_s = [r.arrival_s for r in reports if r.accepted and r.arrival_s is not None]
        missing = sum(not report.accepted for report in reports)
        new = [Arrival(arrival_s / expected_s) for arrival_s in in_time_s]
        new += [Arrival(closed, came=False)] * missing
        arrivals = (*self.arrivals, *new)[-KEPT:]
        # Where nobody came in time, twice the time is the next guess.
        none_s = last_s if deadline_s is None else 2 * deadline_s
        waited_s = max(0.0, max(in_time_s, default=none_s) - last_s)
        mixed_s = waited_s if not self.arrivals else 0.5 * self.wait_s + 0.5 * waited_s
        came = sum(one.came for one in arrivals)
        return Punctuality(arrivals, mixed_s, max(1, came) / max(1, len(arrivals)))

    def factor(self, clients: int) -> float:
        """The deadline over the predicted end: most updates per second of waiting.

        That is the square of the share in time, per expected length of the round. The square,
        because those left out are often the same ones, and the model would miss their data.
        """
        if len(self.arrivals) < ENOUGH:
            return NO_LIMIT
        best, most = NO_LIMIT, 0.0
        before, share, everybody, ended_s = 0.0, 0.0, 0.0, 0.0
        for factor in FACTORS:
            share += (1 - share) * self._coming(before, factor)
            # Where everybody comes before the deadline, the round ends with the last of them.
            ended_s += factor * (share**clients - everybody)
            everybody = share**clients
            worth = share**2 / (ended_s + factor * (1 - everybody))
            if worth > most:
                best, most = factor, worth
            before = factor
        return best

    def _coming(self, after: float, until: float) -> float:
        """Chance that who has not come at ``after`` does by ``until`` (Kaplan and Meier, 1958)."""
        later = [one for one in self.arrivals if one.ratio > after]
        came = sum(one.came and one.ratio <= until for one in later)
        waited_for = sum(one.came or one.ratio >= until for one in later)
        return (came + DOUBT) / (waited_for + 10 * DOUBT)
