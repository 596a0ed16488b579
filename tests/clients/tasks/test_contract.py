"""Every task, present and future, keeps these promises.

A task that needs options to start, such as a file, is given them in ``OPTIONS``.
"""

import gzip
import struct

import numpy as np
import pytest
import torch

from clients.tasks._load import task_for
from clients.weights import build_model, to_arrays
from fedsys.config.schema import TaskConfig
from fedsys.registry import available

TEXT = "the quick brown fox jumps over the lazy dog. " * 40


def idx_bytes(array):
    sizes = struct.pack(f">{array.ndim}I", *array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


@pytest.fixture
def options(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    rng = np.random.default_rng(1)
    for part, n in (("train", 30), ("t10k", 10)):
        images = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        labels = rng.integers(0, 10, n, dtype=np.uint8)
        (tmp_path / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx_bytes(images)))
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(idx_bytes(labels))
    return {
        "fashion_mnist": {"folder": str(tmp_path)},
        "char_lm": {"path": str(tmp_path / "text.txt"), "users": 5, "hidden": 8},
    }


@pytest.fixture(params=available("clients.tasks"))
def task(request, options):
    return task_for(TaskConfig(name=request.param, options=options.get(request.param, {})))


def test_data_is_the_same_every_time(task):
    for data in (task.train_data, task.test_data):
        assert torch.equal(data().x, data().x)
        assert torch.equal(data().y, data().y)


def test_the_same_seed_builds_the_same_model_and_leaves_torchs_generator_alone(task):
    before = torch.get_rng_state()
    first, again, other = (to_arrays(build_model(task, seed)) for seed in (1, 1, 2))

    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not all(np.array_equal(first[name], other[name]) for name in first)
    assert torch.equal(torch.get_rng_state(), before)


def test_loss_is_finite_and_reaches_every_parameter(task):
    model, data = build_model(task, 1), task.train_data()

    loss = task.loss(model, data.x[:4], data.y[:4])
    loss.backward()

    assert loss.shape == ()
    assert torch.isfinite(loss)
    assert all(p.grad is not None for p in model.parameters())


@torch.no_grad()
def test_evaluation_sums_over_batches_to_the_mean_loss(task):
    model, data = build_model(task, 1).eval(), task.test_data()
    x, y = data.x[:6], data.y[:6]

    whole = task.evaluate(model, x, y)
    parts = [task.evaluate(model, x[:2], y[:2]), task.evaluate(model, x[2:], y[2:])]

    assert np.sum(parts, axis=0) == pytest.approx(whole, rel=1e-5)
    assert whole[0] / whole[2] == pytest.approx(task.loss(model, x, y).item(), rel=1e-5)
    assert 0 <= whole[1] <= whole[2]
