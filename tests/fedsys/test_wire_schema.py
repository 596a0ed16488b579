"""A schema splits a model into coded and raw parts and joins it again, exactly."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsys.errors import ConfigError, WireError
from fedsys.wire.schema import Schema, TensorSpec, is_norm

MODEL = {
    "conv.weight": np.arange(24, dtype=np.float32).reshape(2, 3, 2, 2),
    "conv.bias": np.array([0.5, -0.5], np.float32),
    "bn1.weight": np.ones(2, np.float32),
    "bn1.running_mean": np.zeros(2, np.float32),
    "bn1.num_batches_tracked": np.array(7, np.int64),
    "head.weight": np.array([[1.5, -2.0]], np.float64),
    "half": np.array(0.25, np.float16),
    "empty": np.zeros((3, 0), np.float32),
    "mask": np.array([True, False]),
}
SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)


def assert_same(first, second):
    assert list(first) == list(second)
    for name, array in first.items():
        assert array.dtype == second[name].dtype
        assert array.shape == second[name].shape
        np.testing.assert_array_equal(array, second[name])


@pytest.mark.parametrize("rule", ["stats", "small", "none"])
def test_join_undoes_split(rule):
    schema = Schema.of(MODEL, rule)
    flat, raw = schema.split(MODEL)
    assert flat.shape == (schema.n,)
    assert len(raw) == schema.raw_n_bytes
    assert_same(schema.join(flat, raw), MODEL)


@given(shape=SHAPES, dtype=st.sampled_from(["f2", "f4", "f8", "i1", "i8", "u2", "?"]))
def test_any_shape_and_dtype_comes_back(shape, dtype):
    model = {"t": np.ones(shape, dtype)}
    schema = Schema.of(model)
    assert_same(schema.join(*schema.split(model)), model)


def test_statistics_and_normalisation_parameters_travel_raw():
    schema = Schema.of(MODEL)
    coded = [t.name for t, c in zip(schema.tensors, schema.coded, strict=True) if c]
    assert coded == ["conv.weight", "conv.bias", "head.weight", "half", "empty"]
    assert schema.layout == ((2, 3, 2, 2), (2,), (1, 2), (), (3, 0))
    assert schema.n == 24 + 2 + 2 + 1
    assert schema.raw_n_bytes == 8 + 8 + 8 + 2


def test_siblings_of_running_statistics_travel_raw_whatever_the_module_is_called():
    shapes = {"net.1.weight": (4,), "net.1.running_var": (4,), "net.2.weight": (4,)}
    schema = Schema.of({name: np.ones(shape, np.float32) for name, shape in shapes.items()})
    assert schema.coded == (False, False, True)


def test_rule_small_also_sends_tensors_below_1024_elements_raw():
    model = {"a": np.ones(1023, np.float32), "b": np.ones(1024, np.float32)}
    assert Schema.of(model, "small").coded == (False, True)
    assert Schema.of(model, "stats").coded == (True, True)


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("norm", True),
        ("bn1", True),
        ("layer_norm", True),
        ("LayerNorm", True),
        ("input_layernorm", True),
        ("ln_f", True),
        ("groupnorm2", True),
        ("normal", False),
        ("column", False),
        ("linear", False),
        ("", False),
    ],
)
def test_norm_names(module, expected):
    assert is_norm(module) is expected


def test_non_contiguous_and_big_endian_free_views_are_split_by_value():
    wide = np.arange(12, dtype=np.float32).reshape(3, 4)
    schema = Schema.of({"w": wide.T})
    flat, _ = schema.split({"w": wide.T})
    np.testing.assert_array_equal(flat, wide.T.reshape(-1))


def test_bfloat16_travels_as_bit_patterns_and_rounds_to_nearest_even():
    bits = np.array([0x3F80, 0xC000, 0x7F7F, 0x0001], np.uint16)
    schema = Schema.of({"w": bits}, bfloat16=frozenset({"w"}))
    flat, raw = schema.split({"w": bits})
    assert flat[:2].tolist() == [1.0, -2.0]
    np.testing.assert_array_equal(schema.join(flat, raw)["w"], bits)
    between = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF], np.uint32)
    joined = schema.join(between.view(np.float32), b"")["w"]
    assert joined.tolist() == [0x3F80, 0x3F82, 0x3F81, 0x7F7F]


def test_values_beyond_half_precision_become_the_largest_half():
    schema = Schema.of({"w": np.zeros(2, np.float16)})
    joined = schema.join(np.array([1e6, -1e6], np.float32), b"")["w"]
    assert joined.tolist() == [65504.0, -65504.0]


def test_digest_depends_on_name_shape_dtype_order_and_rule():
    base = {"a": np.ones((2, 3), np.float32), "b": np.ones(2, np.float32)}
    others = [
        Schema.of({"x": base["a"], "b": base["b"]}),
        Schema.of({"a": base["a"].T, "b": base["b"]}),
        Schema.of({"a": base["a"].astype(np.float64), "b": base["b"]}),
        Schema.of(dict(reversed(base.items()))),
        Schema.of(base, "none"),
    ]
    digests = {schema.digest for schema in [Schema.of(base), *others]}
    assert len(digests) == 6
    assert Schema.of(base).digest == Schema.of(dict(base)).digest
    assert len(Schema.of(base).digest) == 8


@pytest.mark.parametrize("rule", ["stats", "small", "none"])
def test_schema_comes_back_from_its_bytes(rule):
    schema = Schema.of(MODEL, rule)
    assert Schema.from_bytes(schema.to_bytes()) == schema


@given(noise=st.binary(max_size=60), at=st.integers(0, 200), flip=st.integers(1, 255))
def test_damaged_schema_raises_only_wire_errors(noise, at, flip):
    good = bytearray(Schema.of(MODEL).to_bytes())
    good[at % len(good)] ^= flip
    for data in (noise, bytes(good), bytes(good[: at % len(good)])):
        try:
            Schema.from_bytes(data, 1 << 20)
        except WireError:
            continue


def test_schema_that_claims_more_elements_than_allowed_is_refused():
    big = Schema((TensorSpec("w", (1 << 20, 1 << 20), "float32"),))
    with pytest.raises(WireError, match="exceed"):
        Schema.from_bytes(big.to_bytes(), 1 << 30)
    two = Schema((TensorSpec("a", (600,), "float32"), TensorSpec("b", (600,), "float32")))
    with pytest.raises(WireError, match="exceed"):
        Schema.from_bytes(two.to_bytes(), 1000)


def test_wrong_lengths_are_refused():
    schema = Schema.of(MODEL)
    flat, raw = schema.split(MODEL)
    with pytest.raises(WireError, match="coded values"):
        schema.join(flat[:-1], raw)
    with pytest.raises(WireError, match="raw bytes"):
        schema.join(flat, raw + b"\0")


def test_joined_arrays_are_writable_and_share_nothing():
    schema = Schema.of(MODEL)
    flat, raw = schema.split(MODEL)
    joined = schema.join(flat, raw)
    for array in joined.values():
        assert array.flags.writeable
        assert not np.shares_memory(array, flat)


def test_unknown_rule_and_dtype_are_refused():
    with pytest.raises(ConfigError, match="did you mean 'stats'"):
        Schema.of(MODEL, "stat")
    with pytest.raises(ConfigError, match="complex64"):
        Schema.of({"z": np.zeros(1, np.complex64)})
