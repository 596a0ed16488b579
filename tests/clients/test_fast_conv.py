"""Faster convolutions give the same model, and pooling before relu the same bits."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from clients.fast_conv import pool_before_relu, speed_up, to_channels_last

CPU = torch.device("cpu")


class Written(nn.Module):
    """A user's forward."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(1, 4, 5), nn.Conv2d(4, 6, 3)
        self.last = nn.Linear(24, 3)

    def forward(self, x):
        x = functional.max_pool2d(functional.relu(self.one(x)), 2)
        x = functional.max_pool2d(self.two(x).relu(), kernel_size=3, stride=2, padding=1)
        return self.last(x.flatten(1))


def listed():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Sequential(nn.Conv2d(4, 6, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Dropout(0.3)),
        nn.Flatten(),
        nn.Linear(54, 3),
    )


def outcome(model, seed=1):
    """Output, loss, gradients and buffers after one pass."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(8, 1, 16, 16, generator=generator)
    y = torch.randint(0, 3, (8,), generator=generator)
    torch.default_generator.manual_seed(seed)
    logits = model(x)
    loss = functional.cross_entropy(logits, y)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return [logits.detach(), loss.detach(), *gradients, *model.buffers()]


@pytest.mark.parametrize(("build", "count"), [(Written, 1), (listed, 2)])
@pytest.mark.parametrize("training", [True, False])
def test_pooling_before_relu_gives_the_same_bits_forward_and_backward(build, count, training):
    model = build().train(training)
    to_channels_last(model)
    changed = copy.deepcopy(model)

    assert pool_before_relu(changed) == count

    for a, b in zip(outcome(model), outcome(changed), strict=True):
        assert torch.equal(a, b)
    assert type(changed) is type(model)
    assert list(changed.state_dict()) == list(model.state_dict())


def test_relu_comes_after_the_pool():
    model = listed()
    seen = []

    pool_before_relu(model)
    for name in ("2", "3"):
        model.get_submodule(name).register_forward_hook(lambda m, *_: seen.append(type(m)))
    model(torch.randn(2, 1, 16, 16))

    assert seen == [nn.MaxPool2d, nn.ReLU]


class Twice(Written):
    def forward(self, x):
        x = functional.relu(self.one(x))
        return self.last(self.two(functional.max_pool2d(x, 2) + x[..., ::2, ::2]).flatten(1))


class InPlace(Written):
    """The relu in place is seen by more than the pool."""

    def forward(self, x):
        x = self.one(x)
        y = functional.max_pool2d(functional.relu(x, inplace=True), 2)
        return self.last(self.two(y + x[..., ::2, ::2]).flatten(1))


class Indices(Written):
    def forward(self, x):
        x, _ = functional.max_pool2d(functional.relu(self.one(x)), 2, return_indices=True)
        return self.last(self.two(x).flatten(1))


class Counting(Written):
    """Leaves something behind."""

    calls = 0

    def forward(self, x):
        self.calls = self.calls + 1
        return super().forward(x)


class Looking(Written):
    def forward(self, x):
        if x.mean() > 1e9:
            return self.one(x)
        return super().forward(x)


class ByMode(Written):
    def forward(self, x):
        x = functional.dropout(super().forward(x), 0.5, self.training)
        return x + float(self.training)


@pytest.mark.parametrize("build", [Twice, InPlace, Indices, Counting, Looking, ByMode])
def test_forwards_where_it_would_not_be_the_same_are_left_alone(build):
    model = build()

    assert pool_before_relu(model) == 0

    assert "forward" not in vars(model)


def test_hooks_of_a_user_still_see_what_they_saw():
    model = listed()
    model[2].register_forward_hook(lambda *_: None)

    assert pool_before_relu(model) == 1


def test_a_part_that_cannot_be_followed_does_not_cost_the_others_their_gain():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Written()

        def forward(self, x):
            return self.inner(x) if float(x.sum()) > -1e9 else x

    assert pool_before_relu(Outer()) == 1


def test_channels_last_is_the_same_model_also_of_one_channel():
    model = Written()
    changed = copy.deepcopy(model)
    to_channels_last(changed)
    x = torch.randn(4, 1, 16, 16)

    assert changed.one(x).is_contiguous(memory_format=torch.channels_last)
    assert not model.one(x).is_contiguous(memory_format=torch.channels_last)
    for a, b in zip(outcome(model), outcome(changed), strict=True):
        torch.testing.assert_close(a, b)


def test_switches():
    off, auto, on = Written(), Written(), Written()

    speed_up(off, "off", CPU)
    speed_up(auto, "auto", torch.device("cuda"))
    speed_up(on, "on", torch.device("cuda"))

    assert "forward" not in vars(off)
    assert "forward" not in vars(auto)
    assert "forward" in vars(on)
    assert "forward" in vars(speed_up(Written(), "auto", CPU))
