"""Client updates of a short federated training, to measure codecs on.

Ten clients, Dirichlet 0.3, twenty local steps a round of FedAvg: early, later and, with the
residual of ``topk(0.01)|int8``, what a client under error feedback really encodes.
"""

from collections.abc import Iterator

import numpy as np

from clients.data.federated import federated_data
from clients.data.loader import local_steps
from clients.train import train
from clients.weights import build_model, load_arrays, to_arrays
from fedsys.codecs._chain import parse
from fedsys.codecs._feedback import encode_with_feedback
from fedsys.config.load import parse_experiment
from fedsys.config.schema import Experiment
from fedsys.errors import ConfigError
from fedsys.rng import rng_for
from fedsys.wire.schema import Schema

_ROUNDS = 10
_STEPS = 20
_EXPERIMENT = """
[task]
name = "{task}"
[partition]
clients = 10
[training]
batch_size = 32
lr = 0.05
momentum = 0.9
"""


def client_updates() -> dict[str, np.ndarray]:
    """Updates of client 0 by name; of Fashion-MNIST's CNN, or of digits where that is missing."""
    try:
        return dict(_updates(_experiment("fashion_mnist")))
    except ConfigError:
        return dict(_updates(_experiment("digits")))


def _experiment(task: str) -> Experiment:
    return parse_experiment(_EXPERIMENT.format(task=task), where="real_updates")


def _updates(experiment: Experiment) -> Iterator[tuple[str, np.ndarray]]:
    data, training = federated_data(experiment), experiment.training
    model = build_model(data.task, experiment.run.seed)
    schema = Schema.of(to_arrays(model), experiment.codec.raw)
    codec, residual = parse("topk(0.01)|int8"), None
    flat, raw = schema.split(to_arrays(model))
    for number in range(1, _ROUNDS + 1):
        updates = []
        for client in range(len(data.parts)):
            load_arrays(model, schema.join(flat, raw))
            x, y = data.of_client(client)
            rng = rng_for(experiment.run.seed, "batches", client, number)
            steps = local_steps(len(x), training.batch_size, 1, _STEPS, rng)
            train(model, data.task, x, y, steps, training, training.lr)
            updates.append(schema.split(to_arrays(model))[0] - flat)
        made = encode_with_feedback(codec, updates[0], residual, schema.layout, rng_for(number))
        residual = made.residual
        if number in (1, _ROUNDS):
            yield f"{experiment.task.name}, round {number}", updates[0]
        if number == _ROUNDS:
            yield f"{experiment.task.name}, round {number} with residual", made.compensated
        flat = flat + np.mean(updates, axis=0)
