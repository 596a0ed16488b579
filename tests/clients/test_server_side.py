"""The server's view of a task: weights from the seed, figures that can be recomputed."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from clients.server_side import ServerTask
from clients.tasks.digits import Digits
from clients.weights import load_arrays
from fedsys.config.load import parse_experiment
from fedsys.errors import ConfigError


def server(text=""):
    return ServerTask(parse_experiment(text, where="test"))


@dataclass(frozen=True)
class Doubling(Digits):
    """A model without any matrix product."""

    def build_model(self):
        class Scale(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.factor = torch.nn.Parameter(torch.ones(10))

            def forward(self, x):
                return x[:, :10] * self.factor

        return Scale()


def test_initial_weights_depend_on_the_seed_alone():
    first, again, other = (server(f"run.seed = {seed}").initial_arrays() for seed in (1, 1, 2))

    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["0.weight"], other["0.weight"])


def test_evaluation_is_that_of_the_whole_test_set_and_repeats_bit_for_bit():
    task = server()
    arrays = task.initial_arrays()
    model, test = Digits().build_model(), Digits().test_data()
    load_arrays(model, arrays)

    loss, accuracy = task.evaluate(arrays)

    with torch.no_grad():
        logits = model(test.x)
    assert accuracy == (logits.argmax(1) == test.y).double().mean().item()
    expected = torch.nn.functional.cross_entropy(logits, test.y).item()
    assert loss == pytest.approx(expected, rel=1e-6)
    assert task.evaluate(arrays) == (loss, accuracy)


def test_evaluation_leaves_the_number_of_threads_as_it_was():
    task, before = server(), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        task.evaluate(task.initial_arrays())
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_flops_of_an_mlp_are_those_of_its_matrix_products():
    # 2 per weight forward; backward again 2 for weights and 2 for inputs, save the first layer's.
    weights = [64 * 128, 128 * 64, 64 * 10]

    assert server().flops_per_sample() == 2 * (3 * sum(weights) - weights[0])


def test_a_model_without_matrix_products_is_estimated_by_its_parameters():
    assert server(f"task.name = '{__name__}:Doubling'").flops_per_sample() == 60


def test_the_split_says_who_has_what():
    task = server("partition.clients = 7")
    split = task.split()
    table = np.array(split["label_counts"])

    assert table.shape == (7, 10)
    assert table.sum(axis=1).tolist() == split["examples"] == task.examples_per_client()
    assert table.sum(axis=0).tolist() == np.bincount(Digits().train_data().y).tolist()
    assert split == server("partition.clients = 7").split()
    other = server("run.seed = 2\npartition.clients = 7").split()
    assert other["digest"] != split["digest"]


def test_a_fault_in_data_or_split_shows_at_the_start():
    with pytest.raises(ConfigError, match="too few for 1000 clients"):
        server("partition.clients = 1000")
    with pytest.raises(ConfigError, match="apt install"):
        server("task.name = 'fashion_mnist'\ntask.options.folder = '/nowhere'")


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_flops_are_those_of_torch_s_own_counter(name):
    task = Digits(model=name)
    model, data = task.build_model(), task.train_data()
    with FlopCounterMode(display=False) as counter:
        task.loss(model, data.x[:2], data.y[:2]).backward()
    options = f"task.options.model = '{name}'"
    assert 2 * server(options).flops_per_sample() == counter.get_total_flops()
