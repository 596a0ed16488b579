"""One flow on the server's link: what is left of it, and what holds it back.

Bits and rates are whole numbers here, so that their sums are exact.
"""

import math

from netem.rate import RateCurve

UNITS = 2.0**60
"""Bits and rates are whole numbers of this many units a bit.

Their sums are exact, so the order of simultaneous events leaves no trace, and a clock of work
that has run for years still resolves a flow of one bit.
"""

WIDEST_BPS = 2.0**100
"""What an infinite rate counts as."""

ROUNDING_FRACTION = 1e-10
"""Share of a flow that rounding may leave over; it must not have to wait out an outage."""


class Flow:
    """One flow; the shared link that it is on writes to it."""

    __slots__ = (
        "access",
        "change_s",
        "curve",
        "dregs",
        "due_s",
        "end",
        "left",
        "parked_s",
        "since_s",
    )

    curve: RateCurve
    dregs: int
    """So little may be left of it at its end."""
    access: int
    change_s: float
    """When ``access`` has to be looked up again."""
    end: int | None
    """The work at which it ends; None for a capped flow."""
    left: int
    """Of a capped flow, at ``since_s``; since then it runs at ``access``."""
    since_s: float
    parked_s: float
    """When it became a level flow: as long as that is now, it may go back as if it had not."""
    due_s: float
    """When to look at it: a capped flow may end, or ``access`` change."""

    def __init__(self, curve: RateCurve, dregs: int, access: int, change_s: float) -> None:
        self.curve = curve
        self.dregs = dregs
        self.access = access
        self.change_s = change_s
        self.end = None
        self.left = 0
        self.since_s = self.parked_s = self.due_s = -math.inf

    def copy(self) -> "Flow":
        """The same flow, to go its own way."""
        twin = Flow(self.curve, self.dregs, self.access, self.change_s)
        twin.end, twin.left, twin.since_s = self.end, self.left, self.since_s
        twin.parked_s, twin.due_s = self.parked_s, self.due_s
        return twin

    def left_at(self, now_s: float) -> int:
        """What is left of a capped flow."""
        left = self.left - int(self.access * (now_s - self.since_s))
        return left if left > 0 else 0

    def capped_due_s(self) -> float:
        """When a capped flow ends at its present access rate, or when that changes."""
        if self.left <= self.dregs:
            return self.since_s
        if self.access == 0:
            return self.change_s
        finish_s = self.since_s + float(self.left) / float(self.access)
        return finish_s if finish_s < self.change_s else self.change_s


def units(bits: float) -> int:
    """``bits``, or a rate in bit/s, as a whole number."""
    return int((bits if bits < WIDEST_BPS else WIDEST_BPS) * UNITS)
