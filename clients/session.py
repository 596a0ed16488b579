"""One message at one client: load the model it brings, train or evaluate, and reply.

What Flower wants around it is in ``clients.client_app``; compression is a mod outside of this.
"""

import math
from collections import OrderedDict
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from clients.cohort import Job, Trained, train_cohort
from clients.evaluate import evaluate
from clients.train import Diverged
from clients.weights import Weights, load_arrays
from clients.workplace import Workplace, with_data, workplace_for
from fedsys.config.schema import Training
from fedsys.deploy.orders import check_protocol
from fedsys.errors import ConfigError, FedsysError
from fedsys.middleware.control import array_records

ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"


def train_reply(message: Message, context: Context) -> Message:
    """Train from the received weights; reply with the trained ones and what training measured.

    The message's ``config`` says ``server-round``, ``local-steps`` (default: one epoch), ``lr`` and
    ``proximal-mu`` (defaults: the experiment's). The result depends on the seed, the client's
    number, the round and the weights alone. Raises Diverged rather than sending a number that is
    none.
    """
    place = workplace_of(context)
    job = job_for(place, message, context, place.layout.weights(_received(message)))
    trained = train_cohort(place, [job])[0]
    if isinstance(trained, Diverged):
        raise trained
    named = place.layout.arrays(trained.weights).items()
    arrays = OrderedDict((name, Array(a)) for name, a in named)
    metrics = MetricRecord({**figures_of(trained, place.experiment.training)})
    content = RecordDict({ARRAYS: ArrayRecord(arrays), METRICS: metrics})
    return Message(content, reply_to=message)


def job_for(place: Workplace, message: Message, context: Context, start: Weights) -> Job:
    """What the message asks of this client, beginning from ``start``."""
    client, config, training = client_of(context), _config(message), place.experiment.training
    steps = _whole(config, "local-steps", 0, at_least=1) if "local-steps" in config else None
    return Job(
        client=client,
        start=start,
        round=_whole(config, "server-round", 0, at_least=0),
        local_steps=steps,
        lr=_figure(config, "lr", training.lr),
        proximal_mu=_figure(config, "proximal-mu", training.proximal_mu, zero=True),
    )


def figures_of(trained: Trained, training: Training) -> dict[str, int | float | list[float]]:
    """What a reply says of the training."""
    stages = trained.stages if training.stage_times else {}
    return {
        "num-examples": trained.examples,
        "local-steps": trained.result.local_steps,
        "samples": trained.result.samples,
        "train-loss": trained.result.train_loss,
        "first-loss": trained.result.first_loss,
        "train-seconds": trained.train_s,
        **{f"{name}-seconds": seconds for name, seconds in stages.items()},
    }


def evaluate_reply(message: Message, context: Context) -> Message:
    """Loss and metric of the received weights on this client's examples.

    ``num-examples`` is 0, and so are the others, when the task had nothing to predict.
    """
    place = workplace_of(context)
    load_arrays(place.model, _received(message))
    x, y = place.data.of_client(client_of(context))
    x, y = x.to(place.device), y.to(place.device)
    loss, metric, count = evaluate(place.model, place.data.task, x, y)
    examples = len(x) if count else 0
    metrics = MetricRecord({"num-examples": examples, "eval-loss": loss, "eval-metric": metric})
    return Message(RecordDict({METRICS: metrics}), reply_to=message)


def workplace_of(context: Context) -> Workplace:
    """What the clients in this process share; ConfigError if the run config names no experiment."""
    threads = context.node_config.get("threads")
    if isinstance(threads, int) and threads != torch.get_num_threads():
        torch.set_num_threads(threads)
    text = context.run_config.get("experiment")
    if not isinstance(text, str):
        raise ConfigError("run config: 'experiment' must hold the experiment as TOML text")
    check_protocol(context.run_config)
    folder = context.node_config.get("data")
    return workplace_for(with_data(text, folder) if isinstance(folder, str) else text)


def client_of(context: Context) -> int:
    """Number of the client that this node plays; ConfigError if its node config does not say."""
    number = context.node_config.get("partition-id")
    if not isinstance(number, int) or isinstance(number, bool):
        raise ConfigError(f"node config: 'partition-id' must be a whole number, got {number!r}")
    return number


def _received(message: Message) -> dict[str, NDArray[Any]]:
    records = array_records(message.content)
    if ARRAYS not in records:
        raise FedsysError(f"message has no '{ARRAYS}' record; it has {sorted(records)}")
    return {name: array.numpy() for name, array in records[ARRAYS].items()}


def _config(message: Message) -> ConfigRecord:
    config = message.content.get(CONFIG)
    return config if isinstance(config, ConfigRecord) else ConfigRecord()


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
