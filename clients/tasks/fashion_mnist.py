"""Fashion-MNIST (Xiao et al. 2017): 70,000 pictures of clothes in ten classes, 28 x 28 pixels."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from clients.data.idx import read_idx
from clients.tasks import _classify
from clients.tasks._base import Examples
from fedsys.errors import ConfigError

_CLASSES = 10
_SIDE = 28
_PIXEL_MEAN, _PIXEL_STD = 0.2860, 0.3530


@dataclass(frozen=True, slots=True)
class FashionMnist:
    """Pictures of clothes, 28 x 28 pixels: 60,000 training and 10,000 test, ten classes.

    Reads the four IDX files from ``folder``, which is where Debian's package
    ``dataset-fashion-mnist`` puts them. ``model = "cnn"`` has 89,050 parameters, ``"mlp"``
    109,386.
    """

    metric: ClassVar[str] = "accuracy"
    folder: str = "/usr/share/datasets/fashion-mnist"
    model: Literal["cnn", "mlp"] = "cnn"

    def train_data(self) -> Examples:
        """60,000 pictures; pixels uint8 [n, 1, 28, 28]."""
        return _read(self.folder, "train")

    def test_data(self) -> Examples:
        """10,000 pictures."""
        return _read(self.folder, "t10k")

    def build_model(self) -> nn.Module:
        """Two convolutions and one hidden layer, or two hidden layers."""
        return _cnn() if self.model == "cnn" else _mlp()

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Mean cross-entropy."""
        return _classify.mean_loss(model, x, y)

    def evaluate(self, model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float, int]:
        """Sums of cross-entropy and of right answers, and the number of pictures."""
        return _classify.sums(model, x, y)


class Standardize(nn.Module):
    """Pixels 0-255 to mean 0 and variance 1, in the model: bytes take a quarter of the memory."""

    def forward(self, pixels: Tensor) -> Tensor:
        """uint8 [b, 1, 28, 28] to float32 of the same shape."""
        return (pixels.to(torch.float32) / 255 - _PIXEL_MEAN) / _PIXEL_STD


@cache
def _read(folder: str, part: str) -> Examples:
    pixels = read_idx(_find(Path(folder), f"{part}-images-idx3-ubyte"), ndim=3)
    labels = read_idx(_find(Path(folder), f"{part}-labels-idx1-ubyte"), ndim=1)
    if pixels.shape[1:] != (_SIDE, _SIDE) or len(pixels) != len(labels):
        raise ConfigError(
            f"{folder}: {part} has images {list(pixels.shape)} and {len(labels)} labels; "
            f"expected [n, {_SIDE}, {_SIDE}] and n"
        )
    if labels.size and labels.max() >= _CLASSES:
        raise ConfigError(f"{folder}: {part} has label {labels.max()}; labels are 0 to 9")
    return Examples(torch.from_numpy(pixels)[:, None], torch.from_numpy(labels).to(torch.int64))


def _find(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise ConfigError(
        f"task.options.folder: {folder} has no {name}[.gz]; get the data with "
        "'apt install dataset-fashion-mnist' or name the folder that holds its four IDX files"
    )


def _cnn() -> nn.Module:
    # ReLU after pooling gives the same values as before it, at a quarter of the work.
    return nn.Sequential(
        Standardize(),
        nn.Conv2d(1, 16, 5, padding=2),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 5, padding=2),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 48),
        nn.ReLU(),
        nn.Linear(48, _CLASSES),
    )


def _mlp() -> nn.Module:
    return nn.Sequential(
        Standardize(),
        nn.Flatten(),
        nn.Linear(_SIDE * _SIDE, 128),
        nn.ReLU(),
        nn.Linear(128, 64),
        nn.ReLU(),
        nn.Linear(64, _CLASSES),
    )


Impl = FashionMnist
