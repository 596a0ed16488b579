"""Local steps and epochs are both exact."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.data.loader import local_steps, steps_per_epoch

SIZES = {
    "n": st.integers(1, 100),
    "batch_size": st.integers(1, 20),
    "accumulation_steps": st.integers(1, 4),
}


@given(**SIZES, count=st.integers(1, 40), seed=st.integers(0, 99))
def test_the_number_of_steps_is_the_one_asked_for(n, batch_size, accumulation_steps, count, seed):
    steps = list(local_steps(n, batch_size, accumulation_steps, count, np.random.default_rng(seed)))

    assert len(steps) == count
    assert all(1 <= len(step) <= accumulation_steps for step in steps)


@given(**SIZES, epochs=st.integers(1, 3))
def test_whole_epochs_show_every_example_equally_often(n, batch_size, accumulation_steps, epochs):
    count = epochs * steps_per_epoch(n, batch_size, accumulation_steps)

    steps = local_steps(n, batch_size, accumulation_steps, count, np.random.default_rng(1))

    seen = np.concatenate([batch for step in steps for batch in step])
    np.testing.assert_array_equal(np.bincount(seen, minlength=n), np.full(n, epochs))


@given(n=st.integers(2, 100), batch_size=st.integers(2, 20))
def test_no_batch_is_a_single_example_unless_batches_are(n, batch_size):
    steps = local_steps(n, batch_size, 1, 20, np.random.default_rng(1))

    assert all(2 <= len(batch) <= batch_size + 1 for step in steps for batch in step)


@pytest.mark.parametrize(
    ("n", "batch_size", "accumulation_steps", "expected"),
    [(64, 16, 1, 4), (65, 16, 1, 4), (66, 16, 1, 5), (64, 16, 3, 2), (5, 16, 1, 1), (3, 1, 1, 3)],
)
def test_steps_of_an_epoch(n, batch_size, accumulation_steps, expected):
    assert steps_per_epoch(n, batch_size, accumulation_steps) == expected


def test_one_local_epoch_of_unequal_clients_takes_unequal_steps():
    sizes = [10, 33, 100]

    assert [steps_per_epoch(n, 10) for n in sizes] == [math.ceil(n / 10) for n in sizes]


def test_same_generator_same_batches_and_each_epoch_is_shuffled_anew():
    def batches(seed):
        return [step[0].tolist() for step in local_steps(40, 40, 1, 2, np.random.default_rng(seed))]

    assert batches(1) == batches(1)
    assert batches(1) != batches(2)
    assert batches(1)[0] != batches(1)[1]
