"""What the rounds so far show of how a task is trained: see ``fedsys.progress`` for the rule.

S is three times the steps in which a client's own loss falls by a factor e, read off its first and
its mean loss, at its most: later on clients also fit again what others' rounds took from their own
data, in ever fewer steps, which tells nothing about the common model. D is read off how far updates
agree.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedsys.progress import DISAGREEMENT, REACH_STEPS, rounds_needed, stale_weight
from fedsys.types import ClientReport, RoundRecord
from strategies._offers import BY_SPEC, Offer
from strategies._signals import weighted

REACH_DECAYS = 3.0
SHAPE = -0.8
"""Shift of the logit of a quantizer's error from that on Laplace values: real updates have more
weight in few values, which is to its advantage."""
_MAX_RATIO = 0.97
"""Losses nearer to each other than this are not told apart."""
_REACH_RANGE = (4.0, 2000.0)
_DISAGREEMENT_RANGE = (0.5, 20.0)


@dataclass(frozen=True, slots=True)
class Progress:
    """What is known of a task's training; what is new is mixed with what was known."""

    reach_steps: float = REACH_STEPS
    has_seen_reach: bool = False
    """From the first sight on ``reach_steps`` only grows."""
    disagreement: float = DISAGREEMENT
    shape: float = SHAPE

    def nmse(self, offer: Offer) -> float:
        """Error of a codec on this task's updates; their mean is taken for Laplace values."""
        if not offer.spec.startswith("ecq") or not 0 < offer.nmse < 1:
            return offer.nmse
        return 1 / (1 + math.exp(-_logit(offer.nmse) - self.shape))

    def rounds(
        self,
        local_steps: int,
        up: Offer,
        down: Offer,
        *,
        clients: float,
        gap: float = 1.0,
        drawn: float = 1.0,
        feedback: bool = True,
    ) -> float:
        """Rounds that this task needs; see ``rounds_needed``."""
        return rounds_needed(
            local_steps,
            up_nmse=self.nmse(up),
            down_nmse=down.nmse,
            clients=clients,
            gap=gap,
            drawn=drawn,
            feedback=feedback,
            reach_steps=self.reach_steps,
            disagreement=self.disagreement,
        )

    def seen(self, record: RoundRecord) -> "Progress":
        """What is known after a round."""
        reports = [report for report in record.reports if report.accepted]
        uplink = {client.node_id: client.uplink for client in record.plan.clients}
        reach_steps = self._reach(reports)
        return replace(
            self,
            reach_steps=self.reach_steps if reach_steps is None else reach_steps,
            has_seen_reach=self.has_seen_reach or reach_steps is not None,
            disagreement=self._disagreement(record, reports),
            shape=self._shape(
                [(uplink[r.node_id], r.nmse) for r in reports if r.node_id in uplink]
            ),
        )

    def _reach(self, reports: Sequence[ClientReport]) -> float | None:
        both = [r for r in reports if r.first_loss and r.train_loss and r.local_steps > 1]
        first, mean, steps = (
            weighted((r.examples, getattr(r, name)) for r in both)
            for name in ("first_loss", "train_loss", "local_steps")
        )
        if not first or not mean or not steps or mean >= first:
            return None
        low, high = _REACH_RANGE
        found = REACH_DECAYS * decay_steps(mean / first, steps)
        mixed = math.sqrt(self.reach_steps * min(high, max(low, found)))
        return max(self.reach_steps, mixed) if self.has_seen_reach else mixed

    def _disagreement(self, record: RoundRecord, reports: Sequence[ClientReport]) -> float:
        if record.agreement is None or len(reports) < 2:
            return self.disagreement
        low, high = _DISAGREEMENT_RANGE
        shared = record.agreement - 1 / _equal_clients(reports)
        found = (1 - record.agreement) / shared if shared > 0 else high
        return math.sqrt(self.disagreement * min(high, max(low, found)))

    def _shape(self, sent: Sequence[tuple[str, float | None]]) -> float:
        shifts = [
            _logit(nmse) - _logit(BY_SPEC[spec].nmse)
            for spec, nmse in sent
            if nmse is not None and 0 < nmse < 1 and spec.startswith("ecq") and spec in BY_SPEC
        ]
        return 0.5 * self.shape + 0.5 * float(np.median(shifts)) if shifts else self.shape


def decay_steps(ratio: float, steps: float) -> float:
    """Steps in which a loss falls by a factor e, if its mean over ``steps`` is ``ratio`` of it.

    The mean of exp(-t / tau) over t in [0, steps] is (1 - exp(-x)) / x with x = steps / tau.
    """
    low, high = 1e-3, 1e3
    ratio = min(ratio, _MAX_RATIO)
    for _ in range(40):
        middle = math.sqrt(low * high)
        if (1 - math.exp(-middle)) / middle > ratio:
            low = middle
        else:
            high = middle
    return steps / low


def _equal_clients(reports: Sequence[ClientReport]) -> float:
    """How many clients of equal examples would leave as much of what updates differ in.

    (sum w)^2 / sum w^2, with w what the examples of each count for (Kish 1965).
    """
    weights = [report.examples * stale_weight(report.staleness) for report in reports]
    return sum(weights) ** 2 / sum(one * one for one in weights)


def _logit(share: float) -> float:
    return math.log(share / (1 - share))
