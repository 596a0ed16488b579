"""CodecGrid under stock Flower strategies and over a virtual network: same results, fewer bytes."""

import random
from concurrent.futures import Future

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg, Krum

from fedsys._flwr_private import copy_message
from fedsys.codecs.topk import Impl as TopK
from fedsys.errors import ConfigError
from fedsys.middleware.control import RECORD, STYPE, wrap
from fedsys.middleware.grid import CodecGrid
from fedsys.middleware.mod import codec_mod
from fedsys.rng import rng_for
from netem.grid import VirtualGrid
from netem.link import Direction, Link
from netem.rate import RateCurve

NODES = (1, 2, 3)
ROUNDS = 4
LINK = Link(
    up=Direction(curve=RateCurve.constant(1e6), layer="goodput"),
    down=Direction(curve=RateCurve.constant(1e6), layer="goodput"),
    tcp="none",
)


def model(dtype=np.float32):
    """A model with BatchNorm, its integer counter, a scalar and a bias."""
    rng = rng_for(1, "model")
    return {
        "conv.weight": rng.standard_normal((8, 3, 3, 3)).astype(dtype),
        "conv.bias": rng.standard_normal(8).astype(dtype),
        "bn.weight": np.ones(8, dtype),
        "bn.running_mean": np.zeros(8, dtype),
        "bn.running_var": np.ones(8, dtype),
        "bn.num_batches_tracked": np.array(0, np.int64),
        "temperature": np.array(0.5, dtype),
        "mask": np.array([True, False, True]),
        "head.weight": rng.standard_normal((40, 50)).astype(dtype),
    }


def target(node):
    return {
        name: rng_for(node, "target", name).standard_normal(array.shape)
        for name, array in model().items()
        if array.dtype.kind == "f"
    }


def step(arrays, node):
    """Half the way to the node's own target; counters count, variances stay positive."""
    aim, after = target(node), {}
    for name, array in arrays.items():
        if name.endswith("running_var"):
            after[name] = array * 0.9 + 0.1
        elif name.endswith("tracked"):
            after[name] = array + 10
        elif name == "mask":
            after[name] = array
        else:
            after[name] = (array + 0.5 * (aim[name] - array)).astype(array.dtype)
    return after


class Fleet:
    """The client app of all nodes, and what the network may do to their messages."""

    def __init__(self, folder, mods, spoil=lambda reply, node, turn: reply):
        self.folder, self.spoil = folder, spoil
        self.seen = {node: [] for node in NODES}
        self.app = ClientApp(mods=mods)
        self.app.train()(self.train)
        self.app.evaluate()(self.evaluate)

    def train(self, message, context):
        arrays = {k: a.numpy() for k, a in message.content["arrays"].items()}
        self.seen[context.node_id].append(arrays)
        if message.content["config"].get("raises") == context.node_id:
            raise ValueError("boom")
        trained = step(arrays, context.node_id)
        record = ArrayRecord({k: Array(np.asarray(a)) for k, a in trained.items()})
        metrics = MetricRecord({"num-examples": context.node_id})
        return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)

    def evaluate(self, message, context):
        arrays = {k: a.numpy() for k, a in message.content["arrays"].items()}
        size = float(sum(np.abs(a).sum() for a in arrays.values()))
        metrics = MetricRecord({"num-examples": context.node_id, "size": size})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    def submit(self, messages):
        return [self._future(message) for message in messages]

    def _future(self, message):
        node, future = message.metadata.dst_node_id, Future()
        config = {"state-dir": str(self.folder), "durable": False}
        try:
            reply = self.app(message, Context(1, node, config, RecordDict(), {}))
            future.set_result(self.spoil(reply, node, len(self.seen[node])))
        except Exception as error:
            future.set_exception(error)
        return future

    def grid(self):
        return VirtualGrid(
            node_ids=NODES,
            link_of=lambda node: LINK,
            submit=self.submit,
            compute_s=lambda node, reply: 1.0,
            seed=1,
        )


def run(
    folder, *, strategy=None, coded=True, spoil=None, dtype=np.float32, rounds=ROUNDS, **codecs
):
    """Arrays after some rounds of a stock strategy, the fleet and the virtual network."""
    random.seed(1)
    fleet = Fleet(folder, [codec_mod] if coded else [], *([spoil] if spoil else []))
    inner = fleet.grid()
    grid = CodecGrid(inner, **codecs) if coded else inner
    result = (strategy or FedAvg()).start(
        grid=grid,
        initial_arrays=ArrayRecord({k: Array(a) for k, a in model(dtype).items()}),
        num_rounds=rounds,
    )
    arrays = {name: array.numpy() for name, array in result.arrays.items()}
    return arrays, fleet, inner, result


STRATEGIES = {
    "FedAvg": FedAvg,
    "FedAdam": lambda: FedAdam(eta=0.1),
    "Krum": lambda: Krum(num_malicious_nodes=0),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_codec_none_is_the_strategy_itself(tmp_path, name):
    plain, *_ = run(tmp_path / "a", strategy=STRATEGIES[name](), coded=False)
    coded, *_ = run(tmp_path / "b", strategy=STRATEGIES[name](), uplink="none", downlink="none")

    assert plain.keys() == coded.keys()
    for key, array in plain.items():
        assert array.shape == coded[key].shape
        # Flower's mean makes int64 counters float64; a client then gets them as integers again.
        tolerance = 1e-6 if model()[key].dtype.kind == "f" else 1
        np.testing.assert_allclose(coded[key], array, atol=tolerance)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("codec", ["none", "int8", "topk(0.1)|int8", "sign", "fp16"])
def test_every_client_gets_every_tensor_in_its_shape_and_dtype(tmp_path, dtype, codec):
    arrays, fleet, *_ = run(tmp_path, uplink=codec, downlink=codec, dtype=dtype)

    for received in (one for seen in fleet.seen.values() for one in seen):
        for name, expected in model(dtype).items():
            assert (received[name].dtype, received[name].shape) == (expected.dtype, expected.shape)
            assert np.isfinite(received[name]).all()
        assert (received["bn.running_var"] > 0).all()
        assert received["mask"].tolist() == [True, False, True]
    counters = [int(one["bn.num_batches_tracked"]) for one in fleet.seen[1]]
    assert counters == [10 * turn for turn in range(ROUNDS)]
    assert arrays["temperature"].shape == ()


def test_all_clients_of_a_round_decode_the_same_model(tmp_path):
    _, fleet, *_ = run(tmp_path, uplink="topk(0.1)|int8", downlink="topk(0.1)|int8")

    for turn in range(ROUNDS):
        first, *others = (fleet.seen[node][turn] for node in NODES)
        for other in others:
            assert all(first[name].tobytes() == other[name].tobytes() for name in first)


def test_the_messages_of_the_strategy_stay_as_they_are(tmp_path):
    grid = Fleet(tmp_path, [codec_mod]).grid()
    coded = CodecGrid(grid, uplink="int8", downlink="int8")
    content = RecordDict(
        {
            "arrays": ArrayRecord({k: Array(a) for k, a in model().items()}),
            "config": ConfigRecord({"server-round": 1}),
        }
    )
    messages = [Message(content, node, "train") for node in NODES]
    for _ in range(2):
        replies = list(coded.send_and_receive(messages))
        assert len(replies) == len(NODES)
        assert not any(reply.has_error() for reply in replies)
        asked = {message.metadata.message_id for message in messages}
        assert {reply.metadata.reply_to_message_id for reply in replies} == asked
    assert list(content) == ["arrays", "config"]
    assert {array.stype for array in content["arrays"].values()} == {"numpy.ndarray"}


def test_pushing_and_pulling_by_hand_is_the_same_as_sending(tmp_path):
    coded = CodecGrid(Fleet(tmp_path, [codec_mod]).grid(), uplink="int8")
    record = ArrayRecord({k: Array(a) for k, a in model().items()})
    content = RecordDict({"arrays": record, "config": ConfigRecord()})
    ids = list(coded.push_messages(Message(content, node, "train") for node in NODES))
    coded._grid.advance_to(1e3)
    replies = list(coded.pull_messages(ids))

    assert [reply.metadata.reply_to_message_id for reply in replies] == ids
    assert all(list(reply.content["arrays"]) == list(model()) for reply in replies)
    assert not list(coded.pull_messages(ids))


def test_bytes_are_saved_and_counted_on_the_network(tmp_path):
    plain = run(tmp_path / "a", coded=False)[2].sent_bytes
    coded = run(tmp_path / "b", uplink="topk(0.01)|int8", downlink="int8")[2].sent_bytes

    # What is left of the uplink is Flower's requests: train and evaluate, 10 a message.
    assert coded[1] * 4 < plain[1]
    assert coded[1] < 10_000 * len(NODES) * ROUNDS * 2
    assert coded[0] * 1.3 < plain[0]


@pytest.mark.parametrize("uplink", ["none", "fp16"])
def test_what_a_lossy_downlink_dropped_stays_in_the_strategys_model(tmp_path, uplink):
    """The strategy gets its own model plus the update, not what the client made of what it got."""
    fleet = Fleet(tmp_path, [codec_mod])
    coded = CodecGrid(fleet.grid(), uplink=uplink, downlink="topk(0.05)", first_model="none")
    for turn in range(3):
        arrays = {k: np.asarray(a + turn) if k != "mask" else a for k, a in model().items()}
        record = ArrayRecord({k: Array(a.astype(model()[k].dtype)) for k, a in arrays.items()})
        content = RecordDict({"arrays": record, "config": ConfigRecord()})
        (reply,) = coded.send_and_receive([Message(content, 1, "train")])
        got = fleet.seen[1][turn]["head.weight"]
        update = step(fleet.seen[1][turn], 1)["head.weight"] - got
        answer = reply.content["arrays"]["head.weight"].numpy()

        np.testing.assert_allclose(answer, arrays["head.weight"] + update, atol=2e-3)
        assert np.array_equal(got, arrays["head.weight"]) == (turn == 0)


@pytest.mark.parametrize("key_frames", [True, False])
def test_a_client_asked_now_and_then_gets_the_whole_model_coded(tmp_path, key_frames):
    fleet = Fleet(tmp_path, [codec_mod])
    grid = fleet.grid()
    coded = CodecGrid(grid, uplink="int8", downlink="int4", key_frames=key_frames)
    sizes = []
    for turn in range(6):
        arrays = {
            k: (a + 0.01 * turn).astype(a.dtype) if a.dtype.kind == "f" else a
            for k, a in model().items()
        }
        record = ArrayRecord({k: Array(np.asarray(a)) for k, a in arrays.items()})
        before = grid.sent_bytes[0]
        content = RecordDict({"arrays": record, "config": ConfigRecord()})
        nodes = [1] if turn % 5 else [1, 2]  # node 2 misses four versions
        messages = [Message(content, node, "train") for node in nodes]
        assert not any(reply.has_error() for reply in coded.send_and_receive(messages))
        sizes.append(grid.sent_bytes[0] - before)
    # Half a byte a value in one difference and in five, or one byte a value for each of the two.
    n = sum(a.size for a in model().values())
    around = sizes[4] - 0.5 * n
    assert sizes[5] - 2 * around == pytest.approx((2 if key_frames else 3) * n, rel=0.15)


def damaged(reply):
    """The reply with one byte of its packet changed on the way."""
    reply = copy_message(reply)
    (array,) = reply.content["arrays"].values()
    data = bytearray(array.data)
    data[len(data) // 2] ^= 0x10
    reply.content["arrays"] = wrap(bytes(data))
    return reply


def test_a_damaged_update_is_an_error_reply_and_the_round_goes_on(tmp_path):
    def spoil(reply, node, turn):
        is_update = reply.has_content() and "arrays" in reply.content
        return damaged(reply) if node == 2 and turn == 2 and is_update else reply

    errors = []

    class Listening(FedAvg):
        def aggregate_train(self, server_round, replies):
            replies = list(replies)
            errors.extend((server_round, r.error.reason) for r in replies if r.has_error())
            return super().aggregate_train(server_round, replies)

    arrays, fleet, *_ = run(
        tmp_path, strategy=Listening(), spoil=spoil, uplink="int8", downlink="int8"
    )

    ((server_round, reason),) = errors
    assert server_round == 2
    assert reason.startswith("update of node 2 refused: packet: the checksum is wrong")
    assert [len(seen) for seen in fleet.seen.values()] == [ROUNDS] * 3
    assert all(np.isfinite(array).all() for array in arrays.values())


def test_a_client_that_raises_is_an_error_reply_and_gets_the_whole_model_next(tmp_path):
    grid = Fleet(tmp_path, [codec_mod]).grid()
    coded = CodecGrid(grid, uplink="int8", downlink="int8", first_model="none")
    sizes = []
    for turn, raises in enumerate([0, 2, 0, 0]):
        arrays = {k: a + turn if a.dtype.kind == "f" else a for k, a in model().items()}
        record = ArrayRecord({k: Array(np.asarray(a)) for k, a in arrays.items()})
        content = RecordDict({"arrays": record, "config": ConfigRecord({"raises": raises})})
        message = Message(content, 2, "train")
        packed, _ = coded._pack(message, [2])
        sizes.append(len(next(iter(packed.content["arrays"].values())).data))
        (reply,) = coded.send_and_receive([message])
        assert reply.has_error() == (raises == 2)
    assert sizes[1] < sizes[0] / 2
    assert sizes[2] == sizes[0]
    assert sizes[3] < sizes[0] / 2


def test_a_client_without_the_mod_fails_by_name_and_does_not_end_the_run(tmp_path, caplog):
    fleet = Fleet(tmp_path, [])
    record = ArrayRecord({k: Array(a) for k, a in model().items()})
    content = RecordDict({"arrays": record, "config": ConfigRecord()})
    (reply,) = CodecGrid(fleet.grid()).send_and_receive([Message(content, 1, "train")])

    assert reply.has_error()
    assert STYPE in reply.error.reason
    assert "needs ClientApp(mods=[codec_mod])" in caplog.text


def test_a_late_update_that_went_back_into_the_residual_is_refused(tmp_path):
    inner = Fleet(tmp_path, [codec_mod]).grid()
    coded = CodecGrid(inner, uplink="topk(0.1)")
    sent = []
    for turn in range(2):
        arrays = {k: Array(np.asarray(a + turn)) for k, a in model().items() if k != "mask"}
        content = RecordDict({"arrays": ArrayRecord(arrays), "config": ConfigRecord()})
        sent += coded.push_messages([Message(content, 1, "train")])
    inner.advance_to(1e3)
    late, good = coded.pull_messages(sent)

    assert late.error.reason.startswith("update of node 1 refused: late")
    assert good.has_content()


def test_replies_that_never_come_do_not_pile_up(tmp_path):
    coded = CodecGrid(Fleet(tmp_path, [codec_mod]).grid(), uplink="topk(0.1)")
    for turn in range(40):
        arrays = {"w": Array(np.full(100, turn, np.float32))}
        content = RecordDict({"arrays": ArrayRecord(arrays), "config": ConfigRecord()})
        coded.push_messages([Message(content, 1, "train")])
    assert len(coded._notes) <= 17


def test_a_packet_that_nobody_asked_for_is_an_error(tmp_path):
    class Forging(Fleet):
        def evaluate(self, message, context):
            return Message(RecordDict({"x": wrap(b"FS")}), reply_to=message)

    coded = CodecGrid(Forging(tmp_path, []).grid())
    content = RecordDict({"config": ConfigRecord()})
    (reply,) = coded.send_and_receive([Message(content, 1, "evaluate")])
    assert "nobody knows any more which model" in reply.error.reason


@pytest.mark.parametrize("way", ["uplink", "downlink"])
@pytest.mark.parametrize("spec", ["topkk", "topk(0)", "topk(1.5)", "int8|topk", ""])
def test_bad_specs_are_refused_before_anything_is_sent(tmp_path, way, spec):
    with pytest.raises(ConfigError):
        CodecGrid(Fleet(tmp_path, []).grid(), **{way: spec})


def test_a_message_with_two_models_is_refused_not_sent_uncoded(tmp_path):
    record = ArrayRecord({k: Array(a) for k, a in model().items()})
    content = RecordDict({"arrays": record, "control-variate": record})
    coded = CodecGrid(Fleet(tmp_path, [codec_mod]).grid())
    with pytest.raises(ConfigError, match="arrays, control-variate"):
        coded.send_and_receive([Message(content, 1, "train")])


def test_metrics_of_the_codec_stay_between_mod_and_grid(tmp_path):
    *_, result = run(tmp_path, uplink=f"topk({TopK().fraction})", rounds=1)
    metrics = set(result.train_metrics_clientapp[1])
    assert not {RECORD, "nmse", "residual-norm"} & metrics
