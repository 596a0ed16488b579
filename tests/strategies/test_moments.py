"""The adaptive server optimizers against Flower's own classes, step by step."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedYogi

from fedsys._flwr_private import set_task_identity
from fedsys.config.load import parse_experiment
from fedsys.errors import ConfigError
from strategies._moments import Moments

ETA, BETA_1, BETA_2, TAU = 0.05, 0.9, 0.99, 1e-3
ADAPTIVE = {"eta": ETA, "beta_1": BETA_1, "beta_2": BETA_2, "tau": TAU}
FLOWER = {
    "adagrad": lambda: FedAdagrad(eta=ETA, tau=TAU),
    "adam": lambda: FedAdam(**ADAPTIVE),
    "yogi": lambda: FedYogi(**ADAPTIVE),
}


def by_flower(kind, updates):
    """The model after each update, as Flower makes it from one client's reply."""
    set_task_identity(1)
    strategy, model, models = FLOWER[kind](), np.zeros(updates[0].size, np.float32), []
    for round_, update in enumerate(updates, start=1):
        strategy.current_arrays = {"w": model}
        content = RecordDict(
            {
                "arrays": ArrayRecord({"w": Array(model + update)}),
                "metrics": MetricRecord({"num-examples": 1}),
                "config": ConfigRecord(),
            }
        )
        arrays, _ = strategy.aggregate_train(round_, [Message(content, 1, "train")])
        model = arrays["w"].numpy()
        models.append(model)
    return models


@pytest.mark.parametrize("kind", FLOWER)
def test_the_model_is_the_one_that_flower_makes(kind):
    rng = np.random.default_rng(3)
    updates = [rng.standard_normal(50).astype(np.float32) * 0.1 for _ in range(6)]
    optimizer, model = Moments(kind, ETA, BETA_1, BETA_2, TAU), np.zeros(50, np.float32)
    for update, expected in zip(updates, by_flower(kind, updates), strict=True):
        model = model + optimizer.step(update)
        np.testing.assert_allclose(model, expected, rtol=2e-4, atol=2e-6)
    assert model.dtype == np.float32


def test_two_steps_of_yogi_by_hand():
    # beta_1 = 0.5, beta_2 = 0.75, tau = 1, lr = 2; updates 2 and then 4.
    #   m = 1, v = 0 + 0.25 * 4 = 1:           2 * 1 / (1 + 1) = 1
    #   m = 2.5, v = 1 + 0.25 * 16 = 5:        2 * 2.5 / (sqrt(5) + 1)
    optimizer = Moments("yogi", 2.0, 0.5, 0.75, 1.0)
    assert optimizer.step(np.array([2], np.float32)).tolist() == [1.0]
    second = optimizer.step(np.array([4], np.float32))
    assert float(second[0]) == pytest.approx(5 / (5**0.5 + 1))


@pytest.mark.parametrize("kind", FLOWER)
def test_what_is_restored_steps_on_as_the_original_would(kind):
    one, other = (Moments(kind, ETA, BETA_1, BETA_2, TAU) for _ in range(2))
    update = np.arange(4, dtype=np.float32)
    assert one.tensors() == {}
    other.restore({})
    for _ in range(3):
        other.restore(one.tensors())
        assert one.step(update).tolist() == other.step(update).tolist()


def test_momentum_has_no_effect_on_the_others_and_is_refused():
    with pytest.raises(ConfigError, match=r"server.momentum is for server.optimizer = 'sgd'"):
        parse_experiment("server.optimizer = 'adam'\nserver.momentum = 0.9", where="test")
