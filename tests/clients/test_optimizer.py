"""Our plain SGD computes what torch's does."""

import pytest
import torch

from clients.optimizer import Sgd, make_optimizer
from fedsys.config.schema import Training


def descend(optimizer_of, steps=5):
    generator = torch.Generator().manual_seed(3)
    params = [torch.randn(4, 3, generator=generator), torch.randn(3, generator=generator)]
    for p in params:
        p.requires_grad_()
    optimizer = optimizer_of(params)
    for _ in range(steps):
        for p in params:
            p.grad = None
        ((torch.ones(2, 4) @ params[0] + params[1]) ** 2).sum().backward()
        optimizer.step()
    return [p.detach() for p in params]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_sgd_agrees_with_torch(momentum, weight_decay):
    ours = descend(lambda params: Sgd(params, 0.01, momentum, weight_decay))
    theirs = descend(
        lambda params: torch.optim.SGD(
            params, lr=0.01, momentum=momentum, weight_decay=weight_decay
        )
    )

    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_adamw_is_torchs_with_the_experiments_settings():
    training = Training(optimizer="adamw", weight_decay=0.3)

    ours = descend(lambda params: make_optimizer(params, training, lr=0.05))
    theirs = descend(lambda params: torch.optim.AdamW(params, lr=0.05, weight_decay=0.3))

    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_a_parameter_without_a_gradient_stays_where_it_is():
    used, unused = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    used.grad = torch.ones(2)

    Sgd([used, unused], 0.5, 0.9, 0.1).step()

    assert unused.tolist() == [1, 1]
    assert used.tolist() == pytest.approx([1 - 0.5 * 1.1] * 2)


def test_a_gradient_scaler_that_finds_an_overflow_leaves_the_weights_alone():
    weights = torch.ones(2, requires_grad=True)
    optimizer = Sgd([weights], 0.5, 0.0, 0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    for gradient in (1.0, float("inf")):
        weights.grad = None
        scaler.scale((weights * gradient).sum()).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()

    assert weights.tolist() == [0.5, 0.5]
    assert scaler.get_scale() == 2.0
