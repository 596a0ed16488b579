"""What the tests of the virtual-time Grid share: links to work out by hand, and a toy app."""

from concurrent.futures import Future

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from netem.grid import VirtualGrid
from netem.link import Direction, Link
from netem.rate import RateCurve
from netem.sizes import download, upload

NODES = (7, 8, 9)
DOWN_BPS, UP_BPS, DELAY_MS = 8e6, 2e6, 50.0
COMPUTE_S = 1.5
MODEL_BYTES = 10_000 + 128
"""uint8 [10000] as a Flower Array: np.save puts 128 bytes before the data."""


def plain_link(node_id=0, *, up=None, down=None, **options):
    """A link without TCP, headers or chance: time is delay plus bytes over rate."""
    return Link(
        up=Direction(
            curve=up or RateCurve.constant(UP_BPS), delay_ms=DELAY_MS, layer="goodput", **options
        ),
        down=Direction(
            curve=down or RateCurve.constant(DOWN_BPS),
            delay_ms=DELAY_MS,
            layer="goodput",
            **options,
        ),
        tcp="none",
    )


def toy_app():
    app = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        config = message.content["config"]
        if config.get("raises") == context.node_id:
            raise ValueError("boom")
        arrays = ArrayRecord([a.numpy() + 1 for a in message.content["arrays"].values()])
        metrics = MetricRecord({"num-examples": 1, "node": context.node_id})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    app.train()(answer)
    app.evaluate()(answer)
    return app


def contexts(node_ids):
    return {
        node_id: Context(
            run_id=1, node_id=node_id, node_config={}, state=RecordDict(), run_config={}
        )
        for node_id in node_ids
    }


class Runner:
    """Runs the toy app at once, or later in any order a test asks for."""

    def __init__(self, node_ids=NODES):
        self.app, self.contexts, self.ran = toy_app(), contexts(node_ids), []

    def run(self, message: Message) -> Message:
        self.ran.append(message.metadata.dst_node_id)
        return self.app(message, self.contexts[message.metadata.dst_node_id])

    def submit(self, messages):
        futures = []
        for message in messages:
            future: Future[Message] = Future()
            try:
                future.set_result(self.run(message))
            except Exception as error:
                future.set_exception(error)
            futures.append(future)
        return futures


def grid_of(node_ids=NODES, *, link_of=plain_link, compute_s=COMPUTE_S, submit=None, **options):
    return VirtualGrid(
        node_ids=node_ids,
        link_of=link_of,
        submit=submit or Runner(node_ids).submit,
        compute_s=lambda node_id, reply: compute_s,
        **{"seed": 3, **options},
    )


def train_message(node_id, *, group_id="", **config):
    content = RecordDict(
        {
            "arrays": ArrayRecord([np.zeros(10_000, np.uint8)]),
            "config": ConfigRecord({"lr": 0.1, **config}),
        }
    )
    return Message(content, node_id, "train", group_id=group_id)


def hand_times(message, reply):
    down, up = download(message), upload(reply)
    download_s = 8 * down.size_bytes / DOWN_BPS + (1 + 2 * down.round_trips) * DELAY_MS / 1000
    upload_s = 8 * up.size_bytes / UP_BPS + (1 + 2 * up.round_trips) * DELAY_MS / 1000
    return download_s, upload_s
