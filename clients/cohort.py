"""Local training of several clients in one process.

What a client gets depends on its job alone: not on the other jobs, nor on their order.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from clients.data.loader import local_steps, steps_per_epoch
from clients.device import seed_torch
from clients.train import Diverged, TrainResult, train
from clients.weights import Weights, load_arrays
from clients.workplace import Workplace
from fedsys.clock import WallClock
from fedsys.config.schema import Training
from fedsys.rng import rng_for, seed_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One client's local training in one round."""

    client: int
    """Number in the partition, from 0."""
    start: Weights
    """What the client received; jobs may share one."""
    round: int = 0
    local_steps: int | None = None
    """None is one epoch."""
    lr: float | None = None
    """None is the experiment's, as with ``proximal_mu``."""
    proximal_mu: float | None = None


@dataclass(frozen=True, slots=True)
class Trained:
    """What one client's training gave."""

    weights: Weights
    examples: int
    result: TrainResult
    train_s: float
    """Wall seconds; of a stack of clients, this one's share."""


def train_cohort(place: Workplace, jobs: Sequence[Job]) -> list[Trained | Diverged]:
    """Train each job's client from its start; results in order, Diverged for one that failed.

    Equal jobs give equal bytes, however they are divided among calls and processes. The workplace's
    model is used on the way and holds nothing of use afterwards.
    """
    return [_alone(place, job) for job in jobs]


def _alone(place: Workplace, job: Job) -> Trained | Diverged:
    """Train one client with autograd."""
    clock = WallClock()
    start_s = clock.now_s()
    training, seed = _training(place, job), place.experiment.run.seed
    load_arrays(place.model, place.layout.arrays(job.start))
    x, y = place.data.of_client(job.client)
    batching = (len(x), training.batch_size, training.accumulation_steps)
    steps = local_steps(
        *batching,
        steps_per_epoch(*batching) if job.local_steps is None else job.local_steps,
        rng_for(seed, "batches", job.client, job.round),
    )
    seed_torch(seed_for(seed, "train", job.client, job.round), place.device)
    x, y = x.to(place.device), y.to(place.device)
    try:
        result = train(place.model, place.data.task, x, y, steps, training, training.lr)
    except Diverged as error:
        return error
    return Trained(place.layout.save(place.model), len(x), result, clock.now_s() - start_s)


def _training(place: Workplace, job: Job) -> Training:
    """The experiment's training with what the job has in place of it."""
    own = {"lr": job.lr, "proximal_mu": job.proximal_mu}
    return place.experiment.training.model_copy(
        update={key: value for key, value in own.items() if value is not None}
    )
