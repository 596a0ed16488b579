"""A server codec and clients with a folder, every exchange spelled out by the test."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict

from fedsys._flwr_private import copy_message, set_task_identity
from fedsys.config.schema import CodecConfig
from fedsys.middleware.control import RECORD, unwrap
from fedsys.middleware.mod import codec_mod
from fedsys.middleware.server import ServerCodec
from fedsys.rng import rng_for
from fedsys.wire.packet import unpack_frames
from fedsys.wire.schema import Schema

N = 3000


def model_at(version, dtype=np.float32):
    """The server's model of that version: a slow random walk and a counter that travels raw."""
    steps = [rng_for(v).standard_normal(N) * 0.01 for v in range(version + 1)]
    return {"w": np.sum(steps, axis=0).astype(dtype), "steps": np.array(version, np.int64)}


class Federation:
    """One server codec and clients with a folder; every exchange is spelled out by the test."""

    def __init__(self, folder, *, shared=True, holds=True, dtype=np.float32, seed=1, **config):
        set_task_identity(1)
        self.dtype, self.folder, self.shared = dtype, folder, shared
        self.config = CodecConfig(**config)
        self.schema = Schema.of(model_at(0, dtype))
        self.server = ServerCodec(self.schema, self.config, seed, holds)
        self.got = None

    def context(self, node, run_id=1):
        config = {"state-dir": str(self.folder), "durable": not self.shared}
        return Context(run_id, node, config, RecordDict(), {})

    def message(self, node, kind="train"):
        arrays, control = self.server.records_for(node, self.config.uplink)
        return Message(RecordDict({"x": arrays, RECORD: control}), node, kind)

    def deliver(self, message, change=0.0, run_id=1):
        """The client's reply: what it got plus ``change``."""

        def app(message, context):
            self.got = {k: a.numpy() for k, a in message.content["x"].items()}
            trained = self.got | {"w": (self.got["w"] + change).astype(self.dtype)}
            record = ArrayRecord({k: Array(a) for k, a in trained.items()})
            return Message(RecordDict({"x": record}), reply_to=message)

        node = message.metadata.dst_node_id
        return codec_mod(copy_message(message), self.context(node, run_id), app)

    def advance(self, version, spec, nodes=()):
        return self.server.advance(model_at(version, self.dtype), spec, nodes)

    def assert_client_has_what_was_sent(self):
        down = self.server.downlink
        sent = self.schema.join_exact(down.held, down.raw)
        for name, array in sent.items():
            assert self.got[name].dtype == array.dtype
            assert self.got[name].tobytes() == array.tobytes()


def frames_of(message):
    return unpack_frames(unwrap(message.content)[1], 1024)
