"""Does local training run at the speed of the machine? ``python -m benchmarks.training [--quick]``.

One row a bar: what was measured and what must be reached. Speeds are ratios of medians of CPU time,
measured in turns in this process on one thread, so they carry over between machines; the peer is
torch's own loop, as most write it. Two pieces of work, on random data of Fashion-MNIST's shapes:
W1, a CNN of 184,586 parameters in batches of 32, and W2, an MLP 784-64-10 in batches of 20, 50
clients of 60 examples. Exit status 1 when a bar is missed.
"""

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.bars import Bar, finish, parser_for
from benchmarks.provenance import provenance
from clients.cohort import Job, train_cohort
from clients.tasks import _classify
from clients.tasks._base import Examples
from clients.train import train
from clients.weights import Exchange, build_model
from clients.workplace import Workplace, workplace_for

_EXPERIMENT = """
[task]
name = "benchmarks.training:{task}"
[partition]
clients = {clients}
kind = "iid"
[training]
batch_size = {batch_size}
lr = 0.05
stacked = "{stacked}"
fast_conv = "{fast_conv}"
"""


class Cnn(nn.Module):
    """Two convolutions, relu before pooling, as tutorials have it."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(1, 32, 5), nn.Conv2d(32, 64, 5)
        self.three, self.four = nn.Linear(1024, 128), nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        """float32 [b, 1, 28, 28] to logits [b, 10]."""
        x = functional.max_pool2d(functional.relu(self.one(x)), 2)
        x = functional.max_pool2d(functional.relu(self.two(x)), 2)
        logits: Tensor = self.four(functional.relu(self.three(x.flatten(1))))
        return logits


class Mlp(nn.Module):
    """One hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(784, 64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """float32 [b, 1, 28, 28] to logits [b, 10]."""
        logits: Tensor = self.two(functional.relu(self.one(x.flatten(1))))
        return logits


@dataclass(frozen=True, slots=True)
class Pictures:
    """Random pictures of ten classes."""

    metric: ClassVar[str] = "accuracy"
    examples: ClassVar[int] = 3000
    model: ClassVar[type[nn.Module]] = Mlp

    def train_data(self) -> Examples:
        """Pixels float32 [n, 1, 28, 28]."""
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(self.examples, 1, 28, 28, generator=generator)
        return Examples(x, torch.randint(0, 10, (self.examples,), generator=generator))

    def test_data(self) -> Examples:
        """The same; nobody looks at it."""
        return self.train_data()

    def build_model(self) -> nn.Module:
        """The model of this work."""
        return self.model()

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Mean cross-entropy."""
        return _classify.mean_loss(model, x, y)

    def evaluate(self, model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float, int]:
        """Sums of cross-entropy and of right answers, and the number of pictures."""
        return _classify.sums(model, x, y)


class W2(Pictures):
    """50 clients of 60 pictures."""


class W1(Pictures):
    """One client of 320 pictures."""

    examples: ClassVar[int] = 320
    model: ClassVar[type[nn.Module]] = Cnn


def place_for(task: str, clients: int, batch_size: int, stacked: str, fast_conv: str) -> Workplace:
    """What the simulator's worker would have for this work."""
    return workplace_for(
        _EXPERIMENT.format(
            task=task, clients=clients, batch_size=batch_size, stacked=stacked, fast_conv=fast_conv
        )
    )


def torchs_loop(place: Workplace) -> Callable[[], None]:
    """All clients, one epoch each: a new torch.optim.SGD for each, an index for each batch.

    Keeps what they have learned, as a client that replies must.
    """
    model, data = place.data.task.build_model(), place.data
    received = [p.detach().clone() for p in model.parameters()]
    size = place.experiment.training.batch_size
    trained: dict[int, list[Tensor]] = {}

    def run() -> None:
        for client, part in enumerate(data.parts):
            with torch.no_grad():
                for p, start in zip(model.parameters(), received, strict=True):
                    p.copy_(start)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            order = torch.from_numpy(part)[torch.randperm(len(part))]
            for first in range(0, len(part), size):
                index = order[first : first + size]
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(data.train.x[index]), data.train.y[index])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            trained[client] = [p.detach().clone() for p in model.parameters()]

    return run


def bare_loop(place: Workplace) -> Callable[[], None]:
    """The limit of eager torch: as many steps on one batch that is there, and nothing else."""
    model, training = place.data.task.build_model(), place.experiment.training
    params, examples = list(model.parameters()), place.data.train
    x, y = examples.x[: training.batch_size], examples.y[: training.batch_size]
    steps = sum(-(-len(part) // training.batch_size) for part in place.data.parts)

    def run() -> None:
        for _ in range(steps):
            gradients = torch.autograd.grad(functional.cross_entropy(model(x), y), params)
            with torch.no_grad():
                torch._foreach_add_(params, list(gradients), alpha=-0.05)

    return run


def ours(place: Workplace) -> Callable[[], None]:
    """All clients, one epoch each, by the simulator's own function."""
    jobs = _jobs(place)
    out = np.empty((len(jobs), place.layout.n), np.float32)

    def run() -> None:
        train_cohort(place, jobs, out)

    return run


def medians_ms(works: Mapping[str, Callable[[], None]], turns: int) -> dict[str, float]:
    """Median CPU time of each, in milliseconds, taken in turns."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():
        work()
    for _ in range(turns):
        for name, work in works.items():
            start_s = time.process_time()
            work()
            times[name].append(1e3 * (time.process_time() - start_s))
    return {name: statistics.median(taken) for name, taken in times.items()}


def mlp_rows(turns: int) -> list[Bar]:
    """W2: overhead counts."""
    stacked = place_for("W2", 50, 20, "auto", "auto")
    plain = place_for("W2", 50, 20, "off", "auto")
    works = {
        "torch": torchs_loop(plain),
        "loop": loop_alone(plain),
        "one by one": ours(plain),
        "stacked": ours(stacked),
    }
    found = medians_ms(works, turns)
    print(f"W2, ms a step: {_shown(found, 150)}")
    return [
        Bar(
            "W2: the loop alone, times torch's", 1.2, found["torch"] / found["loop"], at_least=True
        ),
        Bar(
            "W2: one by one, times torch's loop",
            1.0,
            found["torch"] / found["one by one"],
            at_least=True,
        ),
        Bar(
            "W2: stacked, times torch's loop", 3.0, found["torch"] / found["stacked"], at_least=True
        ),
        Bar("W2: stacked, largest error / largest step", 1e-5, _error(stacked, plain)),
        Bar("W2: clients whose bits depend on others", 0, _strays(stacked)),
    ]


def cnn_rows(turns: int) -> list[Bar]:
    """W1: arithmetic counts."""
    fast = place_for("W1", 1, 32, "auto", "on")
    written = place_for("W1", 1, 32, "auto", "off")
    works = {"bare": bare_loop(written), "written": ours(written), "fast": ours(fast)}
    found = medians_ms(works, turns)
    print(f"W1, ms a step: {_shown(found, 10)}")
    return [
        Bar(
            "W1: as written, times the bare loop",
            0.95,
            found["bare"] / found["written"],
            at_least=True,
        ),
        Bar("W1: fast, times the bare loop", 1.4, found["bare"] / found["fast"], at_least=True),
        Bar("W1: fast, largest error / largest step", 1e-2, _error(fast, written)),
    ]


def _shown(found: Mapping[str, float], steps: int) -> str:
    return ", ".join(f"{name} {value / steps:.3f}" for name, value in found.items())


def loop_alone(place: Workplace) -> Callable[[], None]:
    """All clients, one epoch each, without what makes a client's chance its own."""
    jobs, data, training = _jobs(place), place.data, place.experiment.training
    size, out = training.batch_size, np.empty(place.layout.n, np.float32)

    def run() -> None:
        for job in jobs:
            part = data.parts[job.client]
            place.weights.load(job.start)
            steps = [[part[first : first + size]] for first in range(0, len(part), size)]
            train(place.model, data.task, data.train.x, data.train.y, steps, training, training.lr)
            place.weights.save(out)

    return run


def _jobs(place: Workplace) -> list[Job]:
    start = Exchange(build_model(place.data.task, place.experiment.run.seed)).save()
    return [Job(client=client, start=start, round=1) for client in range(len(place.data.parts))]


def _flats(place: Workplace, jobs: Sequence[Job]) -> np.ndarray:
    """Trained weights float32 [jobs, n]."""
    out = np.empty((len(jobs), place.layout.n), np.float32)
    train_cohort(place, jobs, out)
    return out


def _error(one: Workplace, other: Workplace) -> float:
    """Largest difference of a weight after an epoch, over the largest step of that client's."""
    jobs = _jobs(one)
    a, b = _flats(one, jobs), _flats(other, jobs)
    return float(np.max(np.abs(a - b).max(1) / np.abs(b - jobs[0].start.flat).max(1)))


def _strays(place: Workplace) -> int:
    """Clients whose weights are other bits when they are trained beside fewer others."""
    jobs = _jobs(place)
    whole = _flats(place, jobs)
    cuts = (jobs[:1], jobs[1:4], jobs[4:17], jobs[17:])
    parts = np.concatenate([_flats(place, part) for part in cuts])
    return int(np.count_nonzero((whole != parts).any(1)))


def main() -> int:
    """Print the table; the exit status."""
    options = parser_for(__doc__, "fewer turns").parse_args()
    torch.set_num_threads(1)
    turns = 7 if options.quick else 30
    rows = [*mlp_rows(turns), *cnn_rows(turns)]
    for row in rows:
        print(row.line())
    return finish(rows, {"source": provenance()}, options.json)


if __name__ == "__main__":
    sys.exit(main())
