"""Local steps checked against arithmetic by hand, and what must never leave a client."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import nn

from clients.data.loader import local_steps
from clients.train import Diverged, train
from fedsys.config.schema import Training
from fedsys.errors import ConfigError


@dataclass(frozen=True)
class Squares:
    """Mean of (model(x) - y)^2 / 2, whose gradient is easily written down."""

    sizes: list[int] = field(default_factory=list)

    def loss(self, model, x, y):
        self.sizes.append(len(x))
        return ((model(x) - y) ** 2).mean() / 2


def line():
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    return model


X = torch.tensor([[1.0], [2.0], [3.0]])
Y = torch.tensor([[0.0], [0.0], [3.0]])
ALL = [np.array([0, 1, 2])]


def run(model, training, steps, lr=0.1, x=X, y=Y, task=None):
    return train(model, task or Squares(), x, y, steps, training, lr)


def test_one_sgd_step_by_hand():
    # dL/dw = mean(x (w x - y)) = (1 + 4 + 3 * 0) / 3 at w = 1; L = (1 + 4 + 0) / 6.
    model = line()

    result = run(model, Training(), [ALL])

    assert model.weight.item() == pytest.approx(1 - 0.1 * 5 / 3)
    assert result.first_loss == result.train_loss == pytest.approx(5 / 6)
    assert (result.local_steps, result.samples) == (1, 3)


def test_losses_are_those_before_each_update():
    model = line()

    result = run(model, Training(), [ALL, ALL])

    w = 1 - 0.1 * 5 / 3
    second = (w**2 + 4 * w**2 + 9 * (w - 1) ** 2) / 6
    assert result.first_loss == pytest.approx(5 / 6)
    assert result.train_loss == pytest.approx((5 / 6 + second) / 2)


def test_the_proximal_term_pulls_towards_the_received_weights():
    # Second gradient: mean(x (w x - y)) + mu (w - 1), with the first step's w.
    model, mu = line(), 2.0

    run(model, Training(proximal_mu=mu), [ALL, ALL])

    w = 1 - 0.1 * 5 / 3
    gradient = (w + 4 * w + 9 * w - 9) / 3 + mu * (w - 1)
    assert model.weight.item() == pytest.approx(w - 0.1 * gradient)


def test_accumulated_batches_make_the_step_of_their_union_even_when_unequal():
    whole, parts = line(), line()

    run(whole, Training(), [ALL])
    result = run(parts, Training(), [[np.array([0, 1]), np.array([2])]])

    assert parts.weight.item() == pytest.approx(whole.weight.item())
    assert result.first_loss == pytest.approx(5 / 6)
    assert (result.local_steps, result.samples) == (1, 3)


def test_clipping_bounds_the_step_and_not_the_weight_decay():
    model = line()

    run(model, Training(clip_norm=0.5, weight_decay=1.0), [ALL])

    assert model.weight.item() == pytest.approx(1 - 0.1 * (0.5 + 1.0))


def test_unequal_clients_take_exactly_the_steps_asked_for():
    for n in (2, 7, 33):
        task, x = Squares(), torch.ones(n, 1)
        steps = local_steps(n, 4, 1, 9, np.random.default_rng(1))

        assert run(line(), Training(), steps, x=x, y=x, task=task).local_steps == 9
        assert len(task.sizes) == 9


def test_batch_normalisation_trains_on_one_example_more_than_a_batch():
    model = nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    x = torch.arange(9.0)[:, None]

    run(model, Training(), local_steps(9, 8, 1, 3, np.random.default_rng(1)), x=x, y=x)

    counter = model.state_dict()["1.num_batches_tracked"]
    assert counter.dtype == torch.int64
    assert counter.item() == 3
    assert (model.state_dict()["1.running_var"] > 0).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_names_the_step(bad):
    y = torch.tensor([[0.0], [0.0], [bad]])
    good = [np.array([0, 1])]

    with pytest.raises(Diverged, match="local step 2 of 3"):
        run(line(), Training(), [good, ALL, good], y=y)


def test_momentum_starts_afresh_in_every_round():
    once, again = line(), line()
    training = Training(momentum=0.9)

    run(once, training, [ALL])
    run(again, training, [ALL])
    start = again.weight.item()
    run(again, training, [ALL])

    gradient = (start + 4 * start + 9 * start - 9) / 3
    assert again.weight.item() == pytest.approx(start - 0.1 * gradient)


def test_bf16_on_a_cpu_is_close_to_fp32_and_keeps_fp32_weights():
    full, half = line(), line()

    run(full, Training(), [ALL, ALL])
    run(half, Training(precision="bf16"), [ALL, ALL])

    assert half.weight.dtype == torch.float32
    assert half.weight.item() == pytest.approx(full.weight.item(), rel=0.02)


def test_fp16_on_a_cpu_is_refused_with_what_to_set_instead():
    with pytest.raises(ConfigError, match="fp16 needs a CUDA device; on a CPU use bf16 or fp32"):
        run(line(), Training(precision="fp16"), [ALL])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_gpu_gives_what_the_cpu_gives(precision):
    here, there = line(), line().cuda()

    expected = run(here, Training(momentum=0.9, clip_norm=1.0), [ALL] * 5)
    result = run(
        there,
        Training(momentum=0.9, clip_norm=1.0, precision=precision),
        [ALL] * 5,
        x=X.cuda(),
        y=Y.cuda(),
    )

    assert there.weight.item() == pytest.approx(here.weight.item(), rel=0.02)
    assert result.train_loss == pytest.approx(expected.train_loss, rel=0.02)
