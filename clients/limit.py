"""How fast this machine trains, without a federation: what a simulation can be compared with.

Both functions are called in each worker process at once, by name, and give wall seconds.
"""

from collections.abc import Callable
from itertools import count
from statistics import median

import torch

from clients.cohort import Job, train_cohort
from clients.weights import build_model
from clients.workplace import Workplace, workplace_for
from fedsys.clock import WallClock
from fedsys.partial import blocks_of

_LEAST = 3
"""Measurements that a median is taken of, however long one takes."""


def bare_step_s(text: str, batch: int, seconds: float) -> float:
    """One step on a batch that is there already: forward, backward, and an update in place.

    The model is as its task has it, and no step does anything else; ``seconds`` is how long to
    measure.
    """
    place = workplace_for(text)
    experiment, task, device = place.experiment, place.data.task, place.device
    model = build_model(task, experiment.run.seed).to(device)
    x, y = (part[:batch].to(device) for part in (place.data.train.x, place.data.train.y))
    parameters = [one for one in model.parameters() if one.requires_grad]

    def step() -> None:
        loss = task.loss(model, x, y)
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
        pairs = [(p, g) for p, g in zip(parameters, found, strict=True) if g is not None]
        with torch.no_grad():
            torch._foreach_add_(*map(list, zip(*pairs, strict=True)), alpha=-1e-6)
        if device.type == "cuda":
            torch.cuda.synchronize()

    return _median_s(step, seconds)


def blocks_s(
    text: str, cohort: int, local_steps: int, rank: int, workers: int, seconds: float
) -> float:
    """The training of every ``workers``-th block of a round, from number ``rank`` on.

    ``cohort`` clients of the experiment train ``local_steps`` each, other ones in each turn.
    """
    place = workplace_for(text)
    return _median_s(block_training(place, cohort, local_steps, rank, workers), seconds)


def block_training(
    place: Workplace, cohort: int, local_steps: int, rank: int, workers: int
) -> Callable[[], None]:
    """What ``blocks_s`` measures: each call trains the next turn's clients from the same start."""
    start = place.weights.save()
    mine, turns = blocks_of(cohort)[rank::workers], count(1)

    def train_all() -> None:
        turn = next(turns)
        for block in mine:
            jobs = [
                Job(
                    client=(turn * cohort + number) % place.experiment.partition.clients,
                    start=start,
                    round=turn,
                    local_steps=local_steps,
                )
                for number in range(cohort)[block]
            ]
            train_cohort(place, jobs)

    return train_all


def _median_s(action: Callable[[], None], seconds: float) -> float:
    """Of ``action`` once it has run in; at least three times, else as often as time allows."""
    action()
    clock, taken = WallClock(), list[float]()
    begin_s = clock.now_s()
    while len(taken) < _LEAST or clock.now_s() - begin_s < seconds:
        start_s = clock.now_s()
        action()
        taken.append(clock.now_s() - start_s)
    return median(taken)
