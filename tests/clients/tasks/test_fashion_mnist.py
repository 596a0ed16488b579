"""Fashion-MNIST says how to get the data, and refuses files that do not belong together."""

import struct

import numpy as np
import pytest
import torch

from clients.tasks.fashion_mnist import FashionMnist
from fedsys.errors import ConfigError


def write(folder, part, images, labels):
    for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
        sizes = struct.pack(f">{array.ndim}I", *array.shape)
        header = bytes([0, 0, 8, array.ndim]) + sizes
        (folder / f"{part}-{kind}-ubyte").write_bytes(header + array.tobytes())


def zeros(*shape):
    return np.zeros(shape, np.uint8)


def test_missing_data_is_an_error_that_says_how_to_get_it(tmp_path):
    with pytest.raises(ConfigError, match="apt install dataset-fashion-mnist"):
        FashionMnist(folder=str(tmp_path / "nowhere")).train_data()


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (zeros(3, 28, 28), zeros(2), "expected"),
        (zeros(3, 28, 27), zeros(3), "expected"),
        (zeros(1, 28, 28), zeros(1) + 10, "has label 10"),
        (zeros(0, 28, 28), zeros(0), "the data set is empty"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path, images, labels, message):
    write(tmp_path, "train", images, labels)

    with pytest.raises(ConfigError, match=message):
        FashionMnist(folder=str(tmp_path)).train_data()


def test_the_cnn_has_at_most_100_000_parameters_and_takes_bytes():
    model = FashionMnist().build_model()

    assert sum(p.numel() for p in model.parameters()) == 89_050
    black_and_white = model[0](torch.from_numpy(zeros(1, 1, 28, 28) + 255))
    assert black_and_white.mean().item() == pytest.approx((1 - 0.2860) / 0.3530)
