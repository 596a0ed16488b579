"""Large updates over a thin uplink: ours, and stock Flower beside it behind an equal proxy."""

import contextlib
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.deploy_rig import Row, experiment, fedsys
from benchmarks.deploy_stages import stages_s
from benchmarks.deploy_task import bytes_of, hidden_for
from netem.profiles import link_for
from netem.proxy.address import Address
from netem.proxy.server import NodePort, ShapingProxy
from netem.proxy.thread import ProxyThread
from tests.e2e.lab import running_lab

SECTION = "big"
UP_BPS, DOWN_BPS = 256e3, 20e6
OPTIONS = {"up_bps": UP_BPS, "down_bps": DOWN_BPS, "delay_ms": 50.0, "tcp": "none"}
MODEL_BYTES, QUICK_MODEL_BYTES = 10_000_000, 400_000
MAX_OVERHEAD, QUICK_MAX_OVERHEAD = 1.03, 1.1
"""Connecting and the app cost the same 25 kB for any update."""
MAX_SECONDS, QUICK_MAX_SECONDS = 1.08, 1.2
"""An answer to each piece, while the other is under way, and the line's share of heads."""
STOCK_LIMIT = 1.6
"""How long stock Flower is given, over what the link needs for the payload."""
_START_S = 120.0

SERVER = """
import time
import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

app = ServerApp()

@app.main()
def main(grid, context):
    while not (nodes := list(grid.get_node_ids())):
        time.sleep(0.5)
    content = RecordDict({{"arrays": ArrayRecord({{"w": Array(np.zeros(1, np.float32))}})}})
    print("ASKED", flush=True)
    replies = list(grid.send_and_receive([Message(content, nodes[0], "train")], timeout={limit_s}))
    print("REPLIES", sum(reply.has_content() for reply in replies), flush=True)
    print("ERRORS", [reply.error.reason for reply in replies if reply.has_error()], flush=True)
"""
CLIENT = """
import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.train()
def train(message, context):
    values = np.random.default_rng(1).standard_normal({values}).astype(np.float32)
    return Message(RecordDict({{"arrays": ArrayRecord({{"w": Array(values)}})}}), reply_to=message)
"""
PROJECT = """
[project]
name = "big-app"
version = "1.0.0"
description = "sends one large update"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "test"

[tool.flwr.app.components]
serverapp = "big_app.server:app"
clientapp = "big_app.client:app"
"""


def rows(quick: bool) -> Iterator[Row]:
    """Ours with its bar, and beside it what stock Flower does in more time than the link needs."""
    model_bytes = bytes_of(hidden_for(QUICK_MODEL_BYTES if quick else MODEL_BYTES))
    line_s = 8 * model_bytes / UP_BPS
    if quick:
        yield from _own_rows(model_bytes, line_s, QUICK_MAX_OVERHEAD, QUICK_MAX_SECONDS)
        return
    stock: list[Row] = []
    limit_s = STOCK_LIMIT * line_s
    thread = threading.Thread(target=lambda: stock.extend(_stock_rows(model_bytes, limit_s)))
    thread.start()
    yield from _own_rows(model_bytes, line_s, MAX_OVERHEAD, MAX_SECONDS)
    thread.join()
    yield from stock


def _own_rows(model_bytes: int, line_s: float, bound: float, bound_s: float) -> Iterator[Row]:
    name = f"{model_bytes / 1e6:.2g} MB up at {UP_BPS / 1e3:.0f} kbit/s"
    text = experiment(
        name="big",
        link="constant",
        options=OPTIONS,
        model_bytes=model_bytes,
        clients=1,
        rounds=1,
    )
    with tempfile.TemporaryDirectory(prefix="fedsys-big-") as folder:
        done = fedsys("deploy", text, Path(folder), timeout_s=3 * line_s + _START_S)
        ((fetched_s, trained_s, sent_s),) = stages_s(Path(folder))
    accepted = sum(report["accepted"] for report in done.rounds[0]["reports"])
    wire_bytes = done.figures["deployment"]["wire_uplink_bytes"]
    yield Row(
        section=SECTION,
        name=f"{name}: updates that arrived, of 1",
        bound=1,
        measured=accepted,
        at_least=True,
    )
    yield Row(
        section=SECTION,
        name=f"{name}: bytes on the wire over payload",
        bound=bound,
        measured=wire_bytes / model_bytes,
        note=f"{wire_bytes / 1e6:.3f} MB",
    )
    yield Row(
        section=SECTION,
        name=f"{name}: seconds of the upload over those of the payload on the link",
        bound=bound_s,
        measured=sent_s / line_s,
        note=f"{sent_s:.1f} s; two pieces are under way at once",
    )
    yield Row(
        section=SECTION,
        name=f"{name}: seconds of the round over those of the payload on the link",
        bound=None,
        measured=done.lengths_s[0] / line_s,
        note=f"{done.lengths_s[0]:.1f} s: fetched in {fetched_s:.1f} s, process and training "
        f"{trained_s:.1f} s, upload {sent_s:.1f} s, the rest at the server",
    )


def _stock_rows(model_bytes: int, limit_s: float) -> Iterator[Row]:
    link = link_for("constant", OPTIONS, 1, 1)
    with tempfile.TemporaryDirectory(prefix="fedsys-stock-") as name:
        folder = Path(name)
        app = _write_app(folder / "app", model_bytes, limit_s)
        with (
            running_lab(folder / "lab") as lab,
            ProxyThread(
                ShapingProxy(Address("127.0.0.1", lab.port), [NodePort(name="1", link=link)])
            ) as proxy,
        ):
            lab.start_supernode(0, 1, proxy.proxy.ports["1"].port)
            begin_s, printed = time.monotonic(), ""
            with contextlib.suppress(AssertionError):
                printed = lab.run(app, timeout_s=limit_s + 4 * _START_S)
            seconds = time.monotonic() - begin_s
            up_bytes = proxy.call(lambda p: p.count("1").up.out_bytes)
    found = re.search(r"REPLIES (\d+)", printed)
    error = re.search(r"ERRORS \['([^.']*)", printed)
    name = f"stock Flower, {model_bytes / 1e6:.2g} MB"
    yield Row(
        section=SECTION,
        name=f"{name}: updates that arrived in {limit_s:.0f} s, of 1",
        bound=None,
        measured=float(found[1]) if found else None,
        note=error[1] if error else "",
    )
    yield Row(
        section=SECTION,
        name=f"{name}: bytes on the wire over payload",
        bound=None,
        measured=up_bytes / model_bytes,
        note=f"{up_bytes / 1e6:.3f} MB in {seconds:.0f} s",
    )


def _write_app(folder: Path, model_bytes: int, limit_s: float) -> Path:
    package = folder / "big_app"
    package.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT)
    (package / "__init__.py").write_text("")
    (package / "server.py").write_text(SERVER.format(limit_s=limit_s))
    (package / "client.py").write_text(CLIENT.format(values=model_bytes // 4))
    return folder
