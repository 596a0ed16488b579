"""What this machine could reach: training alone, in as many processes, without a federation.

``python -m benchmarks.engine_limit W1 [eager] [training] [--workers 2] [--seconds 4]`` prints
seconds per round of each as JSON. ``eager`` is forward, backward and update of one resident batch,
as most write it; ``training`` is ``train_cohort`` on the work's own clients, a round's share in
each process.
"""

import argparse
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from queue import Queue

import torch
from torch.nn import functional

from benchmarks.engine_work import Work, works
from clients.limit import block_training
from clients.workplace import workplace_for
from fedsys.config.load import dump_toml
from fedsys.engine.memory import keep_freed_memory

_LIMIT_S = 240.0
"""A process that waits longer for another gives up."""
_EAGER_STEPS = 38
"""Timed at once; so a round of a large model need not be run through."""


def main() -> None:
    """Measure and print one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work")
    parser.add_argument("kinds", nargs="+", choices=("eager", "training"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    results: Queue[list[float]] = context.Queue()
    barrier = context.Barrier(options.workers, timeout=_LIMIT_S)
    arguments = (options.work, options.kinds, options.seconds, options.set, barrier, results)
    processes = [
        context.Process(daemon=True, target=_measure, args=(rank, options.workers, *arguments))
        for rank in range(options.workers)
    ]
    for process in processes:
        process.start()
    times = [results.get(timeout=_LIMIT_S) for _ in processes]
    for process in processes:
        process.join()
    slowest = [max(of_all) for of_all in zip(*times, strict=True)]
    print(json.dumps(dict(zip(options.kinds, slowest, strict=True))))


def _measure(
    rank: int,
    workers: int,
    name: str,
    kinds: list[str],
    seconds: float,
    settings: list[str],
    barrier: Barrier,
    results: "Queue[list[float]]",
) -> None:
    torch.set_num_threads(1)
    work = works()[name]
    found = []
    for kind in kinds:
        make = _eager
        if kind == "training":
            make = _training
            keep_freed_memory()  # as workers do
        action, parts = make(work, settings, rank, workers)
        action()
        barrier.wait()
        times, until_s = [], time.perf_counter() + seconds
        while time.perf_counter() < until_s or len(times) < 3:
            begin_s = time.perf_counter()
            action()
            times.append(time.perf_counter() - begin_s)
        found.append(parts * statistics.median(times))
        barrier.wait()
    results.put(found)


Action = tuple[Callable[[], None], float]
"""What to measure, and how many of it make a process's part of a round."""


def _eager(work: Work, settings: list[str], rank: int, workers: int) -> Action:
    """Steps on one batch, autograd and in-place SGD."""
    inner = {"W1": "Cnn", "W2": "Mlp"}[work.task]
    model = _plain_model(inner)
    x = torch.randn(work.batch, 1, 28, 28)
    y = torch.randint(0, 10, (work.batch,))
    parameters = list(model.parameters())
    mine = work.steps // workers
    steps = min(mine, _EAGER_STEPS)

    def action() -> None:
        for _ in range(steps):
            loss = functional.cross_entropy(model(x), y)
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                torch._foreach_add_(parameters, gradients, alpha=-0.05)

    return action, mine / steps


def _plain_model(name: str) -> torch.nn.Module:
    from benchmarks.engine_work import Cnn

    if name == "Cnn":
        return Cnn()
    layers = (torch.nn.Linear(784, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    return torch.nn.Sequential(torch.nn.Flatten(), *layers)


def _training(work: Work, settings: list[str], rank: int, workers: int) -> Action:
    """This process's blocks of a round, from the same weights each time."""
    place = workplace_for(dump_toml(work.experiment(1, settings)))
    return block_training(place, work.cohort, work.steps // work.cohort, rank, workers), 1.0


if __name__ == "__main__":
    main()
