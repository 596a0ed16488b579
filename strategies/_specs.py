"""From what a rule decides (bits per value, a share of the values, bytes) to a codec's spec.

One place, so that strategies which only choose a number are compared in the same codecs.
"""

import math

from strategies._offers import Offer

QUANTIZERS = {
    True: (
        Offer("ecq(1)", 1.003, 0.26),
        Offer("ecq(2)", 2.004, 0.073),
        Offer("ecq(3)", 3.006, 0.019),
        Offer("ecq(4)", 4.007, 0.0048),
        Offer("ecq(5)", 5.009, 0.0012),
        Offer("ecq(6)", 6.011, 3e-4),
        Offer("ecq(7)", 7.012, 7.5e-5),
        Offer("ecq(8)", 8.014, 1.9e-5),
        Offer("fp16", 16.0, 4.3e-8),
        Offer("none", 32.0, 0.0),
    ),
    False: (
        Offer("eden(1)", 1.005, 0.571),
        Offer("eden(2)", 2.005, 0.133),
        Offer("eden(3)", 3.005, 0.036),
        Offer("eden(4)", 4.005, 0.0096),
        Offer("int8(rounding=stochastic)", 8.062, 2.1e-4),
        Offer("fp16", 16.0, 4.3e-8),
        Offer("none", 32.0, 0.0),
    ),
}
"""From hard to light. With error feedback the least error at each number of bits; without it
unbiased, as the papers have it. Bits and error were measured on Laplace values with our codecs."""

VALUE_BITS = 8.06
"""Of int8, which carries the values that a sparsifier keeps."""
MIN_FRACTION = 0.001


def quantizer(bits: float, feedback: bool) -> Offer:
    """The hardest quantizer of at least ``bits`` bits per value; ``none`` beyond the last."""
    offers = QUANTIZERS[feedback]
    return next((offer for offer in offers if offer.bits >= bits), offers[-1])


def sparsifier(fraction: float) -> str:
    """Top-k with 8-bit values; the fraction is kept in [0.001, 1] and rounded down to 3 digits."""
    kept = min(1.0, max(MIN_FRACTION, fraction))
    digits = 2 - math.floor(math.log10(kept))
    # The small sum keeps a value with few digits from losing its last one.
    return f"topk({math.floor(kept * 10**digits + 1e-6) / 10**digits:.3g})|int8"


def sparsifier_bits(fraction: float) -> float:
    """Bits per parameter of ``sparsifier(fraction)``: values, and the entropy of which are kept."""
    rest = 1 - fraction
    index = -fraction * math.log2(fraction) - (rest * math.log2(rest) if rest > 0 else 0.0)
    return VALUE_BITS * fraction + index


def fraction_within(bits: float) -> float:
    """The largest fraction in [0.001, 1] that takes at most ``bits`` per parameter."""
    low, high = MIN_FRACTION, 1.0
    if sparsifier_bits(high) <= bits:
        return high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if sparsifier_bits(middle) <= bits else (low, middle)
    return low
