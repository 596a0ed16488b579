"""Local training of several clients in one process.

What a client gets depends on its job alone: not on the other jobs, nor on their order.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from clients.data.feed import examples_of
from clients.data.loader import Step, joined_steps, local_steps, steps_per_epoch
from clients.device import seed_torch
from clients.stack import Stack, rows_for
from clients.stacked import Member
from clients.train import Diverged, TrainResult, check_finite, result_of, train
from clients.weights import Weights
from clients.workplace import Workplace
from fedsys.clock import WallClock
from fedsys.config.schema import Training
from fedsys.rng import rng_for, seed_for
from fedsys.types import F32


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
    """Wall seconds for all of it; of a stack of clients, this one's share, as below."""
    load_s: float
    """Seconds for weights and examples to come where they are used, and the weights to go."""

    @property
    def stages(self) -> dict[str, float]:
        """Seconds of each part of the training by name; together they are ``train_s``."""
        gather_s = self.result.gather_s
        compute_s = self.train_s - self.load_s - gather_s
        return {"load": self.load_s, "gather": gather_s, "compute": compute_s}


def train_cohort(
    place: Workplace, jobs: Sequence[Job], out: F32 | None = None
) -> list[Trained | Diverged]:
    """Train each job's client from its start; results in order, Diverged for one that failed.

    The trained vectors are the rows of ``out``, float32 [jobs, n], which may be shared memory; a
    new matrix where it is None. Equal jobs give equal bytes, however they are divided among calls
    and processes. The workplace's model is used on the way and holds nothing of use afterwards.
    """
    if place.stack is None:
        if out is None:
            out = np.empty((len(jobs), place.layout.n), np.float32)
        return _one_by_one(place, jobs, out)
    if not place.model.training:
        place.model.train()
    members = [_member(place, job) for job in jobs]
    training = place.experiment.training
    full = training.batch_size * training.accumulation_steps
    trained: dict[int, Trained | Diverged] = {}
    for (rows, _), group in _groups(members, full).items():
        for chunk in _evenly(group, place.stack.chunk):
            rest = [None if out is None else out[k] for k in chunk]
            stacked = _together(place, place.stack, [members[k] for k in chunk], rows, rest)
            trained.update(zip(chunk, stacked, strict=True))
    return [trained[k] for k in range(len(jobs))]


def _evenly(numbers: Sequence[int], most: int) -> Iterator[Sequence[int]]:
    """``numbers`` in as few parts of at most ``most`` as can be, of nearly equal length."""
    parts = -(-len(numbers) // most)
    for part in range(parts):
        yield numbers[len(numbers) * part // parts : len(numbers) * (part + 1) // parts]


def _one_by_one(place: Workplace, jobs: Sequence[Job], out: F32) -> list[Trained | Diverged]:
    """Train clients with autograd, one after the other."""
    clock = WallClock()
    examples: Iterator[tuple[Tensor, Tensor]] | None = None
    if place.device.type != "cpu":
        clients, prefetch = [job.client for job in jobs], place.experiment.training.prefetch
        examples = examples_of(place.data, clients, place.device, prefetch=prefetch)
    trained = []
    for job, row in zip(jobs, out, strict=True):
        start_s = clock.now_s()
        steps = _steps(place, job)
        if examples is not None:
            x, y = next(examples)
        else:
            # Picked out of all examples at the step, instead of the client's first.
            x, y, part = place.data.train.x, place.data.train.y, place.data.part(job.client)
            steps = ([part[batch] for batch in step] for step in steps)
        trained.append(_alone(place, job, (x, y), steps, row, start_s))
    return trained


def _alone(
    place: Workplace,
    job: Job,
    examples: tuple[Tensor, Tensor],
    steps: Iterator[Step],
    out: F32,
    start_s: float,
) -> Trained | Diverged:
    """Train one client with autograd; ``steps`` index ``examples``."""
    clock = WallClock()
    training, seed, task = _training(place, job), place.experiment.run.seed, place.data.task
    lr = training.lr if job.lr is None else job.lr
    place.weights.load(job.start)
    seed_torch(seed_for(seed, "train", job.client, job.round), place.device)
    augment = None
    # Not isinstance, which for a protocol takes as long as ten operations of torch.
    if training.augment and hasattr(task, "augment"):
        generator = torch.Generator(place.device)
        generator.manual_seed(seed_for(seed, "augment", job.client, job.round))
        augment = partial(task.augment, generator=generator)
    loaded_s = clock.now_s()
    try:
        result = train(place.model, task, *examples, steps, training, lr, augment)
        trained_s = clock.now_s()
        weights = place.weights.save(out)
        check_finite(weights.exact, result.local_steps)
        with np.errstate(over="ignore", invalid="ignore"):
            # A sum is not finite where a value is not, and costs a tenth of looking at each.
            if not np.isfinite(np.add.reduce(weights.flat)):
                check_finite(place.layout.parts(weights.flat), result.local_steps)
    except Diverged as error:
        return error
    end_s = clock.now_s()
    load_s = loaded_s - start_s + end_s - trained_s
    return Trained(weights, len(place.data.part(job.client)), result, end_s - start_s, load_s)


def _together(
    place: Workplace,
    stack: Stack,
    members: Sequence[Member],
    rows: int,
    out: Sequence[F32 | None],
) -> list[Trained | Diverged]:
    """Train some clients as one stack."""
    clock = WallClock()
    start_s = clock.now_s()
    outcomes = stack.train(members, rows, place.experiment.training)
    train_s, steps = clock.now_s() - start_s, sum(len(m.sizes) for m in members)
    trained: list[Trained | Diverged] = []
    for m, outcome, row in zip(members, outcomes, out, strict=True):
        share, weights = len(m.sizes) / steps, outcome.weights
        if row is not None:
            row[...] = weights
            weights = row
        try:
            result = result_of(outcome.losses, len(m.order), outcome.gather_s)
            if not outcome.is_finite:
                check_finite(place.layout.parts(weights), result.local_steps)
        except Diverged as error:
            trained.append(error)
            continue
        trained.append(Trained(Weights(weights), m.examples, result, train_s * share, 0.0))
    return trained


def _member(place: Workplace, job: Job) -> Member:
    part, training = place.data.part(job.client), place.experiment.training
    order, sizes = joined_steps(*_batching(place, job, len(part)))
    return Member(
        start=job.start.flat,
        examples=len(part),
        order=part[order],
        sizes=sizes,
        lr=training.lr if job.lr is None else job.lr,
        proximal_mu=training.proximal_mu if job.proximal_mu is None else job.proximal_mu,
    )


def _groups(members: Sequence[Member], full: int) -> dict[tuple[int, bool], list[int]]:
    """Numbers of the members that fit into one stack, those with the most steps first.

    Those with a proximal term are apart, because with one in it a stack reckons another way.
    """
    groups: dict[tuple[int, bool], list[int]] = {}
    for k in sorted(range(len(members)), key=lambda k: -len(members[k].sizes)):
        member = members[k]
        rows = rows_for(max(member.sizes), full)
        groups.setdefault((rows, member.proximal_mu > 0), []).append(k)
    return groups


def _steps(place: Workplace, job: Job) -> Iterator[Step]:
    """The job's local steps: indices into the client's own examples."""
    return local_steps(*_batching(place, job, len(place.data.part(job.client))))


def _batching(
    place: Workplace, job: Job, examples: int
) -> tuple[int, int, int, int, np.random.Generator]:
    """What decides which of a client's ``examples`` each step sees."""
    training = place.experiment.training
    batching = (examples, training.batch_size, training.accumulation_steps)
    steps = steps_per_epoch(*batching) if job.local_steps is None else job.local_steps
    rng = rng_for(place.experiment.run.seed, "batches", job.client, job.round)
    return *batching, steps, rng


def _training(place: Workplace, job: Job) -> Training:
    """The experiment's training with the job's proximal term in place of its own."""
    training = place.experiment.training
    if job.proximal_mu is None or job.proximal_mu == training.proximal_mu:
        return training
    return training.model_copy(update={"proximal_mu": job.proximal_mu})
