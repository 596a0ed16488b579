"""Indices and symbols cost what information theory says, and not a visible bit more."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import gammaln

from fedsys.codecs._bytes import varint
from fedsys.codecs._chain import parse
from fedsys.codecs._entropy import bucket_of, bucket_start, table_of, weights_of
from fedsys.codecs._indices import decode_index, encode_index
from fedsys.errors import WireError
from fedsys.rng import rng_for


def coded(spec, x):
    codec, layout = parse(spec), ((x.size,),)
    body = codec.encode(x, layout, rng_for(0))
    y = codec.decode(body, x.size, layout).dense().astype(np.float64)
    return 8 * len(body) / x.size, ((x - y) ** 2).sum() / (x.astype(np.float64) ** 2).sum()


def samples(kind, n=200_000):
    rng = rng_for(7, kind)
    draw = {
        "gauss": rng.standard_normal,
        "laplace": lambda size: rng.laplace(size=size),
        "student": lambda size: rng.standard_t(3, size=size),
    }[kind]
    return np.asarray(draw(n), np.float32)


@given(index=st.sets(st.integers(0, 499), max_size=500))
def test_index_sets_come_back(index):
    ascending = np.array(sorted(index), np.intp)
    data = encode_index(ascending, 500)
    np.testing.assert_array_equal(decode_index(memoryview(data), ascending.size, 500), ascending)


@pytest.mark.parametrize("n", [1 << 20, (1 << 40) + 3])
def test_far_indices_come_back(n):
    ascending = np.array([0, 1, n // 3, n - 2, n - 1], np.intp)
    data = encode_index(ascending, n)
    np.testing.assert_array_equal(decode_index(memoryview(data), 5, n), ascending)


@pytest.mark.parametrize("fraction", [0.001, 0.01, 0.1, 0.5, 0.9])
def test_random_index_sets_cost_their_entropy_within_one_percent(fraction):
    n = 1_000_000
    k = int(fraction * n)
    index = np.sort(rng_for(1).choice(n, k, replace=False))
    entropy_bits = (gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)) / np.log(2)
    assert 8 * len(encode_index(index, n)) <= 1.01 * entropy_bits + 64


def test_clustered_index_sets_cost_less_than_random_ones():
    n, k = 1_000_000, 20_000
    starts = np.sort(rng_for(2).choice(n // 20, k // 10, replace=False)) * 20
    clustered = (starts[:, None] + np.arange(10)).reshape(-1)
    random = np.sort(rng_for(2).choice(n, k, replace=False))
    assert len(encode_index(clustered, n)) < 0.3 * len(encode_index(random, n))


@given(values=st.lists(st.integers(0, 2**40), min_size=1), mantissa=st.integers(0, 7))
def test_buckets_are_ordered_and_start_at_or_below_their_values(values, mantissa):
    array = np.array(sorted(values), np.int64)
    bucket = bucket_of(array, mantissa)
    assert (np.diff(bucket) >= 0).all()
    assert (bucket_start(bucket, mantissa) <= array).all()
    assert (bucket_start(bucket + 1, mantissa) > array).all()


@given(counts=st.lists(st.integers(0, 2**31), min_size=1, max_size=40))
def test_table_weights_are_within_five_percent(counts):
    weights = weights_of(table_of(np.array(counts))) / 256
    np.testing.assert_allclose(weights, counts, rtol=0.05)


@pytest.mark.parametrize("bits", [0.1, 0.3, 0.5, 1, 2, 4, 6])
def test_ecq_stays_within_0_3_bits_of_the_gaussian_bound(bits):
    rate, nmse = coded(f"ecq({bits})", samples("gauss"))
    assert rate - 0.5 * np.log2(1 / nmse) < 0.3


@pytest.mark.parametrize("kind", ["gauss", "laplace", "student"])
@pytest.mark.parametrize("bits", [0.05, 0.2, 1, 3, 8])
def test_ecq_meets_its_budget(kind, bits):
    rate, _ = coded(f"ecq({bits})", samples(kind))
    assert 0.95 * bits <= rate <= 1.03 * bits


@pytest.mark.parametrize("kind", ["gauss", "laplace", "student"])
@pytest.mark.parametrize("fraction", [0.1, 0.03, 0.01])
def test_ecq_beats_topk_int8_at_equal_bytes(kind, fraction):
    x = samples(kind)
    rate, nmse = coded(f"topk({fraction})|int8", x)
    own_rate, own_nmse = coded(f"ecq({rate:.6f})", x)
    assert own_rate <= 1.02 * rate
    assert own_nmse < nmse


MEASURED = [
    ("gauss", [(2.10, 0.077), (1.24, 0.254), (0.70, 0.498), (0.31, 0.744), (0.03, 0.971)]),
    ("laplace", [(2.02, 0.072), (1.13, 0.227), (0.66, 0.400), (0.39, 0.564), (0.12, 0.803)]),
    ("student", [(1.85, 0.072), (0.94, 0.221), (0.51, 0.364), (0.29, 0.475), (0.12, 0.618)]),
]


@pytest.mark.parametrize(
    ("kind", "rate", "nmse"), [(k, *row) for k, rows in MEASURED for row in rows]
)
def test_ecq_meets_the_plain_uniform_quantizer_at_its_entropy(kind, rate, nmse):
    """Rates are rounded to 0.01 in the table that this repeats, so errors get that much room."""
    x = samples(kind)
    slack = 2 * np.log(2) * 0.006 + (0.05 if kind == "student" else 0.003)
    assert coded(f"ecq({rate})", x)[1] <= nmse * (1 + slack)


@pytest.mark.parametrize("n", [10, 100, 1000])
def test_ecq_overhead_on_short_vectors_is_some_ten_bytes(n):
    rate, _ = coded("ecq(2)", samples("gauss", n))
    assert rate * n / 8 <= 2 * n / 8 * 1.05 + 26


@pytest.mark.parametrize("width", [0, 216])
def test_ecq_refuses_a_code_without_levels_or_with_too_many(width):
    step = bytes([0x00, 0x80, 0x3F])
    body = b"\0" + step + varint(width) + bytes(min(width, 4)) + bytes([9] * (2 * width + 1))
    with pytest.raises(WireError, match=r"levels|216"):
        parse("ecq(1)").decode(body, 10, ((10,),))


@given(table=st.binary(min_size=3, max_size=9), words=st.binary(max_size=40))
def test_any_ecq_table_and_words_raise_only_wire_errors(table, words):
    width = (len(table) - 1) // 2
    head = b"\0" + bytes([0x00, 0x80, 0x3F]) + varint(width) + bytes(min(width, 4))
    try:
        update = parse("ecq(1)").decode(head + table[: 2 * width + 1] + words, 30, ((30,),))
    except WireError:
        return
    assert np.isfinite(update.dense()).all()


@pytest.mark.parametrize("bits", [0.05, 0.1, 0.3])
def test_ecq_spends_what_clustered_values_save_on_a_finer_step(bits):
    """As in a model whose last layer moves most."""
    scale = np.where(np.arange(200_000) < 20_000, 1.0, 0.02)
    x = (rng_for(7).laplace(size=scale.size) * scale).astype(np.float32)
    body = parse(f"ecq({bits})").encode(x, ((x.size,),), rng_for(0))
    assert 0.95 * bits <= 8 * len(body) / x.size <= 1.005 * bits
