"""One message at one client: load the model it brings, train or evaluate, and reply.

What Flower wants around it is in ``clients.client_app``; compression is a mod outside of this.
"""

import math
from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from torch import Tensor, nn

from clients.data.federated import FederatedData, federated_data
from clients.data.loader import local_steps, steps_per_epoch
from clients.device import choose_device, seed_torch
from clients.evaluate import evaluate
from clients.train import train
from clients.weights import build_model, load_arrays, to_arrays
from fedsys.clock import WallClock
from fedsys.config.load import parse_experiment
from fedsys.config.schema import Experiment, Training
from fedsys.errors import ConfigError, FedsysError
from fedsys.rng import rng_for, seed_for

ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"


@dataclass(frozen=True, slots=True)
class Workplace:
    """What all clients that run in this process share; the model belongs to the current message."""

    experiment: Experiment
    data: FederatedData
    model: nn.Module
    device: torch.device


def train_reply(message: Message, context: Context) -> Message:
    """Train from the received weights; reply with the trained ones and what training measured.

    The message's ``config`` says ``server-round``, ``local-steps`` (default: one epoch), ``lr`` and
    ``proximal-mu`` (defaults: the experiment's). The result depends on the seed, the client's
    number, the round and the weights alone. Raises Diverged rather than sending a number that is
    none.
    """
    clock = WallClock()
    start_s = clock.now_s()
    place, client = _workplace(context), _client(context)
    training, seed = place.experiment.training, place.experiment.run.seed
    x, y = _received(message, place, client)
    config = _config(message)
    round_ = _whole(config, "server-round", 0, at_least=0)
    batching = (len(x), training.batch_size, training.accumulation_steps)
    steps = _whole(config, "local-steps", steps_per_epoch(*batching), at_least=1)
    rng = rng_for(seed, "batches", client, round_)
    seed_torch(seed_for(seed, "train", client, round_), place.device)
    result = train(
        place.model,
        place.data.task,
        x,
        y,
        local_steps(*batching, steps, rng),
        _training(config, training),
        _figure(config, "lr", training.lr),
    )
    arrays = OrderedDict((name, Array(a)) for name, a in to_arrays(place.model).items())
    metrics = MetricRecord(
        {
            "num-examples": len(x),
            "local-steps": result.local_steps,
            "samples": result.samples,
            "train-loss": result.train_loss,
            "first-loss": result.first_loss,
            "train-seconds": clock.now_s() - start_s,
        }
    )
    content = RecordDict({ARRAYS: ArrayRecord(arrays), METRICS: metrics})
    return Message(content, reply_to=message)


def evaluate_reply(message: Message, context: Context) -> Message:
    """Loss and metric of the received weights on this client's examples.

    ``num-examples`` is 0, and so are the others, when the task had nothing to predict.
    """
    place = _workplace(context)
    x, y = _received(message, place, _client(context))
    loss, metric, count = evaluate(place.model, place.data.task, x, y)
    examples = len(x) if count else 0
    metrics = MetricRecord({"num-examples": examples, "eval-loss": loss, "eval-metric": metric})
    return Message(RecordDict({METRICS: metrics}), reply_to=message)


def _workplace(context: Context) -> Workplace:
    threads = context.node_config.get("threads")
    if isinstance(threads, int) and threads != torch.get_num_threads():
        torch.set_num_threads(threads)
    text = context.run_config.get("experiment")
    if not isinstance(text, str):
        raise ConfigError("run config: 'experiment' must hold the experiment as TOML text")
    return _workplace_for(text)


@lru_cache(maxsize=2)
def _workplace_for(text: str) -> Workplace:
    experiment = parse_experiment(text, where="run config")
    data = federated_data(experiment)
    device = choose_device(experiment.training.device)
    model = build_model(data.task, experiment.run.seed).to(device)
    return Workplace(experiment, data, model, device)


def _client(context: Context) -> int:
    number = context.node_config.get("partition-id")
    if not isinstance(number, int) or isinstance(number, bool):
        raise ConfigError(f"node config: 'partition-id' must be a whole number, got {number!r}")
    return number


def _received(message: Message, place: Workplace, client: int) -> tuple[Tensor, Tensor]:
    """Load the message's model and give the client's examples, both on the device."""
    records = message.content.array_records
    if ARRAYS not in records:
        raise FedsysError(f"message has no '{ARRAYS}' record; it has {sorted(records)}")
    received = {name: array.numpy() for name, array in records[ARRAYS].items()}
    load_arrays(place.model, received)
    x, y = place.data.of_client(client)
    return x.to(place.device), y.to(place.device)


def _config(message: Message) -> ConfigRecord:
    return message.content.config_records.get(CONFIG, ConfigRecord())


def _whole(config: ConfigRecord, key: str, default: int, at_least: int) -> int:
    value = config.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise FedsysError(f"config '{key}' must be a whole number >= {at_least}, got {value!r}")
    return value


def _figure(config: ConfigRecord, key: str, default: float, *, zero: bool = False) -> float:
    value = config.get(key, default)
    usable = isinstance(value, int | float) and math.isfinite(value)
    if not usable or value < 0 or (value == 0 and not zero):  # type: ignore[operator]
        least = ">= 0" if zero else "> 0"
        raise FedsysError(f"config '{key}' must be a number {least}, got {value!r}")
    return float(value)  # type: ignore[arg-type]


def _training(config: ConfigRecord, training: Training) -> Training:
    """The experiment's training, with what this round's message says in place of it."""
    mu = _figure(config, "proximal-mu", training.proximal_mu, zero=True)
    return training.model_copy(update={"proximal_mu": mu})
