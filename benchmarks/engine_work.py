"""The pieces of work that the engine is measured by: tasks, and experiments made of them.

W1 and W2 have the shapes of Fashion-MNIST, and its pictures where they are installed; time does
not depend on what is in them. W3 and the million repeat scikit-learn's digits.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from clients.tasks import _classify
from clients.tasks._base import Examples
from clients.tasks.digits import Digits
from clients.tasks.fashion_mnist import FashionMnist, Standardize
from fedsys.config.load import parse_experiment
from fedsys.config.schema import Experiment
from fedsys.errors import ConfigError

TRACES = Path(__file__).parents[2] / "shared" / "traces"
_PICTURES, _TESTS, _CLASSES = 60_000, 10_000, 10


class Cnn(nn.Module):
    """Two convolutions, relu before pooling, as tutorials have it: 184,586 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(1, 32, 5), nn.Conv2d(32, 64, 5)
        self.three, self.four = nn.Linear(1024, 128), nn.Linear(128, _CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """float32 [b, 1, 28, 28] to logits [b, 10]."""
        x = functional.max_pool2d(functional.relu(self.one(x)), 2)
        x = functional.max_pool2d(functional.relu(self.two(x)), 2)
        logits: Tensor = self.four(functional.relu(self.three(x.flatten(1))))
        return logits


class Scale(nn.Module):
    """Bytes of 0 to 16 as numbers of 0 to 1."""

    def forward(self, pixels: Tensor) -> Tensor:
        """uint8 to float32 of the same shape."""
        return pixels.to(torch.float32) / 16


class _Classes:
    """Cross-entropy and accuracy."""

    metric: ClassVar[str] = "accuracy"

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Mean cross-entropy."""
        return _classify.mean_loss(model, x, y)

    def evaluate(self, model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float, int]:
        """Sums of cross-entropy and of right answers, and their number."""
        return _classify.sums(model, x, y)


@dataclass(frozen=True)
class W1(_Classes):
    """The CNN on pictures of 28 x 28."""

    def train_data(self) -> Examples:
        """60,000 pictures."""
        return _pictures(True)

    def test_data(self) -> Examples:
        """10,000 pictures."""
        return _pictures(False)

    def build_model(self) -> nn.Module:
        """The CNN behind the pixels' scaling."""
        return nn.Sequential(Standardize(), Cnn())


@dataclass(frozen=True)
class W2(_Classes):
    """The MLP 784-64-10 on the same, scaled once beforehand, as peers do it."""

    def train_data(self) -> Examples:
        """60,000 pictures."""
        data = _pictures(True)
        return Examples(Standardize()(data.x), data.y)

    def test_data(self) -> Examples:
        """10,000 pictures."""
        data = _pictures(False)
        return Examples(Standardize()(data.x), data.y)

    def build_model(self) -> nn.Module:
        """50,890 parameters."""
        layers = (nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, _CLASSES))
        return nn.Sequential(nn.Flatten(), *layers)


@dataclass(frozen=True)
class ManyDigits(_Classes):
    """``examples`` digits of 8 x 8, the same ones again and again, and the task's own MLP."""

    examples: int = 200_000

    def train_data(self) -> Examples:
        """Pixels uint8 [n, 64]."""
        return _repeated(Digits().train_data(), self.examples)

    def test_data(self) -> Examples:
        """359 of them."""
        data = Digits().test_data()
        return _repeated(data, len(data))

    def build_model(self) -> nn.Module:
        """17,226 parameters."""
        return nn.Sequential(Scale(), *Digits().build_model())


@dataclass(frozen=True, slots=True)
class Work:
    """One experiment of the benchmark."""

    task: str
    clients: int
    cohort: int
    examples: int
    """Of each client."""
    batch: int
    epochs: int
    network: str = '{ link = "perfect" }'
    devices: str = '{ profile = "instant" }'
    options: dict[str, Any] = field(default_factory=dict)
    """Of the task."""

    @property
    def steps(self) -> int:
        """Local steps of a round, of all clients together."""
        return self.cohort * self.epochs * -(-self.examples // self.batch)

    def experiment(self, rounds: int, settings: list[str]) -> Experiment:
        """What runs; evaluated once, at its end, unless ``settings`` say otherwise."""
        return parse_experiment(
            f"""
            run = {{ name = "engine", evaluate_every_rounds = {rounds}, budget.rounds = {rounds} }}
            task = {{ name = "benchmarks.engine_work:{self.task}" }}
            partition = {{ clients = {self.clients}, kind = "iid" }}
            training = {{ batch_size = {self.batch}, lr = 0.05 }}
            cohort = {{ size = {self.cohort} }}
            strategy = {{ options = {{ local_epochs = {self.epochs} }} }}
            network = {self.network}
            devices = {self.devices}
            """,
            [*(f"task.options.{key}={value}" for key, value in self.options.items()), *settings],
            where="benchmark",
        )


def works() -> dict[str, Work]:
    """All of them by name."""
    trace = TRACES / "mahimahi-Verizon-LTE-short"
    recorded = (
        f'options = {{ up_file = "{trace}.up", down_file = "{trace}.down", delay_ms = 30.0 }}'
    )
    lte = f'{{ link = "trace", {recorded}, server_up_mbps = 10000.0, server_down_mbps = 10000.0 }}'
    if not TRACES.is_dir():
        lte = '{ link = "lte", server_up_mbps = 10000.0, server_down_mbps = 10000.0 }'
    pi = '{ profile = "raspberry-pi-4", options = { spread = 0.3 } }'
    many = {"examples": 200_000}
    return {
        "W1": Work("W1", 100, 10, 600, 32, 2),
        "W2": Work("W2", 1000, 50, 60, 20, 1),
        "W3": Work("ManyDigits", 10_000, 1000, 20, 10, 1, lte, pi, many),
        "million": Work("ManyDigits", 1_000_000, 1000, 2, 10, 1, options={"examples": 2_000_000}),
    }


def _pictures(training: bool) -> Examples:
    task = FashionMnist()
    try:
        return task.train_data() if training else task.test_data()
    except ConfigError:
        count = _PICTURES if training else _TESTS
        generator = torch.Generator().manual_seed(count)
        shape = (count, 1, 28, 28)
        pixels = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
        return Examples(pixels, torch.randint(0, _CLASSES, (count,), generator=generator))


def _repeated(data: Examples, count: int) -> Examples:
    pixels = (data.x * 16).to(torch.uint8)
    times = -(-count // len(data))
    return Examples(pixels.repeat(times, 1)[:count], data.y.repeat(times)[:count])
