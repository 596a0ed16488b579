"""Bytes that are reported are the bytes on the socket, between Flower's own processes."""

import json
import re
import textwrap
import time
from pathlib import Path

import pytest

from netem.profiles import link_for
from netem.proxy.address import Address
from netem.proxy.server import NodePort, ShapingProxy
from netem.proxy.thread import ProxyThread
from tests.e2e.lab import running_lab, wait_for

NODES = 2
PARAMETERS = 1_500_000
ROUNDS = 2
IDLE_UP_BYTES_PER_S = 600
"""Polls and heartbeats of one node without TLS, an upper bound; they are not part of a round."""


SERVER = f'''
import json
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
import numpy as np
from fedsys.middleware.grid import CodecGrid
from netem.sizes import download, upload

app = ServerApp()

class Ledger(Grid):
    """Adds up what the messages say they are."""
    def __init__(self, grid):
        self.grid, self.down, self.up = grid, 0, 0
    def __getattr__(self, name):
        return getattr(self.grid, name)
    def set_run(self, run): self.grid.set_run(run)
    @property
    def run(self): return self.grid.run
    def create_message(self, *args, **kwargs): return self.grid.create_message(*args, **kwargs)
    def get_node_ids(self): return self.grid.get_node_ids()
    def push_messages(self, messages): return self.grid.push_messages(messages)
    def pull_messages(self, ids): return self.grid.pull_messages(ids)
    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        self.add(map(download, messages), "down", "up")
        replies = list(self.grid.send_and_receive(messages, timeout=timeout))
        self.add(map(upload, replies), "up", "down")
        return replies
    def add(self, traffic, way, back):
        for one in traffic:
            setattr(self, way, getattr(self, way) + one.size_bytes)
            setattr(self, back, getattr(self, back) + one.back_bytes)

@app.main()
def main(grid, context):
    ledger = Ledger(grid)
    start = np.random.default_rng(1).standard_normal({PARAMETERS}).astype(np.float32)
    FedAvg(fraction_evaluate=0.0, min_available_nodes={NODES}).start(
        grid=CodecGrid(ledger, uplink="int8", downlink="int8"),
        initial_arrays=ArrayRecord({{"weight": Array(start)}}),
        num_rounds={ROUNDS},
        train_config=ConfigRecord({{"lr": 0.1}}),
        timeout=120,
    )
    print("LEDGER " + json.dumps({{"up": ledger.up, "down": ledger.down}}), flush=True)
'''

CLIENT = """
import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from fedsys.middleware.mod import codec_mod

app = ClientApp(mods=[codec_mod])

@app.train()
def train(message, context):
    weight = message.content["arrays"]["weight"].numpy()
    node = int(context.node_config["partition-id"])
    step = np.random.default_rng(node).standard_normal(weight.size).astype(np.float32)
    arrays = ArrayRecord({"weight": Array(weight + step)})
    metrics = MetricRecord({"num-examples": 1})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
"""

PROJECT = """
[project]
name = "bytes-app"
version = "1.0.0"
description = "counts bytes"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "test"

[tool.flwr.app.components]
serverapp = "bytes_app.server:app"
clientapp = "bytes_app.client:app"
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """A Flower app whose ServerApp prints its own sum of message sizes."""
    folder = tmp_path / "app"
    (folder / "bytes_app").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "bytes_app" / "__init__.py").write_text("")
    (folder / "bytes_app" / "server.py").write_text(SERVER)
    (folder / "bytes_app" / "client.py").write_text(textwrap.dedent(CLIENT))
    return folder


def test_a_round_costs_on_the_socket_what_is_reported(app, tmp_path):
    perfect = link_for("perfect", {}, seed=1, node=1)
    names = [f"node-{number}" for number in range(NODES)]
    with running_lab(tmp_path / "lab") as lab:
        ports = [
            NodePort(name=name, link=perfect, listen=Address("127.0.0.1", 0)) for name in names
        ]
        proxy = ShapingProxy(Address("127.0.0.1", lab.port), ports, seed=1)
        with ProxyThread(proxy) as thread:

            def counts():
                return [thread.call(lambda proxy, name=name: proxy.count(name)) for name in names]

            begun_s = time.monotonic()
            for number, name in enumerate(names):
                lab.start_supernode(number, NODES, proxy.ports[name].port)
            wait_for(
                lambda: all(count.up.out_bytes > 500 for count in counts()),
                *(60, "a node never dialled"),
            )
            printed = lab.run(app, timeout_s=240)
            seconds = time.monotonic() - begun_s
            up = sum(count.up.out_bytes for count in counts())
            down = sum(count.down.out_bytes for count in counts())
            lab.stop()

    said = json.loads(re.search(r"LEDGER (\{.*\})", printed)[1])
    idle = NODES * IDLE_UP_BYTES_PER_S * seconds
    assert said["up"] > ROUNDS * NODES * PARAMETERS
    assert said["up"] * 0.99 <= up <= said["up"] * 1.01 + idle
    assert said["down"] * 0.99 <= down <= said["down"] * 1.01 + idle
