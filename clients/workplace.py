"""What all clients that train in one process share; nothing in it belongs to one of them."""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import nn

from clients.data.federated import FederatedData, federated_data
from clients.device import choose_device
from clients.fast_conv import speed_up
from clients.stack import Stack, stack_for
from clients.tasks._load import task_for
from clients.weights import Exchange, Layout, build_model
from fedsys.config.load import dump_toml, parse_experiment, with_settings
from fedsys.config.schema import Experiment


@dataclass(frozen=True, slots=True)
class Workplace:
    """The experiment, its data, and one model whose weights belong to the current client."""

    experiment: Experiment
    data: FederatedData
    model: nn.Module
    weights: Exchange
    """The way into the model and out of it."""
    device: torch.device
    stack: Stack | None
    """None where clients are trained one by one."""

    @property
    def layout(self) -> Layout:
        """Of the model's weights."""
        return self.weights.layout


@lru_cache(maxsize=2)
def workplace_for(text: str) -> Workplace:
    """The workplace of the experiment that ``text`` (TOML) describes, kept for later calls."""
    experiment = parse_experiment(text, where="run config")
    data = federated_data(experiment)
    device = choose_device(experiment.training.device)
    model = build_model(data.task, experiment.run.seed)
    model = speed_up(model, experiment.training.fast_conv, device).to(device)
    weights = Exchange(model)
    stack = None
    if device.type == "cpu":
        stack = stack_for(model, data.task, data.train, weights, experiment.training)
    return Workplace(experiment, data, model, weights, device, stack)


@lru_cache(maxsize=2)
def with_data(text: str, folder: str) -> str:
    """The experiment with ``task.options.folder`` as this device has it.

    Raises ConfigError where the task reads no folder.
    """
    experiment = parse_experiment(text, where="run config")
    changed = with_settings(experiment, {"task.options.folder": folder}, "--data")
    task_for(changed.task)
    return dump_toml(changed)
