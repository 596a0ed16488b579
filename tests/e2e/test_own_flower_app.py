"""The example app as its user has it: real ServerApp and ClientApp, stock strategies, two lines."""

import importlib
import random
import re
import sys
import tomllib
from concurrent.futures import Future
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict

from netem.grid import VirtualGrid
from netem.profiles import link_for

FOLDER = Path(__file__).parents[2] / "examples" / "own_flower_app"
APP = FOLDER / "digits-app"
CONFIG = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
NODES = range(1, 7)


@pytest.fixture
def apps(monkeypatch):
    """The objects that pyproject.toml names."""
    monkeypatch.syspath_prepend(APP)
    names = [CONFIG["components"][kind].split(":") for kind in ("serverapp", "clientapp")]
    yield [getattr(importlib.import_module(module), name) for module, name in names]
    for module in [name for name in sys.modules if name.partition(".")[0] == "digits_app"]:
        del sys.modules[module]


def run(apps, folder, capsys, **run_config):
    """Accuracy as the ServerApp prints it, and the bytes of all uploads."""
    server_app, client_app = apps
    random.seed(1)
    contexts = {
        node: Context(
            run_id=1,
            node_id=node,
            node_config={
                "partition-id": node - 1,
                "num-partitions": len(NODES),
                "state-dir": str(folder),
                "durable": False,
            },
            state=RecordDict(),
            run_config={},
        )
        for node in NODES
    }

    def submit(messages):
        futures = []
        for message in messages:
            futures.append(Future())
            futures[-1].set_result(client_app(message, contexts[message.metadata.dst_node_id]))
        return futures

    grid = VirtualGrid(
        node_ids=NODES,
        link_of=lambda node: link_for("3g", {}, 1, node),
        submit=submit,
        compute_s=lambda node, reply: 1.0,
        seed=1,
    )
    config = CONFIG["config"] | run_config
    server_app(grid, Context(1, 0, {}, RecordDict(), config))
    printed = re.search(r"accuracy after \d+ rounds: ([\d.]+)", capsys.readouterr().out)
    return float(printed[1]), grid.sent_bytes[1]


@pytest.mark.parametrize("strategy", ["fedavg", "fedadam"])
def test_two_lines_save_12_of_13_bytes_and_cost_less_than_3_points(
    apps, tmp_path, capsys, strategy
):
    plain = {"uplink": "none", "downlink": "none"}
    accuracy, plain_bytes = run(apps, tmp_path / "a", capsys, strategy=strategy, **plain)
    coded_accuracy, coded_bytes = run(apps, tmp_path / "b", capsys, strategy=strategy)

    assert accuracy > 0.85
    assert coded_accuracy > accuracy - 0.03
    assert coded_bytes < plain_bytes / 13


def test_the_readme_shows_the_lines_that_the_app_has():
    readme = (FOLDER / "README.md").read_text()
    shown = re.findall(r"^\+(.*)$", readme, re.MULTILINE)
    files = [file.read_text() for file in APP.glob("digits_app/*.py")]
    code = {line.strip() for text in files for line in text.splitlines()}

    assert len(shown) == 4
    assert {line.strip() for line in shown} <= code
