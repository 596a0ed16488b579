"""Local training of several clients in one process.

What a client gets depends on its job alone: not on the other jobs, nor on their order.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from clients.data.loader import Step, local_steps, steps_per_epoch
from clients.device import seed_torch
from clients.stack import Stack, rows_for
from clients.stacked import Member
from clients.train import Diverged, TrainResult, result_of, train
from clients.weights import Array, Layout, Weights
from clients.workplace import Workplace
from fedsys.clock import WallClock
from fedsys.config.schema import Training
from fedsys.rng import rng_for, seed_for
from fedsys.types import F32, I64


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


def train_cohort(
    place: Workplace, jobs: Sequence[Job], out: F32 | None = None
) -> list[Trained | Diverged]:
    """Train each job's client from its start; results in order, Diverged for one that failed.

    The trained vectors are the rows of ``out``, float32 [jobs, n], which may be shared memory; a
    new matrix where it is None. Equal jobs give equal bytes, however they are divided among calls
    and processes. The workplace's model is used on the way and holds nothing of use afterwards.
    """
    if out is None:
        out = np.empty((len(jobs), place.layout.n), np.float32)
    if place.stack is None:
        return [_alone(place, job, row) for job, row in zip(jobs, out, strict=True)]
    place.model.train()
    members = [_member(place, job, row) for job, row in zip(jobs, out, strict=True)]
    training = place.experiment.training
    full = training.batch_size * training.accumulation_steps
    trained: dict[int, Trained | Diverged] = {}
    for rows, group in _groups(members, full).items():
        for start in range(0, len(group), place.stack.chunk):
            chunk = group[start : start + place.stack.chunk]
            stacked = _together(place, place.stack, [members[k] for k in chunk], rows)
            trained.update(zip(chunk, stacked, strict=True))
    return [trained[k] for k in range(len(jobs))]


def _alone(place: Workplace, job: Job, out: F32) -> Trained | Diverged:
    """Train one client with autograd."""
    clock = WallClock()
    start_s = clock.now_s()
    training, seed = _training(place, job), place.experiment.run.seed
    place.weights.load(job.start)
    x, y, steps = place.data.train.x, place.data.train.y, _steps(place, job)
    part = place.data.part(job.client)
    if place.device.type == "cpu":
        # Gathered once, at the step, instead of the client's examples first.
        steps = ([part[batch] for batch in step] for step in steps)
    else:
        x, y = x[part].to(place.device), y[part].to(place.device)
    seed_torch(seed_for(seed, "train", job.client, job.round), place.device)
    try:
        result = train(place.model, place.data.task, x, y, steps, training, training.lr)
    except Diverged as error:
        return error
    return _judged(
        place.layout, place.weights.save(out), result, len(part), clock.now_s() - start_s
    )


def _together(
    place: Workplace, stack: Stack, members: Sequence[Member], rows: int
) -> list[Trained | Diverged]:
    """Train some clients as one stack."""
    clock = WallClock()
    start_s = clock.now_s()
    losses = stack.train(members, rows, place.experiment.training)
    each_s = (clock.now_s() - start_s) / sum(len(m.steps) for m in members)
    trained: list[Trained | Diverged] = []
    for m, values in zip(members, losses, strict=True):
        try:
            result = result_of(values, sum(map(len, m.steps)))
        except Diverged as error:
            trained.append(error)
            continue
        weights, train_s = Weights(m.out), each_s * len(m.steps)
        trained.append(_judged(place.layout, weights, result, m.examples, train_s))
    return trained


def _judged(
    layout: Layout, weights: Weights, result: TrainResult, examples: int, train_s: float
) -> Trained | Diverged:
    """What training gave, or Diverged where a weight is not finite."""
    # A sum is not finite where a value is not, and costs a tenth of looking at each.
    suspects: dict[str, Array] = {
        name: values for name, values in weights.exact.items() if values.dtype.kind == "f"
    }
    with np.errstate(over="ignore", invalid="ignore"):
        if not np.isfinite(np.add.reduce(weights.flat)):
            suspects.update(layout.parts(weights.flat))
    for name, values in suspects.items():
        if not np.isfinite(values).all():
            return Diverged(f"after local step {result.local_steps}: '{name}' is not finite")
    return Trained(weights, examples, result, train_s)


def _member(place: Workplace, job: Job, out: F32) -> Member:
    part, training = place.data.part(job.client), place.experiment.training
    return Member(
        start=job.start.flat,
        examples=len(part),
        steps=[part[_joined(step)] for step in _steps(place, job)],
        lr=training.lr if job.lr is None else job.lr,
        proximal_mu=training.proximal_mu if job.proximal_mu is None else job.proximal_mu,
        out=out,
    )


def _joined(step: Step) -> I64:
    return step[0] if len(step) == 1 else np.concatenate(step)


def _groups(members: Sequence[Member], full: int) -> dict[int, list[int]]:
    """Numbers of the members with equal rows, those with the most steps first."""
    groups: dict[int, list[int]] = {}
    for k in sorted(range(len(members)), key=lambda k: -len(members[k].steps)):
        rows = rows_for(max(map(len, members[k].steps)), full)
        groups.setdefault(rows, []).append(k)
    return groups


def _steps(place: Workplace, job: Job) -> Iterator[Step]:
    """The job's local steps: indices into the client's own examples."""
    training, examples = place.experiment.training, len(place.data.part(job.client))
    batching = (examples, training.batch_size, training.accumulation_steps)
    epoch = steps_per_epoch(*batching)
    rng = rng_for(place.experiment.run.seed, "batches", job.client, job.round)
    return local_steps(*batching, epoch if job.local_steps is None else job.local_steps, rng)


def _training(place: Workplace, job: Job) -> Training:
    """The experiment's training with what the job has in place of it."""
    own = {"lr": job.lr, "proximal_mu": job.proximal_mu}
    return place.experiment.training.model_copy(
        update={key: value for key, value in own.items() if value is not None}
    )
