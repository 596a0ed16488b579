"""What is trained as a stack, and that anything else is left to autograd."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from clients.chain import chain_of
from clients.stack import Stack, rows_for, stack_for
from clients.tasks._base import Examples
from clients.weights import Exchange
from fedsys.config.schema import Training


class Task:
    """Random points with a loss of the test's choice."""

    def __init__(self, loss=functional.cross_entropy):
        self._loss = loss

    def loss(self, model, x, y):
        return self._loss(model(x), y)


class Shared(nn.Module):
    """One layer, used twice."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x):
        return self.layer(torch.relu(self.layer(x)))


class Residual(nn.Module):
    """Not a chain: the input is used again."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x):
        return x + torch.relu(self.layer(x))


class Branching(nn.Module):
    """Looks at its values."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(x if x.sum() > 0 else -x)


class OnlyInTraining(nn.Module):
    """Another function in evaluation mode."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(x) if self.training else torch.relu(self.layer(x))


class Scaled(nn.Module):
    """A parameter outside of the layers."""

    def __init__(self):
        super().__init__()
        self.layer, self.scale = nn.Linear(6, 3), nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.layer(x) * self.scale


class Noise(nn.Module):
    """Random, without parameters."""

    def forward(self, x):
        return x + torch.randn_like(x)


class Centred(nn.Module):
    """A row depends on the others, without parameters."""

    def forward(self, x):
        return x - x.mean(0)


class Halved(nn.Module):
    """A function of each row, without parameters."""

    def forward(self, x):
        return x.double().float() / 2


def frozen():
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))
    model[0].weight.requires_grad_(False)
    return model


def hooked():
    model = nn.Linear(6, 3)
    model.register_forward_hook(lambda *_: None)
    return model


def stack(model, task=None, y=None, x=None, **training):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(70, 6, generator=generator) if x is None else x
    y = torch.randint(0, 3, (len(x),), generator=generator) if y is None else y
    return stack_for(model, task or Task(), Examples(x, y), Exchange(model), Training(**training))


@pytest.mark.parametrize(
    "model",
    [
        Shared,
        Residual,
        Branching,
        OnlyInTraining,
        Scaled,
        frozen,
        hooked,
        lambda: nn.Sequential(nn.Linear(6, 4), nn.Dropout(), nn.Linear(4, 3)),
        lambda: nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.Linear(4, 3)),
        lambda: nn.Sequential(nn.BatchNorm1d(6, affine=False), nn.Linear(6, 3)),
        lambda: nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Tanh(), nn.Linear(4, 3)),
        lambda: nn.Sequential(nn.Linear(6, 4), nn.GELU(), nn.Linear(4, 3)),
        lambda: nn.Linear(6, 3).double(),
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 3)),
        lambda: nn.GRU(6, 3),
    ],
)
def test_other_models_are_no_chains(model):
    assert chain_of(model()) is None


@pytest.mark.parametrize("inner", [Noise, Centred])
def test_a_first_step_that_is_no_function_of_each_row_is_found_out(inner):
    assert chain_of(nn.Sequential(inner(), nn.Linear(6, 3))) is not None
    assert stack(nn.Sequential(inner(), nn.Linear(6, 3))) is None


def test_a_first_step_without_parameters_is_done_once():
    found = stack(nn.Sequential(Halved(), nn.Linear(6, 3)))

    assert found is not None
    assert found.direct is None
    torch.testing.assert_close(found.chain.prepare(torch.ones(2, 6)), torch.full((2, 6), 0.5))


def test_examples_that_need_no_preparation_are_not_copied():
    model, x = nn.Sequential(nn.Flatten(), nn.Linear(6, 3)), torch.randn(50, 2, 3)

    assert stack(model, x=x).direct.data_ptr() == x.data_ptr()


@pytest.mark.parametrize(
    "loss",
    [
        lambda z, y: functional.cross_entropy(z, y, label_smoothing=0.1),
        lambda z, y: functional.cross_entropy(z, y, weight=torch.tensor([1.0, 1.0, 2.0])),
        lambda z, y: functional.cross_entropy(z, y, reduction="sum"),
        lambda z, y: functional.cross_entropy(z, y) + 1e-3 * z.square().mean(),
        lambda z, y: functional.multi_margin_loss(z, y),
    ],
)
def test_other_losses_are_found_out(loss):
    assert stack(nn.Linear(6, 3)) is not None
    assert stack(nn.Linear(6, 3), Task(loss)) is None


def test_squares_are_recognised_and_their_halves_are_not():
    y = torch.randn(70, 3)

    assert stack(nn.Linear(6, 3), Task(functional.mse_loss), y).loss == "mse"
    assert stack(nn.Linear(6, 3), Task(lambda z, t: functional.mse_loss(z, t) / 2), y) is None


def test_a_class_that_the_model_lacks_is_left_to_torch_to_complain_about():
    y = torch.zeros(70, dtype=torch.int64)
    y[69] = 3

    assert stack(nn.Linear(6, 3), y=y) is None


@pytest.mark.parametrize(
    "training", [{"stacked": "off"}, {"optimizer": "adamw"}, {"precision": "bf16"}]
)
def test_settings_that_a_stack_does_not_know_switch_it_off(training):
    assert stack(nn.Linear(6, 3), **training) is None


def test_the_trial_leaves_the_model_as_it_was():
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).eval()
    before = [p.clone() for p in model.parameters()]

    assert stack(model) is not None

    assert not model.training
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    assert all(p.grad is None for p in model.parameters())


def test_inputs_far_from_one_are_no_reason_against_a_stack():
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))

    assert stack(model, x=255 * torch.rand(70, 6)) is not None


def test_a_chunk_is_what_fits_the_cache():
    def chunk(inputs):  # whether a machine stacks so wide a layer is not the question
        model, examples = nn.Linear(inputs, 3), Examples(torch.zeros(1, inputs), torch.zeros(1))
        return Stack(chain_of(model), "cross_entropy", Exchange(model).layout, examples, None).chunk

    assert chunk(6) == 32
    assert chunk(9999) == 2**21 // (4 * 30_000)


def test_rows_depend_on_the_clients_own_batches_and_are_few_kinds():
    assert [rows_for(batch, 20) for batch in (20, 21)] == [20, 21]
    assert [rows_for(batch, 20) for batch in (1, 2, 3, 5, 9, 17)] == [2, 2, 4, 8, 16, 20]
    assert rows_for(1, 1) == 2


@pytest.mark.parametrize("width", [2, 3, 64, 100])
@pytest.mark.parametrize("rows", [2, 7, 20, 33])
def test_products_of_a_stack_do_not_depend_on_its_size(rows, width):
    # What stack_for tries out at one shape, at others: it decides whether stacks are of use here.
    rng = np.random.default_rng(1)
    x, w, d = (
        torch.from_numpy(rng.standard_normal(shape, np.float32))
        for shape in ((9, rows, 50), (9, width, 50), (9, rows, width))
    )
    forward, below = torch.bmm(x, w.transpose(1, 2)), torch.bmm(d, w)
    added = w.clone().baddbmm_(d.transpose(1, 2), x, alpha=-1)

    for part in (slice(0, 1), slice(4, 5), slice(3, 8)):
        assert torch.equal(
            torch.bmm(x[part].clone(), w[part].clone().transpose(1, 2)), forward[part]
        )
        assert torch.equal(torch.bmm(d[part].clone(), w[part].clone()), below[part])
        again = w[part].clone().baddbmm_(d[part].clone().transpose(1, 2), x[part].clone(), alpha=-1)
        assert torch.equal(again, added[part])
