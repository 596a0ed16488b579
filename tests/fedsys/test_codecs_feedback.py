"""What becomes of a residual: ages, limits, and the published rules as special cases."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedsys.codecs._chain import parse
from fedsys.codecs._feedback import ResidualRule, encode_with_feedback
from fedsys.rng import rng_for

VECTORS = arrays(np.float32, 20, elements=st.floats(-1e3, 1e3, width=32))


def gaussian(n, seed):
    return rng_for(seed).standard_normal(n, np.float32)


@given(x=VECTORS, versions=st.integers(1, 1000))
def test_without_a_rule_a_residual_stays_whole(x, versions):
    assert ResidualRule().aged(x, versions) is x
    assert ResidualRule().clipped(x, np.zeros(20, np.float32)) is x


@pytest.mark.parametrize(("versions", "factor"), [(1, 1.0), (2, 0.5), (4, 0.125)])
def test_each_missed_version_costs_one_decay(versions, factor):
    x = gaussian(20, 1)
    np.testing.assert_array_equal(ResidualRule(decay=0.5).aged(x, versions), factor * x)


def test_a_residual_older_than_allowed_is_dropped():
    x, rule = gaussian(20, 1), ResidualRule(max_age_versions=3)
    assert rule.aged(x, 3) is x
    assert rule.aged(x, 4) is None


@given(x=VECTORS, update=VECTORS, clip=st.floats(0.01, 10))
def test_clipping_shortens_but_never_turns_a_residual(x, update, clip):
    clipped = ResidualRule(clip=clip).clipped(x, update)
    norm, limit = np.linalg.norm(x), clip * np.linalg.norm(update)
    assert np.linalg.norm(clipped) == pytest.approx(min(norm, limit), rel=1e-4, abs=1e-4)
    np.testing.assert_allclose(clipped * norm, x * np.linalg.norm(clipped), rtol=1e-3, atol=1e-3)


def test_decay_per_round_with_chunked_topk_and_two_bits_is_sparseloco():
    beta, n = 0.95, 8192
    codec, rule = parse("topk(0.02,chunk=4096)|int2"), ResidualRule(decay_per_round=beta)
    paper = np.zeros(n, np.float32)
    residual = None
    for at in range(12):
        delta = gaussian(n, at)
        paper = np.float32(beta) * paper + delta
        sent = codec.decode(codec.encode(paper, ((n,),), rng_for(0)), n, ((n,),)).dense()
        paper = paper - sent

        if residual is not None:
            residual = rule.aged(residual, 1)
        made = encode_with_feedback(codec, delta, residual, ((n,),), rng_for(0))
        residual = made.residual

        np.testing.assert_array_equal(made.decoded.dense(), sent)
        np.testing.assert_array_equal(residual, paper)
