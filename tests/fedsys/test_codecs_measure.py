"""A sample tells what a codec would do to the whole."""

import numpy as np
import pytest

from fedsys.codecs._chain import parse
from fedsys.codecs._measure import SAMPLE, measure, sample_of
from fedsys.rng import rng_for


def measured(spec, x):
    return measure(parse(spec), x, ((x.size,),), rng_for(0))


@pytest.mark.parametrize(("spec", "bits", "nmse"), [("int8", 8.0625, 4.9e-5), ("sign", 1, 0.3634)])
def test_bytes_and_error_of_gaussian_values_are_the_published_ones(spec, bits, nmse):
    found = measured(spec, rng_for(1).standard_normal(1 << 17, np.float32))
    assert 8 * found.body_bytes / (1 << 17) == pytest.approx(bits, rel=0.01)
    assert found.nmse == pytest.approx(nmse, rel=0.02)


def test_zeros_have_no_error():
    assert measured("topk(0.1)|int8", np.zeros(100, np.float32)).nmse == 0


@pytest.mark.parametrize("n", [0, 1, SAMPLE])
def test_a_short_update_is_its_own_sample(n):
    x = np.arange(n, dtype=np.float32)
    assert sample_of(x) is x


@pytest.mark.parametrize("n", [SAMPLE + 1, 10 * SAMPLE + 7])
def test_a_sample_has_a_bounded_size_and_reaches_both_ends(n):
    found = sample_of(np.arange(n, dtype=np.float32))
    assert found.size == SAMPLE
    assert (found[0], found[-1]) == (0, n - 1)


@pytest.mark.parametrize("spec", ["int8", "int4", "topk(0.05)|int8", "ecq(0.3)"])
def test_a_sample_predicts_bits_and_error_of_layers_of_unequal_scale(spec):
    scale = np.repeat(np.exp(rng_for(2).standard_normal(512)), 2048)
    x = (rng_for(3).laplace(size=scale.size) * scale).astype(np.float32)
    whole, part = measured(spec, x), measured(spec, sample_of(x))
    assert part.nmse == pytest.approx(whole.nmse, rel=0.25)
    bits = 8 * whole.body_bytes / x.size
    assert 8 * part.body_bytes / SAMPLE == pytest.approx(bits, rel=0.1)
