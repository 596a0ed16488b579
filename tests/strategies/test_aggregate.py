"""The mean against numpy's, the server optimizer against torch's equations worked out by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedsys.codecs._base import Dense, Sparse
from fedsys.partial import Partial
from strategies._aggregate import Mean, Optimizer

UPDATES = arrays(np.float32, (3, 5), elements=st.floats(-100, 100, width=32, allow_subnormal=False))
COUNTS = st.lists(st.integers(1, 1000), min_size=3, max_size=3)


def mean_of(updates, examples, steps, *, normalise):
    mean = Mean(Partial(updates.shape[1], normalise=normalise))
    for update, n, tau in zip(updates, examples, steps, strict=True):
        mean.sums.add(Dense(update), {}, examples=n, local_steps=tau)
    return mean


@given(updates=UPDATES, examples=COUNTS, steps=COUNTS)
def test_fedavg_is_the_mean_weighted_by_examples_whatever_the_steps(updates, examples, steps):
    step = mean_of(updates, examples, steps, normalise=False).step()
    assert step.dtype == np.float32
    np.testing.assert_allclose(
        step, np.average(updates, axis=0, weights=examples), rtol=1e-4, atol=1e-3
    )


@given(updates=UPDATES, examples=COUNTS, steps=COUNTS)
def test_fednova_is_the_formula_of_the_paper(updates, examples, steps):
    p, tau = np.array(examples) / sum(examples), np.array(steps)
    expected = (p @ tau) * ((p / tau) @ updates.astype(np.float64))
    step = mean_of(updates, examples, steps, normalise=True).step()
    rounding = 1e-6 * (p @ tau) * np.max(np.abs(updates)) + 1e-6
    np.testing.assert_allclose(step, expected, rtol=1e-4, atol=rounding)


@given(updates=UPDATES, examples=COUNTS, tau=st.integers(1, 50))
def test_fednova_is_fedavg_when_all_took_as_many_steps(updates, examples, tau):
    nova = mean_of(updates, examples, [tau] * 3, normalise=True).step()
    plain = mean_of(updates, examples, [tau] * 3, normalise=False).step()
    np.testing.assert_allclose(nova, plain, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("normalise", [False, True])
def test_agreement_is_one_for_equal_updates_and_one_nth_for_orthogonal_ones(normalise):
    equal = mean_of(np.ones((4, 8), np.float32), [3, 1, 4, 1], [2] * 4, normalise=normalise)
    assert equal.agreement() == pytest.approx(1)
    orthogonal = mean_of(np.eye(4, dtype=np.float32), [5] * 4, [2] * 4, normalise=normalise)
    assert orthogonal.agreement() == pytest.approx(1 / 4)


def test_agreement_of_zero_updates_is_one():
    assert mean_of(np.zeros((2, 3), np.float32), [1, 1], [1, 1], normalise=True).agreement() == 1


def test_the_stretch_is_that_of_fedexp_within_its_limit():
    # Four orthogonal updates: mean of squares 1, square of the mean 1/4, so 1 / (2 / 4) = 2.
    torn = mean_of(np.eye(4, dtype=np.float32), [5] * 4, [2] * 4, normalise=False)
    assert torn.stretch(9.0) == pytest.approx(2)
    assert torn.stretch(1.5) == 1.5
    assert torn.stretch(1.0) == 1
    agreed = mean_of(np.ones((4, 8), np.float32), [5] * 4, [2] * 4, normalise=False)
    assert agreed.stretch(9.0) == 1


def test_a_sparse_update_counts_as_its_dense_form():
    sparse = Sparse(np.array([1, 3]), np.array([2, -4], np.float32), 5)
    mean = Mean(Partial(5, normalise=False))
    mean.sums.add(sparse, {}, examples=1, local_steps=1)
    mean.sums.add(Dense(np.ones(5, np.float32)), {}, examples=3, local_steps=1)
    assert mean.step().tolist() == [0.75, 1.25, 0.75, -0.25, 0.75]


def test_a_single_value_of_zero_is_an_update_like_any_other():
    mean = Mean(Partial(1, normalise=False))
    mean.sums.add(Dense(np.zeros(1, np.float32)), {}, examples=1, local_steps=1)
    assert (mean.count, mean.step().tolist()) == (1, [0.0])


def test_nothing_added_is_no_mean():
    with pytest.raises(ValueError, match="no update"):
        Mean(Partial(2, normalise=False)).step()


def test_raw_floats_are_averaged_and_integers_and_booleans_take_the_largest():
    mean = Mean(Partial(1, normalise=True))
    for n, raw in (
        (1, {"var": [1.0, 2.0], "seen": 7, "on": True}),
        (3, {"var": [5.0, 0.0], "seen": 5, "on": False}),
    ):
        tensors = {
            "var": np.array(raw["var"], np.float32),
            "seen": np.array(raw["seen"], np.int64),
            "on": np.array(raw["on"]),
        }
        mean.sums.add(Dense(np.zeros(1, np.float32)), tensors, examples=n, local_steps=2)
    merged = mean.raw()
    assert merged["var"].tolist() == [4.0, 0.5]
    assert (merged["seen"].shape, merged["seen"].dtype, int(merged["seen"])) == ((), np.int64, 7)
    assert bool(merged["on"])


def test_raw_half_precision_does_not_overflow_by_the_number_of_examples():
    mean = Mean(Partial(1, normalise=False))
    for value in (100.0, 300.0):
        raw = {"scale": np.array(value, np.float16)}
        mean.sums.add(Dense(np.zeros(1, np.float32)), raw, examples=60_000, local_steps=1)
    assert float(mean.raw()["scale"]) == 200.0


def steps_of(optimizer, gradients):
    return [float(optimizer.step(np.array([g], np.float32))[0]) for g in gradients]


def test_plain_averaging_passes_the_mean_through_unchanged():
    mean = np.array([0.1, -2], np.float32)
    assert Optimizer(1.0, 0.0, False).step(mean) is mean
    assert Optimizer(0.5, 0.0, False).step(mean).tolist() == (mean * np.float32(0.5)).tolist()


def test_momentum_is_that_of_torch_sgd():
    # v = 0.5 v + g, starting from v = g; step = lr * v
    assert steps_of(Optimizer(2.0, 0.5, False), [1, 1, -2]) == [2.0, 3.0, -2.5]


def test_nesterov_is_that_of_torch_sgd():
    # v = 0.5 v + g = 1, 1.5, -1.25; step = lr * (g + 0.5 v)
    assert steps_of(Optimizer(2.0, 0.5, True), [1, 1, -2]) == [3.0, 3.5, -5.25]
