"""The ClientApp as Flower calls it."""

from collections import OrderedDict

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict

from clients.client_app import app
from clients.server_side import ServerTask
from fedsys._flwr_private import set_task_identity
from fedsys.config.load import parse_experiment

EXPERIMENT = "partition.clients = 4"


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_messages_of_an_unmodified_server_are_answered(kind):
    set_task_identity(1)
    weights = ServerTask(parse_experiment(EXPERIMENT, where="test")).initial_arrays()
    arrays = ArrayRecord(OrderedDict((name, Array(a)) for name, a in weights.items()))
    context = Context(
        run_id=1,
        node_id=9,
        state=RecordDict(),
        node_config={"partition-id": 3},
        run_config={"experiment": EXPERIMENT},
    )

    reply = app(Message(RecordDict({"arrays": arrays}), 9, kind), context)

    assert reply.content["metrics"]["num-examples"] > 0
    assert ("arrays" in reply.content) == (kind == "train")
    if kind == "train":
        assert not np.array_equal(reply.content["arrays"]["0.bias"].numpy(), weights["0.bias"])
