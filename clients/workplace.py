"""What all clients that train in one process share; nothing in it belongs to one of them."""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import nn

from clients.data.federated import FederatedData, federated_data
from clients.device import choose_device
from clients.stack import Stack, stack_for
from clients.weights import Layout, build_model
from fedsys.config.load import parse_experiment
from fedsys.config.schema import Experiment


@dataclass(frozen=True, slots=True)
class Workplace:
    """The experiment, its data, and one model whose weights belong to the current client."""

    experiment: Experiment
    data: FederatedData
    model: nn.Module
    layout: Layout
    device: torch.device
    stack: Stack | None
    """None where clients are trained one by one."""


@lru_cache(maxsize=2)
def workplace_for(text: str) -> Workplace:
    """The workplace of the experiment that ``text`` (TOML) describes, kept for later calls."""
    experiment = parse_experiment(text, where="run config")
    data = federated_data(experiment)
    device = choose_device(experiment.training.device)
    model = build_model(data.task, experiment.run.seed).to(device)
    layout = Layout.of(model)
    stack = None
    if device.type == "cpu":
        stack = stack_for(model, data.task, data.train, layout, experiment.training)
    return Workplace(experiment, data, model, layout, device, stack)
