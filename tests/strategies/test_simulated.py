"""On the nodes of Flower's simulation a run gives the bytes that ``fedsys simulate`` gives."""

import pickle
import traceback

import pytest
from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid

from clients.client_app import app as client_app
from fedsys._flwr_private import set_task_identity
from fedsys.cli.run import run_experiment
from fedsys.config.load import dump_toml, parse_experiment
from fedsys.errors import ConfigError, WireError
from fedsys.middleware.place import place_mod, placed
from fedsys.telemetry.runfolder import RunFolder
from strategies.server_app import app as server_app

RUN_ID = 987
EXPERIMENT = """
run = {{ name = "s", seed = 3, budget = {{ rounds = {rounds} }} }}
task = {{ options = {{ model = "mlp" }} }}
partition = {{ clients = 6 }}
cohort = {{ size = 4 }}
codec = {{ uplink = "{uplink}", downlink = "int8" }}
network = {{ link = "3g", dropout_fraction = 0.2 }}
"""


class FlowerNodes(Grid):
    """As Flower's simulation: nodes numbered at random, replies later and in another order."""

    def __init__(self, run_config, numbers=(90071, 33, 5555, 404)):
        self.numbers, self.run_config = numbers, run_config
        self.states = {number: RecordDict() for number in numbers}
        self.replies, self.sent = {}, 0

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *args, **kwargs):
        raise NotImplementedError

    def get_node_ids(self):
        return list(self.numbers)

    def push_messages(self, messages):
        ids = []
        for message in messages:
            assert message.metadata.run_id == RUN_ID
            self.sent += 1
            message_id = f"flower-{self.sent}"
            message.metadata.__dict__["_message_id"] = message_id
            self.replies[message_id] = self.reply(pickle.loads(pickle.dumps(message)))
            ids.append(message_id)
        return ids

    def reply(self, message):
        node = message.metadata.dst_node_id
        config = {"partition-id": self.numbers.index(node), "num-partitions": len(self.numbers)}
        context = Context(RUN_ID, node, config, self.states[node], dict(self.run_config))
        try:
            return client_app(message, context)
        except Exception:
            return Message(Error(2, traceback.format_exc()), reply_to=message)

    def pull_messages(self, message_ids):
        asked = [message_id for message_id in message_ids if message_id in self.replies]
        return [self.replies.pop(message_id) for message_id in asked[-2:][::-1]]

    def send_and_receive(self, messages, *, timeout=None):
        raise NotImplementedError


def run_on_flower(experiment, out, nodes=FlowerNodes):
    set_task_identity(RUN_ID)
    config = {"experiment": dump_toml(experiment), "out": str(out)}
    context = Context(RUN_ID, 1, {}, RecordDict(), config)
    grid = nodes(config)
    server_app(grid, context)
    return grid


def bytes_of(folder):
    return [(folder / name).read_bytes() for name in ("rounds.jsonl", "model.safetensors")]


@pytest.mark.parametrize("uplink", ["topk(0.1)|int8", "none"])
def test_flowers_nodes_give_the_same_seconds_records_and_model(uplink, tmp_path):
    experiment = parse_experiment(EXPERIMENT.format(rounds=4, uplink=uplink), where="test")
    here = RunFolder.create(tmp_path / "here", experiment, resume=False)
    run_experiment(experiment, here)
    run_on_flower(experiment, tmp_path / "flower")
    assert bytes_of(tmp_path / "flower") == bytes_of(tmp_path / "here")
    assert RunFolder.open(tmp_path / "flower").result()["stopped_by"] == "rounds"
    assert not (tmp_path / "flower" / "clients").exists()


def test_a_run_that_was_stopped_goes_on_from_its_checkpoint(tmp_path):
    experiment = parse_experiment(EXPERIMENT.format(rounds=4, uplink="int8"), where="test")
    here = RunFolder.create(tmp_path / "here", experiment, resume=False)
    run_experiment(experiment, here)
    begun = RunFolder.create(tmp_path / "flower", experiment, resume=False)
    run_experiment(experiment, begun, stop=lambda: len(begun.records()) >= 1)
    assert len(begun.records()) < 4
    run_on_flower(experiment, tmp_path / "flower")
    assert bytes_of(tmp_path / "flower") == bytes_of(tmp_path / "here")
    again = run_on_flower(experiment, tmp_path / "flower")
    assert again.sent == 0


def test_without_nodes_the_run_ends_with_what_to_set(tmp_path):
    experiment = parse_experiment(EXPERIMENT.format(rounds=1, uplink="int8"), where="test")
    with pytest.raises(ConfigError, match="set num-supernodes"):
        run_on_flower(experiment, tmp_path / "run", lambda config: FlowerNodes(config, ()))


@pytest.mark.parametrize(
    ("node", "node_config", "run_config"),
    [
        (3, {"state-dir": "/var/lib/fedsys"}, {"out": "/elsewhere"}),
        (3, {}, {}),
        (0, {}, {"out": "/elsewhere"}),
        ("3", {}, {"out": "/elsewhere"}),
    ],
)
def test_a_device_takes_no_number_and_no_folder_from_a_message(node, node_config, run_config):
    set_task_identity(1)
    message = Message(placed(RecordDict(), node), 9, "train")
    context = Context(1, 9, node_config, RecordDict(), run_config)
    with pytest.raises(WireError, match="only simulated nodes"):
        place_mod(message, context, lambda message, context: pytest.fail("was let through"))


def test_a_message_without_a_place_passes_as_it_is():
    set_task_identity(1)
    message, context = Message(RecordDict(), 9, "train"), Context(1, 9, {}, RecordDict(), {})
    assert place_mod(message, context, lambda *same: same) == (message, context)
