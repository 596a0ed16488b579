"""Handwritten digits of 8 x 8 pixels that come with scikit-learn: 1797 images, no download."""

from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from clients.tasks import _classify
from clients.tasks._base import Examples
from fedsys.rng import rng_for

_TEST_FRACTION = 0.2


@dataclass(frozen=True, slots=True)
class Digits:
    """Handwritten digits, 8 x 8 pixels: 1438 training and 359 test images, ten classes.

    ``model = "mlp"`` has 17,226 parameters, ``"cnn"`` 13,706.
    """

    metric: ClassVar[str] = "accuracy"
    model: Literal["mlp", "cnn"] = "mlp"

    def train_data(self) -> Examples:
        """The first 80 % of a fixed permutation; pixels float32 [n, 64] in [0, 1]."""
        return _split()[0]

    def test_data(self) -> Examples:
        """The last 20 %, whatever the experiment's seed."""
        return _split()[1]

    def build_model(self) -> nn.Module:
        """Two hidden layers, or two convolutions and one hidden layer."""
        return _mlp() if self.model == "mlp" else _cnn()

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Mean cross-entropy."""
        return _classify.mean_loss(model, x, y)

    def evaluate(self, model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float, int]:
        """Sums of cross-entropy and of right answers, and the number of images."""
        return _classify.sums(model, x, y)


@cache
def _split() -> tuple[Examples, Examples]:
    # Imported here because it takes most of a second, which a server without data saves.
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    order = torch.from_numpy(rng_for(0, "digits", "test split").permutation(len(labels)))
    x = (torch.from_numpy(pixels).to(torch.float32) / 16)[order]
    y = torch.from_numpy(labels).to(torch.int64)[order]
    first_test = len(y) - round(_TEST_FRACTION * len(y))
    return Examples(x[:first_test], y[:first_test]), Examples(x[first_test:], y[first_test:])


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)
    )


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


Impl = Digits
