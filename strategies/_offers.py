"""The codecs a controller may choose from: what each costs and what it loses.

Bits per parameter and squared error are for Laplace-like updates, measured with this project's
codecs (docs/codecs.md); sizes are replaced by what is seen on the wire as soon as it is seen.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Offer:
    """One codec, from light to hard in ``LADDER``."""

    spec: str
    bits: float
    """Bits per parameter on the wire, indices included."""
    nmse: float
    """Squared error over squared norm, without error feedback."""

    def gain(self, feedback: bool) -> float:
        """Loss decrease of a round relative to an exact update.

        delta^c with delta = 1 - NMSE: c = 0.9 without error feedback, and 0.1 with it, since what
        is dropped arrives later. Both exponents were fitted to rounds-to-target (our measurement).
        """
        return float((1 - self.nmse) ** (0.1 if feedback else 0.9))

    def size_bytes(self, parameters: int, overhead_bytes: float) -> float:
        """Expected bytes of a message."""
        return parameters * self.bits / 8 + overhead_bytes


LADDER = (
    Offer("none", 32.0, 0.0),
    Offer("fp16", 16.0, 1e-7),
    Offer("int8", 8.06, 1e-4),
    Offer("int4", 4.06, 0.032),
    Offer("topk(0.1)|int8", 1.28, 0.405),
    Offer("topk(0.05)|int8", 0.71, 0.57),
    Offer("topk(0.03)|int8", 0.44, 0.68),
    Offer("topk(0.01)|int8", 0.16, 0.838),
)
BY_SPEC: Mapping[str, Offer] = {offer.spec: offer for offer in LADDER}
