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

    def size_bytes(self, parameters: int, overhead_bytes: float) -> float:
        """Expected bytes of a message."""
        return parameters * self.bits / 8 + overhead_bytes


LADDER = (
    Offer("none", 32.0, 0.0),
    Offer("fp16", 16.0, 1e-7),
    Offer("int8", 8.06, 1e-4),
    Offer("int4", 4.06, 0.032),
    Offer("ecq(2)", 2.0, 0.073),
    Offer("ecq(1)", 1.0, 0.261),
    Offer("ecq(0.5)", 0.5, 0.486),
    Offer("ecq(0.25)", 0.25, 0.675),
    Offer("ecq(0.1)", 0.1, 0.837),
)
BY_SPEC: Mapping[str, Offer] = {offer.spec: offer for offer in LADDER}
