"""Many devices in one process: Flower's client of the Fleet API, our ClientApp without forks.

    python -m benchmarks.deploy_devices FOLDER

Reads the enrolments in FOLDER, has a thread for each, and runs until its standard input ends.
"""

import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import torch
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Context, Message, RecordDict
from flwr.common.config import get_fused_config_from_fab
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects
from flwr.supernode.fleet_http_connection import http_request_response

from clients.client_app import app
from fedsys.clock import WallClock
from fedsys.deploy._flower import speak_as_a_device
from fedsys.deploy.enrolment import Enrolment


class Device:
    """One device: asks for work, trains, sends."""

    def __init__(self, enrolment: Enrolment, state: Path, training: threading.Lock) -> None:
        self._enrolment = enrolment
        self._state = state
        self._training = training
        self._configs: dict[int, dict[str, Any]] = {}

    def serve(self) -> None:
        """Until the process ends."""
        key: Any = load_ssh_private_key(self._enrolment.key.private, None)
        with http_request_response(
            self._enrolment.address,
            False,
            self._enrolment.authority,
            authentication_keys=(key, key.public_key()),
        ) as connection:
            while True:
                self._answer(connection)

    def _answer(self, connection: Any) -> None:
        node_id, receive, send, get_run, get_fab, pull_object, push_object, confirm = connection
        if (received := receive()) is None:
            return
        announced, tree = received
        run_id, message_id = announced.metadata.run_id, announced.metadata.message_id
        if run_id not in self._configs:
            run = get_run(run_id)
            fab = get_fab(run.fab_hash, run_id)
            self._configs[run_id] = get_fused_config_from_fab(fab.content, run)
        names = list(dict.fromkeys(one.object_id for one in iterate_object_tree(tree)))
        contents = pull_objects(names, lambda name: pull_object(run_id, name))
        confirm(run_id, message_id)
        message: Any = inflate_object_from_contents(message_id, contents)
        message.metadata.__dict__["_message_id"] = message_id
        with self._training:
            reply = app(message, self._context(run_id, node_id))
        self._send(reply, run_id, send, push_object)

    def _send(self, reply: Message, run_id: int, send: Any, push_object: Any) -> None:
        reply.metadata.__dict__["_message_id"] = reply.object_id
        with no_object_id_recompute():
            tree, objects = get_object_tree(reply), get_all_nested_objects(reply)
            wanted, session = send(reply, tree, 0.0)
            for name in wanted:
                push_object(run_id, session, name, objects[name].deflate())

    def _context(self, run_id: int, node_id: int) -> Context:
        return Context(
            run_id=run_id,
            node_id=node_id,
            node_config={
                "name": self._enrolment.node,
                "partition-id": self._enrolment.partition,
                "state-dir": str(self._state),
                "durable": False,
                "threads": 1,
            },
            state=RecordDict(),
            run_config=self._configs[run_id],
        )


def main() -> None:
    """All devices of a folder."""
    torch.set_num_threads(1)
    enrolments = [Enrolment.load(file) for file in sorted(Path(sys.argv[1]).glob("*.enrolment"))]
    speak_as_a_device(enrolments[0].address, WallClock())
    training = threading.Lock()
    with tempfile.TemporaryDirectory(prefix="fedsys-devices-") as state:
        for enrolment in enrolments:
            device = Device(enrolment, Path(state), training)
            threading.Thread(target=device.serve, daemon=True).start()
        while os.read(0, 1 << 10):
            pass
    os._exit(0)  # without goodbyes from all threads


if __name__ == "__main__":
    main()
