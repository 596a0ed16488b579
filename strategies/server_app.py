"""Flower entry point of the server: the experiment in the run config, run to its end.

The server's composition root: it alone may load ``clients`` (by name), because the server needs
initial weights and a held-out set, and ``netem``, where Flower's nodes are simulated.
"""

import importlib
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedsys.config.load import parse_experiment
from fedsys.config.schema import Experiment
from fedsys.deploy.orders import ORDER, Order
from fedsys.errors import ConfigError
from fedsys.middleware.place import OUT
from fedsys.options import configured
from fedsys.registry import load
from strategies._base import CONTROLLER_PARTS, Controller
from strategies._buffered import budget_for
from strategies._deployment import run_order
from strategies._flower import RoundBudget
from strategies._simulated import Emulate, run_simulated

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment whose TOML text is the run config's ``experiment``."""
    text = str(context.run_config.get("experiment", ""))
    if not text.strip():
        raise ConfigError("run config: 'experiment' must be the text of an experiment file")
    experiment = parse_experiment(text, where="run config")
    if name := str(context.run_config.get(ORDER, "")):
        controller, task = controller_for(experiment), _server_task(experiment)
        run_order(Order.load(name), experiment, controller, task, grid)
        return
    if out := str(context.run_config.get(OUT, "")):
        run_simulated(
            experiment,
            controller_for(experiment),
            _server_task(experiment),
            grid,
            _emulation(),
            path=Path(out),
            run_id=context.run_id,
        )
        return
    nodes = sorted(grid.get_node_ids())
    strategy_for(experiment, nodes).start(grid)


def controller_for(experiment: Experiment) -> Controller[Any]:
    """The controller that the experiment names, with its options checked.

    One that has a method ``check`` is shown the experiment, too.
    """
    name, options = experiment.strategy.name, experiment.strategy.options
    kind = load("strategies", name, "strategy")
    controller: Controller[Any] = configured(f"strategy '{name}'", kind, options)
    lacking = [part for part in CONTROLLER_PARTS if not hasattr(controller, part)]
    if lacking:
        raise ConfigError(f"strategy '{name}' has no {', '.join(lacking)}; see strategies/_base.py")
    if hasattr(controller, "check"):
        try:
            controller.check(experiment)
        except ConfigError as error:
            raise ConfigError(f"strategy '{name}': {error}") from error
    return controller


def strategy_for(experiment: Experiment, nodes: list[int]) -> RoundBudget:
    """The strategy for these nodes; node i of the sorted list trains on part i of the data."""
    task = _server_task(experiment)
    counts = task.examples_per_client()
    if len(nodes) != len(counts):
        raise ConfigError(
            f"partition.clients = {len(counts)}, but {len(nodes)} nodes are connected; each node "
            "trains on one part, so there must be equally many"
        )
    return budget_for(
        experiment,
        controller_for(experiment),
        dict(zip(nodes, counts, strict=True)),
        task.initial_arrays(),
        task.evaluate,
    )


def _server_task(experiment: Experiment) -> Any:
    return importlib.import_module("clients.server_side").ServerTask(experiment)


def _emulation() -> Emulate:
    """Links in virtual time; devices have no use for them, so they do not come with the app."""
    try:
        emulate: Emulate = importlib.import_module("netem.emulation").virtual_grid
    except ModuleNotFoundError as error:
        raise ConfigError(f"run config: 'out' needs fedsys installed here: {error}") from error
    return emulate
