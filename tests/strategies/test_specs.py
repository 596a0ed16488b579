"""Bits and shares become specs that exist and cost what the table says, never more than asked."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsys.codecs._chain import parse
from fedsys.codecs._measure import measure
from strategies._specs import (
    MIN_FRACTION,
    QUANTIZERS,
    fraction_within,
    quantizer,
    sparsifier,
    sparsifier_bits,
)

N = 1 << 15
LAPLACE = np.random.default_rng(5).laplace(size=N).astype(np.float32)


def measured(spec):
    found = measure(parse(spec), LAPLACE, ((N,),), np.random.default_rng(6))
    return 8 * found.body_bytes / N, found.nmse


@pytest.mark.parametrize("feedback", [True, False])
def test_the_quantizers_cost_and_lose_what_the_table_says(feedback):
    for offer in QUANTIZERS[feedback]:
        bits, nmse = measured(offer.spec)
        assert bits == pytest.approx(offer.bits, rel=0.01)
        assert nmse == pytest.approx(offer.nmse, rel=0.1, abs=1e-8)


@pytest.mark.parametrize("feedback", [True, False])
def test_from_hard_to_light_bits_rise_and_error_falls(feedback):
    bits = [offer.bits for offer in QUANTIZERS[feedback]]
    nmse = [offer.nmse for offer in QUANTIZERS[feedback]]
    assert bits == sorted(bits)
    assert nmse == sorted(nmse, reverse=True)


@pytest.mark.parametrize(
    ("bits", "feedback", "spec"),
    [
        (1, True, "ecq(1)"),
        (4, True, "ecq(4)"),
        (8, True, "ecq(8)"),
        (9, True, "fp16"),
        (17, True, "none"),
        (99, True, "none"),
        (3, False, "eden(3)"),
        (5, False, "int8(rounding=stochastic)"),
    ],
)
def test_a_quantizer_has_at_least_the_bits_asked_for(bits, feedback, spec):
    assert quantizer(bits, feedback).spec == spec


@pytest.mark.parametrize(
    ("fraction", "spec"),
    [
        (0.05, "topk(0.05)|int8"),
        (0.12345, "topk(0.123)|int8"),
        (0.0299, "topk(0.0299)|int8"),
        (1, "topk(1)|int8"),
        (7, "topk(1)|int8"),
        (0, "topk(0.001)|int8"),
    ],
)
def test_a_share_is_written_with_three_digits(fraction, spec):
    assert sparsifier(fraction) == spec


@given(fraction=st.floats(MIN_FRACTION, 1))
def test_a_written_share_is_hardly_less_and_never_more(fraction):
    (stage, _) = parse(sparsifier(fraction)).stages
    assert 0.989 * fraction <= stage.fraction <= fraction * (1 + 1e-6)


def test_half_the_values_cost_half_their_bits_and_one_bit_to_say_which():
    # Entropy of a fair coin is 1 bit.
    assert sparsifier_bits(0.5) == pytest.approx(0.5 * 8.06 + 1)
    assert sparsifier_bits(1.0) == pytest.approx(8.06)


@pytest.mark.parametrize("fraction", [0.003, 0.01, 0.1, 0.4])
def test_the_bits_of_a_sparsifier_are_those_on_the_wire(fraction):
    assert measured(sparsifier(fraction))[0] == pytest.approx(sparsifier_bits(fraction), rel=0.04)


@given(bits=st.floats(-1, 40))
def test_the_share_within_some_bits_uses_them_up(bits):
    fraction = fraction_within(bits)
    assert MIN_FRACTION <= fraction <= 1
    if fraction > MIN_FRACTION * 1.001:
        assert sparsifier_bits(fraction) <= bits
    if fraction < 1:
        assert sparsifier_bits(fraction * 1.001) > min(bits, sparsifier_bits(1.0)) - 1e-6
