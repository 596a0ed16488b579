"""A client's training depends on its job alone, and a stack computes what autograd does."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from clients.cohort import Job, train_cohort
from clients.data.federated import FederatedData
from clients.data.loader import local_steps
from clients.fast_conv import speed_up
from clients.stack import stack_for
from clients.tasks._base import Examples
from clients.train import Diverged
from clients.weights import Exchange, Weights
from clients.workplace import Workplace
from fedsys.config.load import experiment_from
from fedsys.rng import rng_for

SIZES = (40, 33, 16, 17, 5, 2, 1, 8)
"""Examples of each client: full batches, a single one left over, and less than a batch."""


@dataclass(frozen=True)
class Blobs:
    """Ten-dimensional points of three classes."""

    build: Any
    loss_of: Any = functional.cross_entropy
    metric: ClassVar[str] = "accuracy"

    def examples(self):
        rng = np.random.default_rng(4)
        y = rng.integers(0, 3, sum(SIZES))
        x = rng.standard_normal((sum(SIZES), 10)) + 2 * np.eye(3, 10)[y]
        targets = torch.from_numpy(y)
        if self.loss_of is functional.mse_loss:
            targets = torch.eye(3)[targets]
        return Examples(torch.from_numpy(x).float(), targets)

    def build_model(self):
        torch.default_generator.manual_seed(1)
        return self.build()

    def loss(self, model, x, y):
        return self.loss_of(model(x), y)


class Forward(nn.Module):
    """The same as a chain, written as a user would."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(10, 7), nn.Linear(7, 3, bias=False)

    def forward(self, x):
        return self.two(torch.tanh(self.one(x.flatten(1))))


def mlp():
    return nn.Sequential(nn.Linear(10, 12), nn.ReLU(), nn.Linear(12, 3))


def normed():
    return nn.Sequential(nn.Linear(10, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3))


def dropping():
    return nn.Sequential(nn.Linear(10, 12), nn.Dropout(0.5), nn.ReLU(), nn.Linear(12, 3))


def workplace(task, **training):
    settings = {"batch_size": 16, "lr": 0.2, **training}
    experiment = experiment_from({"training": settings}, "test")
    examples, model = task.examples(), task.build_model()
    parts = np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1])
    weights, device = Exchange(model), torch.device("cpu")
    speed_up(model, experiment.training.fast_conv, device)
    stack = stack_for(model, task, examples, weights, experiment.training)
    data = FederatedData(task, examples, parts)
    return Workplace(experiment, data, model, weights, device, stack)


def all_jobs(place, **more):
    start = place.weights.save()
    return [Job(client=c, start=start, round=1, **more) for c in range(len(SIZES))]


def assert_close(stacked, plain, start):
    """To 1e-5 of the largest step that a weight took."""
    for a, b in zip(stacked, plain, strict=True):
        step = np.abs(b.weights.flat - start.flat).max()
        np.testing.assert_allclose(a.weights.flat, b.weights.flat, rtol=0, atol=1e-5 * step)
        assert (a.result.local_steps, a.result.samples) == (b.result.local_steps, b.result.samples)
        assert a.result.train_loss == pytest.approx(b.result.train_loss, rel=1e-5)
        assert a.result.first_loss == pytest.approx(b.result.first_loss, rel=1e-5)
        assert a.examples == b.examples


MODELS = {
    "mlp": Blobs(mlp),
    "forward": Blobs(Forward),
    "softmax regression": Blobs(lambda: nn.Linear(10, 3)),
    "sigmoid, squares": Blobs(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(10, 9), nn.Sigmoid(), nn.Linear(9, 3)),
        functional.mse_loss,
    ),
}
TRAININGS = {
    "plain": {},
    "momentum": {"momentum": 0.9, "weight_decay": 0.01},
    "proximal": {"proximal_mu": 0.5},
    "clipped": {"clip_norm": 0.1, "momentum": 0.5},
    "accumulated": {"batch_size": 4, "accumulation_steps": 3},
}


@pytest.mark.parametrize("training", TRAININGS.values(), ids=TRAININGS)
@pytest.mark.parametrize("task", MODELS.values(), ids=MODELS)
def test_a_stack_computes_what_autograd_does_for_each_client(task, training):
    place = workplace(task, **training)
    assert place.stack is not None
    jobs = all_jobs(place)

    stacked, plain = train_cohort(place, jobs), train_cohort(replace(place, stack=None), jobs)

    assert_close(stacked, plain, jobs[0].start)


def test_each_job_has_its_own_start_steps_rate_and_proximal_term():
    place = workplace(MODELS["mlp"])
    rng = np.random.default_rng(2)
    start = place.weights.save()
    jobs = [
        Job(
            client=c,
            start=Weights(start.flat + rng.normal(0, 0.1, start.flat.size).astype(np.float32)),
            round=c,
            local_steps=1 + 3 * c,
            lr=0.05 * (1 + c),
            proximal_mu=0.3 * (c % 2),
        )
        for c in range(len(SIZES))
    ]

    stacked, plain = train_cohort(place, jobs), train_cohort(replace(place, stack=None), jobs)

    assert [t.result.local_steps for t in stacked] == [1, 4, 7, 10, 13, 16, 19, 22]
    assert_close(stacked, plain, start)
    assert len({t.weights.flat.tobytes() for t in stacked}) == len(SIZES)


@pytest.fixture(scope="module")
def places():
    found = {name: workplace(MODELS["mlp"], **training) for name, training in TRAININGS.items()}
    # torch's sigmoid has other bits at the end of a tensor than before it.
    found["sigmoid"] = workplace(MODELS["sigmoid, squares"])
    assert all(place.stack is not None for place in found.values())
    return found


@pytest.mark.parametrize("training", [*TRAININGS, "sigmoid"])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_a_client_gets_the_same_bits_whoever_is_trained_with_it(training, places, data):
    place = places[training]
    start = place.weights.save()
    steps = data.draw(st.lists(st.integers(1, 9), min_size=len(SIZES), max_size=len(SIZES)))
    mus = data.draw(st.lists(st.sampled_from([None, 0.0, 0.7]), min_size=8, max_size=8))
    jobs = [
        Job(client=c, start=start, round=3, local_steps=steps[c], proximal_mu=mus[c])
        for c in range(len(SIZES))
    ]
    order = data.draw(st.permutations(range(len(SIZES))))
    cut = data.draw(st.integers(1, len(SIZES) - 1))

    whole = train_cohort(place, jobs)
    parts = [train_cohort(place, [jobs[k] for k in ks]) for ks in (order[:cut], order[cut:])]

    for k, trained in zip(order, parts[0] + parts[1], strict=True):
        np.testing.assert_array_equal(trained.weights.flat, whole[k].weights.flat)
        assert trained.result == whole[k].result


@pytest.mark.parametrize("build", [normed, dropping])
def test_models_that_cannot_be_stacked_are_trained_one_by_one_with_the_same_bits(build):
    place = workplace(Blobs(build))
    assert place.stack is None
    jobs = all_jobs(place)[:4]

    forwards = train_cohort(place, jobs)
    backwards = train_cohort(place, jobs[::-1])[::-1]

    for a, b in zip(forwards, backwards, strict=True):
        np.testing.assert_array_equal(a.weights.flat, b.weights.flat)
        assert a.weights.exact.keys() == b.weights.exact.keys()
    counters = [t.weights.exact.get("1.num_batches_tracked") for t in forwards]
    assert counters == ([3, 2, 1, 1] if build is normed else [None] * 4)


def test_the_plain_way_is_torchs_own_loop():
    place = workplace(MODELS["mlp"], stacked="off", momentum=0.9)
    assert place.stack is None
    trained = train_cohort(place, all_jobs(place)[:1])[0]

    model = Blobs(mlp).build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    x, y = place.data.of_client(0)
    for (batch,) in local_steps(40, 16, 1, 3, rng_for(1, "batches", 0, 1)):
        optimizer.zero_grad()
        functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy()
    np.testing.assert_allclose(trained.weights.flat, flat, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("stacked", ["auto", "off"])
def test_a_client_that_diverges_leaves_the_others_alone(stacked):
    place = workplace(MODELS["mlp"], stacked=stacked)
    jobs = all_jobs(place)
    bad = jobs[2].start.flat.copy()
    bad[0] = np.nan
    mixed = [*jobs]
    mixed[2] = replace(jobs[2], start=Weights(bad))
    large = jobs[5].start.flat.copy()
    large[:120] *= 1e20
    mixed[5] = replace(jobs[5], start=Weights(large), lr=1e20, local_steps=1)

    alone, together = train_cohort(place, jobs), train_cohort(place, mixed)

    assert isinstance(together[2], Diverged)
    assert str(together[2]).startswith("local step 1 of 1: the training loss is nan")
    assert isinstance(together[5], Diverged)
    assert str(together[5]).endswith("' is not finite")
    for k in {*range(len(SIZES))} - {2, 5}:
        np.testing.assert_array_equal(alone[k].weights.flat, together[k].weights.flat)


def test_an_infinite_example_harms_no_client_but_its_own():
    place = workplace(MODELS["mlp"])
    jobs = all_jobs(place)
    before = train_cohort(place, jobs)
    place.data.train.x[0] = torch.inf

    after = train_cohort(place, jobs)

    assert isinstance(after[0], Diverged)
    for a, b in zip(after[1:], before[1:], strict=True):
        np.testing.assert_array_equal(a.weights.flat, b.weights.flat)


@pytest.mark.parametrize("stacked", ["auto", "off"])
def test_trained_vectors_are_the_rows_that_the_caller_gives(stacked):
    place = workplace(MODELS["mlp"], stacked=stacked)
    jobs = all_jobs(place)
    rows = np.full((len(jobs), place.layout.n), np.nan, np.float32)

    trained = train_cohort(place, jobs, rows)

    for row, one, new in zip(rows, trained, train_cohort(place, jobs), strict=True):
        assert np.shares_memory(one.weights.flat, row)
        np.testing.assert_array_equal(row, new.weights.flat)


@dataclass(frozen=True)
class Noisy(Blobs):
    """A task that changes its inputs."""

    def augment(self, x, generator):
        return x + torch.randn(x.shape, generator=generator)


def test_augmentation_is_drawn_for_client_and_round_and_can_be_switched_off():
    place, plain = workplace(Noisy(mlp)), workplace(Blobs(mlp), stacked="off")
    assert place.stack is None
    jobs = all_jobs(place)[:2]

    first, again = train_cohort(place, jobs), train_cohort(place, jobs[::-1])[::-1]
    later = train_cohort(place, [replace(jobs[0], round=2)])[0]
    off = train_cohort(workplace(Noisy(mlp), augment=False, stacked="off"), jobs)
    without = train_cohort(plain, jobs)

    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a.weights.flat, b.weights.flat)
    assert not np.array_equal(first[0].weights.flat, later.weights.flat)
    for a, b, noisy in zip(off, without, first, strict=True):
        np.testing.assert_array_equal(a.weights.flat, b.weights.flat)
        assert not np.array_equal(a.weights.flat, noisy.weights.flat)


@pytest.mark.parametrize("stacked", ["auto", "off"])
def test_times_of_the_stages_add_up(stacked):
    place = workplace(MODELS["mlp"], stacked=stacked)

    trained = train_cohort(place, all_jobs(place))

    for one in trained:
        assert sum(one.stages.values()) == pytest.approx(one.train_s)
        assert one.stages["gather"] > 0
        assert one.stages["compute"] > 0
