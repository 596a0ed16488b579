"""A client's reply depends on the seed, its number, the round and the weights, and nothing else."""

from collections import OrderedDict

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from clients.server_side import ServerTask
from clients.session import evaluate_reply, train_reply
from clients.train import Diverged
from fedsys._flwr_private import set_task_identity
from fedsys.config.load import parse_experiment
from fedsys.errors import ConfigError, FedsysError

EXPERIMENT = """
[run]
seed = 5
[partition]
clients = 6
[training]
batch_size = 8
lr = 0.05
"""


@pytest.fixture(autouse=True)
def server_identity():
    set_task_identity(1)


@pytest.fixture
def server():
    return ServerTask(parse_experiment(EXPERIMENT, where="test"))


def context(client=2, text=EXPERIMENT):
    return Context(
        run_id=1,
        node_id=client,
        state=RecordDict(),
        node_config={"partition-id": client},
        run_config={"experiment": text},
    )


def message(arrays, kind="train", **config):
    record = ArrayRecord(OrderedDict((name, Array(a)) for name, a in arrays.items()))
    settings = {key.replace("_", "-"): value for key, value in config.items()}
    return Message(RecordDict({"arrays": record, "config": ConfigRecord(settings)}), 7, kind)


def trained(arrays, client=2, **config):
    reply = train_reply(message(arrays, **config), context(client))
    return {name: array.numpy() for name, array in reply.content["arrays"].items()}


def same(a, b):
    return all(np.array_equal(a[name], b[name]) for name in a)


def test_the_reply_has_all_weights_and_what_training_measured(server):
    arrays = server.initial_arrays()

    reply = train_reply(message(arrays, server_round=1, local_steps=3, lr=0.1), context())

    metrics = dict(reply.content["metrics"])
    assert list(reply.content["arrays"]) == list(arrays)
    assert metrics.pop("train-seconds") > 0
    assert metrics["num-examples"] == server.examples_per_client()[2]
    assert (metrics["local-steps"], metrics["samples"]) == (3, 24)
    assert metrics["first-loss"] == pytest.approx(np.log(10), abs=0.2)
    assert 0 < metrics["train-loss"] <= metrics["first-loss"] + 0.5


def test_times_of_the_stages_are_in_the_reply_when_asked_for(server):
    text = f"{EXPERIMENT}stage_times = true\n"

    reply = train_reply(message(server.initial_arrays()), context(text=text))

    metrics = dict(reply.content["metrics"])
    stages = [metrics[f"{name}-seconds"] for name in ("load", "gather", "compute")]
    assert sum(stages) == pytest.approx(metrics["train-seconds"])


def test_equal_inputs_give_equal_bytes_whatever_ran_in_between(server):
    arrays = server.initial_arrays()

    first = trained(arrays, server_round=1, local_steps=4, lr=0.1)
    trained(arrays, client=4, server_round=1, local_steps=9, lr=0.2)
    again = trained(arrays, server_round=1, local_steps=4, lr=0.1)

    assert same(first, again)
    assert not same(first, trained(arrays, server_round=2, local_steps=4, lr=0.1))
    assert not same(first, trained(arrays, client=3, server_round=1, local_steps=4, lr=0.1))


def test_a_server_that_says_nothing_gets_one_epoch_at_the_experiments_rate(server):
    arrays = server.initial_arrays()
    examples = server.examples_per_client()[2]

    reply = train_reply(message(arrays), context())

    assert reply.content["metrics"]["samples"] == examples
    steps = reply.content["metrics"]["local-steps"]
    assert same(trained(arrays), trained(arrays, server_round=0, local_steps=steps, lr=0.05))


def test_a_message_may_set_the_proximal_term_in_place_of_the_experiment(server):
    arrays = server.initial_arrays()
    plain = trained(arrays, local_steps=4, lr=0.1)
    text = EXPERIMENT.replace("[training]", "[training]\nproximal_mu = 1.0")
    assert text != EXPERIMENT
    reply = train_reply(message(arrays, local_steps=4, lr=0.1), context(text=text))
    pulled = {name: array.numpy() for name, array in reply.content["arrays"].items()}

    assert same(trained(arrays, local_steps=4, lr=0.1, proximal_mu=1.0), pulled)
    assert same(trained(arrays, local_steps=4, lr=0.1, proximal_mu=0.0), plain)
    assert not same(pulled, plain)


def test_evaluation_counts_the_clients_own_examples(server):
    arrays = server.initial_arrays()

    replies = [evaluate_reply(message(arrays, "evaluate"), context(c)) for c in range(6)]

    counts = [reply.content["metrics"]["num-examples"] for reply in replies]
    assert counts == server.examples_per_client()
    assert all(0 <= reply.content["metrics"]["eval-metric"] <= 1 for reply in replies)


def test_weights_that_are_no_numbers_are_never_sent_back(server):
    arrays = server.initial_arrays()
    arrays["0.bias"][0] = np.nan

    with pytest.raises(Diverged, match="local step 1 of 2"):
        trained(arrays, local_steps=2)


def test_a_head_of_another_size_is_named_before_training(server):
    arrays = server.initial_arrays()
    arrays["4.bias"] = np.zeros(11, np.float32)

    with pytest.raises(FedsysError, match=r"'4.bias' has shape \[11\].* has \[10\]"):
        trained(arrays, local_steps=2)


@pytest.mark.parametrize(
    ("config", "message_"),
    [
        ({"local_steps": 0}, "'local-steps' must be a whole number >= 1, got 0"),
        ({"local_steps": 1.5}, "'local-steps' must be a whole number"),
        ({"server_round": -1}, "'server-round' must be a whole number >= 0"),
        ({"lr": 0.0}, "'lr' must be a number > 0"),
        ({"lr": float("nan")}, "'lr' must be a number > 0"),
        ({"lr": "fast"}, "'lr' must be a number > 0, got 'fast'"),
        ({"proximal_mu": -1.0}, "'proximal-mu' must be a number >= 0"),
    ],
)
def test_settings_that_make_no_sense_are_named(server, config, message_):
    with pytest.raises(FedsysError, match=message_):
        trained(server.initial_arrays(), **config)


def test_a_client_number_outside_the_partition_is_named(server):
    with pytest.raises(ConfigError, match=r"no client 6, partition\.clients = 6"):
        trained(server.initial_arrays(), client=6)


def test_a_run_without_an_experiment_is_named(server):
    with pytest.raises(ConfigError, match="'experiment' must hold the experiment"):
        train_reply(message(server.initial_arrays()), context(text=3))
