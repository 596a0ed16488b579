"""What each codec promises beyond the contract, against values known from elsewhere."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedsys.codecs._base import Dense, Sparse
from fedsys.codecs._chain import Codec, parse, parse_received
from fedsys.codecs._feedback import encode_with_feedback
from fedsys.codecs._rotate import hadamard
from fedsys.codecs._select import largest
from fedsys.errors import ConfigError, WireError
from fedsys.rng import rng_for
from fedsys.wire.schema import Schema

MODERATE = arrays(np.float32, st.integers(1, 300), elements=st.floats(-1e3, 1e3, width=32))


def coded(spec, x, seed=0, layout=None):
    codec, layout = parse(spec), layout or ((x.size,),)
    body = codec.encode(x, layout, rng_for(seed))
    return body, codec.decode(body, x.size, layout).dense()


def gaussian(n, seed=1):
    return rng_for(seed).standard_normal(n, np.float32)


def nmse(x, y):
    x, y = x.astype(np.float64), y.astype(np.float64)
    return ((x - y) ** 2).sum() / (x**2).sum()


@given(
    x=arrays(np.float32, 40, elements=st.floats(allow_nan=False, allow_infinity=False, width=32))
)
def test_none_is_exact(x):
    np.testing.assert_array_equal(coded("none", x)[1], x)


@pytest.mark.parametrize("scale", [1e-40, 1e-30, 1e-10, 1.0, 1e10, 3e38])
def test_fp16_neither_overflows_nor_underflows(scale):
    x = (rng_for(2).uniform(-1, 1, 500) * scale).astype(np.float32)
    body, y = coded("fp16", x)
    assert len(body) == 2 + 2 * x.size
    np.testing.assert_allclose(y, x, rtol=2**-11, atol=float(np.abs(x).max()) * 2**-25)


@given(x=arrays(np.float32, 40, elements=st.floats(-(2.0**126), 2.0**126, width=32)))
def test_bf16_keeps_eight_bits_of_any_magnitude(x):
    np.testing.assert_allclose(coded("bf16", x)[1], x, rtol=2**-8, atol=1e-40)


def test_bf16_matches_torch():
    torch = pytest.importorskip("torch")
    x = gaussian(5000)
    expected = torch.from_numpy(x).bfloat16().float().numpy()
    np.testing.assert_array_equal(coded("bf16", x)[1], expected)


def test_a_bfloat16_model_costs_two_bytes_a_value_and_comes_back_exactly():
    bits = (gaussian(300).view(np.uint32) >> 16).astype(np.uint16).reshape(20, 15)
    schema = Schema.of({"w": bits}, bfloat16=frozenset({"w"}))
    flat, raw = schema.split({"w": bits})
    body, y = coded("bf16", flat)
    assert len(body) == 2 * 300
    np.testing.assert_array_equal(schema.join(y, raw)["w"], bits)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("spec", ["int8", "topk(0.1)|int8", "ecq(2)"])
def test_every_float_dtype_goes_through_every_step(dtype, spec):
    model = {"w": gaussian(600).astype(dtype).reshape(30, 20)}
    schema = Schema.of(model)
    flat, raw = schema.split(model)
    joined = schema.join(coded(spec, flat)[1], raw)["w"]
    assert joined.dtype == dtype
    assert np.isfinite(joined).all()


@pytest.mark.parametrize(("spec", "levels"), [("int8(block=32)", 127), ("int4(block=32)", 7)])
@given(x=MODERATE)
def test_nearest_rounding_is_off_by_at_most_half_a_step(spec, levels, x):
    y = coded(spec, x)[1]
    for start in range(0, x.size, 32):
        part = slice(start, start + 32)
        step = float(np.abs(x[part]).max()) / levels * (1 + 2**-7)
        assert np.abs(x[part] - y[part]).max() <= 0.5 * step * (1 + 1e-5) + 1e-35


@pytest.mark.parametrize("spec", ["int8", "int4", "int2", "ternary"])
def test_stochastic_rounding_is_right_on_average(spec):
    x = gaussian(64)
    stochastic = f"{spec}(rounding=stochastic)"
    mean = np.mean([coded(stochastic, x, seed)[1] for seed in range(3000)], axis=0)
    step = {"int8": 1 / 127, "int4": 1 / 7, "int2": 1 / 1.5, "ternary": 1.0}[spec]
    tolerance = 5 * 0.51 * step * float(np.abs(x).max()) / 3000**0.5
    np.testing.assert_allclose(mean, x, rtol=0, atol=tolerance)


def test_a_shifted_tensor_is_quantised_over_its_own_range():
    x = (rng_for(3).standard_normal(4096) * 0.3 - 2).astype(np.float32)
    step = float(np.abs(x).max()) / 127
    assert np.abs(coded("int8", x)[1] - x).max() <= 0.51 * step


@pytest.mark.parametrize("spec", ["int8", "fp16", "bf16", "sign", "ternary", "ecq(4)"])
def test_a_constant_tensor_stays_constant(spec):
    y = coded(spec, np.full(1000, 0.37, np.float32))[1]
    assert np.unique(y).size == 1
    assert y[0] == pytest.approx(0.37, rel=0.01)


def test_an_outlier_spoils_only_its_own_block():
    x = gaussian(2560)
    x[5] = 1e6
    y = coded("int8", x)[1]
    assert nmse(x[256:], y[256:]) < 1e-4


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("int8", 4.9e-5),
        ("int4", 0.016),
        ("int2", 0.119),
        ("sign", 1 - 2 / np.pi),
        ("ternary", 0.19),
        ("eden(1)", np.pi / 2 - 1),
        ("eden(2)", 0.133),
        ("eden(3)", 0.036),
        ("eden(4)", 0.0096),
        ("eden(1,unbiased=false)", 1 - 2 / np.pi),
        ("topk(0.1)|int8", 0.561),
        ("topk(0.03)|int8", 0.805),
        ("topk(0.01)|int8", 0.915),
        ("randk(0.1)", 0.9),
    ],
)
def test_error_on_gaussian_values_is_what_the_literature_says(spec, expected):
    x = gaussian(300_000)
    assert nmse(x, coded(spec, x)[1]) == pytest.approx(expected, rel=0.02)


@given(x=MODERATE, fraction=st.floats(0.001, 1))
def test_topk_keeps_what_a_stable_sort_would(x, fraction):
    k = max(1, round(fraction * x.size))
    order = np.lexsort((np.arange(x.size), -np.abs(x)))[:k]
    expected = np.sort(order[x[order] != 0])
    np.testing.assert_array_equal(largest(x, k), expected)


@pytest.mark.parametrize("k", [1, 10, 1000, 30_000, 200_000])
def test_selection_is_exact_beyond_the_sample(k):
    x = np.round(gaussian(400_000), 2)
    index = largest(x, k)
    assert index.size == k
    assert np.abs(x[index]).min() == np.sort(np.abs(x))[-k]


def test_selection_survives_a_sample_that_misleads():
    x = np.zeros(1 << 20, np.float32)
    x[::16] = 1
    x[1::512] = 2
    index = largest(x, 2048)
    np.testing.assert_array_equal(index, np.arange(1, 1 << 20, 512))


def test_chunked_topk_keeps_the_largest_of_every_chunk():
    x = np.abs(gaussian(1000)) + 0.1
    update = parse("topk(0.1,chunk=100)").decode(
        parse("topk(0.1,chunk=100)").encode(x, ((1000,),), rng_for(0)), 1000, ((1000,),)
    )
    assert isinstance(update, Sparse)
    kept = update.index.reshape(10, 10)
    for chunk, index in enumerate(kept):
        rows = x[chunk * 100 : chunk * 100 + 100]
        np.testing.assert_array_equal(index, np.sort(np.argsort(-rows)[:10]) + 100 * chunk)


def test_threshold_sends_what_reaches_it_and_may_send_nothing():
    x = np.array([0.5, -1.0, 0.99, 2.0], np.float32)
    assert coded("threshold(1)", x)[1].tolist() == [0, -1, 0, 2]
    assert coded("threshold(5)", x)[1].tolist() == [0, 0, 0, 0]


def test_randk_is_unbiased_when_asked():
    x = gaussian(50)
    mean = np.mean([coded("randk(0.3,unbiased=true)", x, s)[1] for s in range(4000)], axis=0)
    np.testing.assert_allclose(mean, x, atol=0.25)


def test_eden_is_unbiased_also_at_fractions_of_a_bit():
    x = gaussian(64)
    for spec in ("eden(1)", "eden(2.5)", "eden(0.5)"):
        mean = np.mean([coded(spec, x, seed)[1] for seed in range(1500)], axis=0)
        assert nmse(x, mean) < 0.01


def test_hadamard_matches_the_matrix():
    linalg = pytest.importorskip("scipy.linalg")
    rows = gaussian(3 * 128).reshape(3, 128)
    expected = rows @ linalg.hadamard(128) / 128**0.5
    np.testing.assert_allclose(hadamard(rows), expected, atol=1e-5)


def test_lowrank_is_exact_on_a_matrix_of_that_rank():
    left, right = gaussian(100 * 3, 4).reshape(100, 3), gaussian(3 * 80, 5).reshape(3, 80)
    x = np.concatenate([(left @ right).reshape(-1), gaussian(10, 6)])
    body, y = coded("lowrank(3)", x, layout=((100, 80), (10,)))
    assert len(body) < 4 * (3 * 180 + 10) + 10
    np.testing.assert_allclose(y, x, atol=1e-4)


def test_lowrank_comes_near_the_best_of_its_rank():
    left, _ = np.linalg.qr(gaussian(200 * 200, 4).reshape(200, 200))
    right, _ = np.linalg.qr(gaussian(200 * 200, 5).reshape(200, 200))
    spectrum = np.arange(1, 201) ** -1.0
    x = ((left * spectrum) @ right).astype(np.float32).reshape(-1)
    best = (spectrum[4:] ** 2).sum() / (spectrum**2).sum()
    assert nmse(x, coded("lowrank(4)", x, layout=((200, 200),))[1]) < 1.25 * best
    assert nmse(x, coded("lowrank(4,passes=6)", x, layout=((200, 200),))[1]) < 1.02 * best


def test_lowrank_from_a_random_start_beats_one_pass_from_the_last_factors():
    """PowerSGD's warm start; under error feedback its subspace is the one already emptied."""
    layout, rng = ((100, 120),), rng_for(8)
    base = gaussian(100 * 5, 4).reshape(100, 5) @ gaussian(5 * 120, 5).reshape(5, 120)
    ours, theirs, right = None, np.zeros((100, 120)), rng.standard_normal((120, 2))
    own_error = warm_error = 0.0
    for at in range(10):
        update = (base + 2 * gaussian(12_000, at).reshape(100, 120)).astype(np.float32)
        made = encode_with_feedback(parse("lowrank(2)"), update, ours, layout, rng_for(at))
        ours, own_error = made.residual, own_error + made.nmse

        theirs = theirs + update
        left, _ = np.linalg.qr(theirs @ right)
        right = theirs.T @ left
        total = np.linalg.norm(theirs) ** 2
        theirs = theirs - left @ right.T
        warm_error += np.linalg.norm(theirs) ** 2 / total
    assert own_error < warm_error


def test_lowrank_leaves_small_tensors_alone():
    x = gaussian(40 * 40 + 7)
    np.testing.assert_array_equal(coded("lowrank(2)", x, layout=((40, 40), (7,)))[1], x)


def test_sparse_add_touches_only_what_it_carries():
    update = Sparse(np.array([2, 5]), np.array([1.5, -2.0], np.float32), 8)
    out = np.full(8, np.nan, np.float32)
    out[[2, 5]] = 1
    update.add_to(out, 2.0)
    assert out[[2, 5]].tolist() == [4.0, -3.0]


def test_dense_update_adds_across_chunks():
    x = gaussian(200_001)
    out = np.ones(x.size, np.float32)
    Dense(x).add_to(out, 3.0)
    np.testing.assert_allclose(out, 1 + 3 * x, rtol=1e-6, atol=1e-6)


def test_error_feedback_changes_the_bytes_from_the_second_exchange_on():
    codec, x, layout = parse("topk(0.1)|int8"), gaussian(500), ((500,),)
    first = encode_with_feedback(codec, x, None, layout, rng_for(0))
    second = encode_with_feedback(codec, x, first.residual, layout, rng_for(0))
    assert first.body == codec.encode(x, layout, rng_for(0))
    assert second.body != first.body


@pytest.mark.parametrize("spec", ["topk(0.02)|int8", "ecq(0.2)", "sign", "int2"])
def test_error_feedback_delivers_everything_in_time(spec):
    codec, x, layout = parse(spec), gaussian(2000), ((2000,),)
    total, residual = np.zeros_like(x), None
    rounds = 300
    for at in range(rounds):
        result = encode_with_feedback(codec, x, residual, layout, rng_for(at))
        result.decoded.add_to(total, 1 / rounds)
        residual = result.residual
    assert nmse(x, total) < 0.03


def test_one_message_decodes_the_same_for_every_receiver():
    codec, x, layout = parse("ecq(1)"), gaussian(700), ((700,),)
    body = codec.encode(x, layout, rng_for(0))
    first, *others = (codec.decode(body, 700, layout).dense() for _ in range(3))
    first += 1
    for other in others:
        np.testing.assert_array_equal(other, first - 1)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("int8|topk", r"int8 ends the chain, move topk\(0.01\) before it"),
        ("topkk", "did you mean 'topk'"),
        ("int8(blocks=3)", "did you mean 'block'"),
        ("int8(rounding=neerest)", "did you mean 'nearest'"),
        ("int8(64)", "write '64' as key=value"),
        ("topk(2)", r"in \(0, 1\], got 2"),
        ("topk(nan)", "got nan"),
        ("topk(x)", "must be a number, got 'x'"),
        ("topk(0.1", "cannot read"),
        ("topk(0.1,fraction=0.2)", "given twice"),
        ("randk(0.1,unbiased=yes)", "true or false"),
        ("int8(block=1.5)", "must be an integer"),
        ("none|int8", "none stands alone"),
        ("", "a codec spec is a text"),
        ("nosuch.module:Class", "cannot be loaded"),
        ("numpy:zeros", "is not a codec stage"),
        ("|".join(["topk(0.5)"] * 40), "longer than 255"),
    ],
)
def test_bad_specs_are_refused_with_advice(spec, message):
    with pytest.raises(ConfigError, match=message):
        parse(spec)


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("topk", "topk(0.01)"),
        (" topk( fraction = 0.05 ) | int8( block=256 ) ", "topk(0.05)|int8"),
        ("topk(1)", "topk(1)"),
        ("topk(1.0,chunk=64)", "topk(1,chunk=64)"),
        ("int8(rounding=stochastic,block=64)", "int8(block=64,rounding=stochastic)"),
        ("randk(0.5,unbiased=true)", "randk(0.5,unbiased=true)"),
        ("fedsys.codecs.int8:Int8(block=64)", "int8(block=64)"),
        ("none", "none"),
    ],
)
def test_specs_have_one_canonical_form(written, canonical):
    assert parse(written).spec == canonical


def test_a_spec_from_the_network_never_imports_a_strangers_module():
    spec = "fedsys.codecs.int8:Int8"
    with pytest.raises(WireError, match="names a module"):
        parse_received(spec)
    assert isinstance(parse_received(spec, trusted=[spec]), Codec)
    with pytest.raises(WireError, match="did you mean"):
        parse_received("topkk")


def test_a_layout_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="does not hold 10 values"):
        parse("int8").encode(np.zeros(10), ((3, 3),), rng_for(0))
