"""Every codec, present and future, keeps these promises."""

import dataclasses

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedsys.codecs._base import NonFiniteError
from fedsys.codecs._chain import parse
from fedsys.codecs._feedback import encode_with_feedback
from fedsys.errors import ConfigError, WireError
from fedsys.registry import available, load
from fedsys.rng import rng_for

NAMES = available("fedsys.codecs")
CHAINS = ["topk(0.3)|int8", "topk(0.2,chunk=16)|fp16", "int8(block=7,rounding=stochastic)"]
FLOAT32_MAX = float(np.finfo(np.float32).max)
UPDATES = arrays(np.float32, st.integers(0, 300), elements=st.floats(-1e6, 1e6, width=32))
ANY_FINITE = arrays(
    np.float32,
    st.integers(0, 70),
    elements=st.floats(allow_nan=False, allow_infinity=False, width=32),
)
each_codec = pytest.mark.parametrize("spec", NAMES + CHAINS)


def flat(x):
    return ((x.size,),)


def through(spec, x, seed=0, layout=None):
    codec = parse(spec)
    layout = layout or flat(x)
    return codec.decode(codec.encode(x, layout, rng_for(seed)), x.size, layout).dense()


@each_codec
@given(x=UPDATES, seed=st.integers(0, 2**32 - 1))
def test_same_seed_same_bytes_finite_update_and_input_untouched(spec, x, seed):
    codec, before = parse(spec), x.copy()
    first, second = (codec.encode(x, flat(x), rng_for(seed)) for _ in range(2))
    decoded = codec.decode(first, x.size, flat(x)).dense()

    assert first == second
    assert decoded.shape == x.shape
    assert decoded.dtype == np.float32
    assert np.isfinite(decoded).all()
    np.testing.assert_array_equal(x, before)


@each_codec
@given(x=ANY_FINITE)
@example(x=np.array([FLOAT32_MAX, -FLOAT32_MAX, 1e-45, 0.0], np.float32))
@example(x=np.full(3, 1e-45, np.float32))
@example(x=np.full(300, FLOAT32_MAX, np.float32))
def test_every_finite_update_decodes_to_finite_values(spec, x):
    assert np.isfinite(through(spec, x)).all()


@each_codec
@pytest.mark.parametrize("n", [0, 1, 2, 255, 256, 257, 70_000])
def test_zeros_come_back_as_zeros(spec, n):
    np.testing.assert_array_equal(through(spec, np.zeros(n, np.float32)), np.zeros(n))


@each_codec
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 299])
def test_non_finite_update_is_refused(spec, bad, at):
    x = np.ones(300, np.float32)
    x[at] = bad
    with pytest.raises(NonFiniteError):
        parse(spec).encode(x, flat(x), rng_for(0))


@each_codec
@given(x=UPDATES, weight=st.floats(-10, 10, width=32))
def test_decode_add_adds_the_weighted_dense_form(spec, x, weight):
    codec = parse(spec)
    update = codec.decode(codec.encode(x, flat(x), rng_for(1)), x.size, flat(x))
    out = np.linspace(-1, 1, x.size, dtype=np.float32)
    expected = out.astype(np.float64) + weight * update.dense().astype(np.float64)

    codec.decode_add(codec.encode(x, flat(x), rng_for(1)), x.size, flat(x), weight, out)

    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5 * (1 + np.abs(x).max(initial=0)))
    assert update.n == x.size
    assert update.norm2() == pytest.approx(float((update.dense().astype(np.float64) ** 2).sum()))


@each_codec
@given(x=UPDATES, old=st.floats(-3, 3, width=32))
def test_decoded_plus_residual_is_update_plus_old_residual(spec, x, old):
    residual = np.full(x.size, old, np.float32)
    result = encode_with_feedback(parse(spec), x, residual, flat(x), rng_for(2))

    np.testing.assert_array_equal(result.compensated, x + residual)
    scale = np.abs(result.compensated).max(initial=0) + np.abs(result.residual).max(initial=0)
    np.testing.assert_allclose(
        result.decoded.dense() + result.residual, result.compensated, atol=3e-7 * scale, rtol=0
    )
    assert result.residual.dtype == np.float32
    assert result.nmse >= 0


@each_codec
def test_float64_strided_and_shaped_updates_are_taken_as_their_float32_values(spec):
    wide = rng_for(3).standard_normal((40, 30))
    plain = np.ascontiguousarray(wide.T, np.float32).reshape(-1)
    codec, layout = parse(spec), ((30, 40),)
    assert codec.encode(wide.T, layout, rng_for(0)) == codec.encode(plain, layout, rng_for(0))


@each_codec
def test_float64_beyond_float32_is_refused(spec):
    with pytest.raises(NonFiniteError):
        parse(spec).encode(np.array([1e300]), ((1,),), rng_for(0))


@each_codec
@given(data=st.data())
def test_damaged_bytes_raise_only_wire_errors_and_never_grow(spec, data):
    codec, layout = parse(spec), ((20, 15),)
    body = bytearray(codec.encode(rng_for(4).standard_normal(300), layout, rng_for(5)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(0, len(body) - 1)))
        body[at] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, len(body)))
    tail = data.draw(st.binary(max_size=9))
    for damaged in (bytes(body), bytes(body[:cut]), bytes(body) + tail):
        try:
            update = codec.decode(damaged, 300, layout)
        except WireError:
            continue
        assert update.dense().shape == (300,)


@each_codec
@given(noise=st.binary(max_size=200), n=st.integers(0, 400))
def test_noise_raises_only_wire_errors(spec, noise, n):
    try:
        update = parse(spec).decode(noise, n, ((n,),))
    except WireError:
        return
    assert update.dense().shape == (n,)


@each_codec
def test_trailing_and_missing_bytes_are_refused(spec):
    codec, x = parse(spec), rng_for(6).standard_normal(500).astype(np.float32)
    body = codec.encode(x, flat(x), rng_for(0))
    for wrong in (body + b"\0", body[:-1], body + bytes(4)):
        with pytest.raises(WireError):
            codec.decode(wrong, x.size, flat(x))


@each_codec
def test_canonical_spec_names_the_same_codec(spec):
    codec = parse(spec)
    assert parse(codec.spec) == codec


@pytest.mark.parametrize("name", NAMES)
def test_bad_parameters_are_refused_before_anything_starts(name):
    stage_type = load("fedsys.codecs", name)
    for field in dataclasses.fields(stage_type):
        if field.type is bool:
            continue
        for bad in (-1, 2.5, float("nan"), float("inf"), None, [], "nosuchword"):
            if isinstance(bad, float) and bad == 2.5 and field.type is float:
                continue
            with pytest.raises(ConfigError):
                stage_type(**{field.name: bad})


@pytest.mark.parametrize("name", NAMES)
def test_help_text_comes_with_the_codec(name):
    assert load("fedsys.codecs", name).__doc__.strip()
