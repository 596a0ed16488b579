"""The virtual-time Grid under an unmodified Flower strategy, against times worked out by hand."""

import json
import math
import random
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from fedsys.errors import ConfigError, LinkError
from netem.grid import VirtualGrid
from netem.link import Direction, Link
from netem.rate import RateCurve, steps
from netem.sizes import MESSAGE_OVERHEAD_BYTES, message_bytes

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


def hand_times(down_bytes, up_bytes):
    download_s = 8 * down_bytes / DOWN_BPS + DELAY_MS / 1000
    upload_s = 8 * up_bytes / UP_BPS + DELAY_MS / 1000
    return download_s, upload_s


def test_sizes_are_the_packed_bytes():
    grid_of()
    message = train_message(7)
    config_bytes = len(message.content["config"].deflate())

    assert message_bytes(message) == MODEL_BYTES + config_bytes + MESSAGE_OVERHEAD_BYTES


def test_one_exchange_takes_download_compute_and_upload():
    grid = grid_of()
    message = train_message(7)

    (reply,) = grid.send_and_receive([message])
    sample = grid.measured(message.metadata.message_id)
    download_s, upload_s = hand_times(message_bytes(message), message_bytes(reply))

    assert sample.download_s == pytest.approx(download_s, rel=1e-12)
    assert sample.train_s == pytest.approx(COMPUTE_S, rel=1e-12)
    assert sample.upload_s == pytest.approx(upload_s, rel=1e-12)
    assert grid.now_s == sample.arrival_s == pytest.approx(download_s + COMPUTE_S + upload_s)
    assert (sample.downlink_bytes, sample.uplink_bytes) == grid.sent_bytes
    assert sample.downlink_bytes == message_bytes(message)
    assert sample.uplink_bytes == message_bytes(reply)
    assert reply.metadata.reply_to_message_id == message.metadata.message_id
    assert reply.metadata.src_node_id == 7


def test_unmodified_fedavg_learns_and_its_clock_is_the_sum_of_its_rounds():
    grid = grid_of()
    start = ArrayRecord([np.zeros(10_000, np.float64)])
    random.seed(0)

    result = FedAvg(fraction_evaluate=0.0).start(grid=grid, initial_arrays=start, num_rounds=4)

    np.testing.assert_array_equal(result.arrays.to_numpy_ndarrays()[0], np.full(10_000, 4.0))
    downlink_bytes, uplink_bytes = grid.sent_bytes
    download_s, upload_s = hand_times(downlink_bytes / 12, uplink_bytes / 12)
    assert grid.now_s == pytest.approx(4 * (download_s + COMPUTE_S + upload_s), rel=1e-12)


def test_a_busy_node_begins_the_next_message_when_its_upload_has_ended():
    grid = grid_of()
    messages = [train_message(7), train_message(7)]

    grid.send_and_receive(messages)
    first, second = (grid.measured(message.metadata.message_id) for message in messages)

    assert second.arrival_s == pytest.approx(2 * first.arrival_s, rel=1e-12)
    assert second.download_s == pytest.approx(first.download_s)


def test_the_timeout_ends_a_round_and_what_is_late_stays_pullable():
    slow = {8: plain_link(up=RateCurve.constant(1e4))}
    grid = grid_of(link_of=lambda node_id: slow.get(node_id, plain_link()))
    messages = [train_message(node_id) for node_id in NODES]
    late_id = None

    replies = grid.send_and_receive(messages, timeout=5.0)
    late_id = messages[1].metadata.message_id

    assert [reply.metadata.src_node_id for reply in replies] == [7, 9]
    assert grid.now_s == 5.0
    sample = grid.measured(late_id)
    assert sample.upload_s is None
    assert sample.arrival_s is None
    assert sample.train_s == pytest.approx(COMPUTE_S)
    arrival_s = grid.next_arrival_s([late_id])
    assert grid.now_s == 5.0
    grid.advance_to(math.nextafter(arrival_s, 0))
    assert grid.pull_messages([late_id]) == []
    grid.advance_to(arrival_s)
    (late,) = grid.pull_messages([late_id])
    assert late.metadata.src_node_id == 8
    assert grid.measured(late_id).arrival_s == arrival_s
    assert grid.pull_messages([late_id]) == []


def test_a_reply_that_arrives_with_the_timeout_is_in_time():
    alone = grid_of()
    alone.send_and_receive([train_message(7)])
    grid = grid_of()

    assert len(grid.send_and_receive([train_message(7)], timeout=alone.now_s)) == 1


def test_replies_come_in_order_of_arrival():
    grid = grid_of(
        link_of=lambda node_id: plain_link(up=RateCurve.constant({7: 1e5, 8: 4e5, 9: 2e5}[node_id]))
    )

    replies = grid.send_and_receive([train_message(node_id) for node_id in NODES])

    assert [reply.metadata.src_node_id for reply in replies] == [8, 9, 7]


def test_an_exception_comes_back_as_its_traceback_after_a_small_upload():
    grid = grid_of()
    message = train_message(8, raises=8)

    (reply,) = grid.send_and_receive([message])
    download_s, upload_s = hand_times(message_bytes(message), MESSAGE_OVERHEAD_BYTES)

    assert reply.error.code == 2
    assert "boom" in reply.error.reason
    assert "Traceback" in reply.error.reason
    assert grid.now_s == pytest.approx(download_s + upload_s, rel=1e-12)


def test_fedavg_goes_on_without_a_client_that_raises():
    grid = grid_of()
    start = ArrayRecord([np.zeros(10, np.float64)])

    result = FedAvg(fraction_evaluate=0.0).start(
        grid=grid,
        initial_arrays=start,
        num_rounds=2,
        train_config=ConfigRecord({"raises": 8}),
    )

    np.testing.assert_array_equal(result.arrays.to_numpy_ndarrays()[0], np.full(10, 2.0))


def test_a_vanished_device_is_an_error_a_heartbeat_after_its_download():
    asked = []
    grid = grid_of(drop=lambda node_id, turn: asked.append((node_id, turn)) or node_id == 8)
    messages = [train_message(node_id, group_id="5") for node_id in NODES]

    replies = grid.send_and_receive(messages)
    download_s, _ = hand_times(message_bytes(messages[0]), 0)

    assert [(r.metadata.src_node_id, r.has_error()) for r in replies] == [
        (7, False), (9, False), (8, True),
    ]  # fmt: skip
    assert replies[2].error.code == 5
    assert grid.now_s == pytest.approx(download_s + 60.0, rel=1e-12)
    assert asked == [(7, 5), (8, 5), (9, 5)]
    assert grid.measured(messages[1].metadata.message_id).uplink_bytes == 0


@pytest.mark.parametrize("ingress_bps", [None, 1e9])
def test_a_link_that_dies_for_good_is_an_error_a_heartbeat_later(ingress_bps):
    grid = grid_of(
        link_of=lambda node_id: plain_link(up=steps([0, 2.0], [1e3, 0])),
        server_ingress_bps=ingress_bps,
    )

    (first,) = grid.send_and_receive([train_message(7)])
    assert first.error.code == 5
    assert grid.now_s == pytest.approx(62.0)
    (again,) = grid.send_and_receive([train_message(7)])
    assert again.error.code == 5


def test_the_callers_timeout_comes_before_the_heartbeat():
    grid = grid_of(drop=lambda node_id, turn: True)

    assert grid.send_and_receive([train_message(7)], timeout=10.0) == []
    assert grid.now_s == 10.0


def test_server_links_are_shared_by_all_who_use_them_at_once():
    node_ids = range(100, 110)
    fast = RateCurve.constant(1e9)
    egress_bps, ingress_bps = 4e6, 1e6
    grid = grid_of(
        node_ids,
        link_of=lambda node_id: plain_link(up=fast, down=fast),
        server_egress_bps=egress_bps,
        server_ingress_bps=ingress_bps,
    )
    messages = [train_message(node_id) for node_id in node_ids]

    replies = grid.send_and_receive(messages)
    download_s = 10 * 8 * message_bytes(messages[0]) / egress_bps + DELAY_MS / 1000
    upload_s = 10 * 8 * message_bytes(replies[0]) / ingress_bps + DELAY_MS / 1000

    assert grid.now_s == pytest.approx(download_s + COMPUTE_S + upload_s, rel=1e-9)


def test_a_server_link_wider_than_all_clients_changes_nothing():
    def tcp_link(node_id):
        up = Direction(curve=RateCurve.constant(1e6 * node_id), delay_ms=40.0, loss_fraction=0.02)
        down = Direction(curve=RateCurve.constant(9e6), delay_ms=40.0, jitter_ms=9.0)
        return Link(up=up, down=down, reuse_connection=False)

    times = []
    for bps in (None, 1e12):
        grid = grid_of(link_of=tcp_link, server_egress_bps=bps, server_ingress_bps=bps)
        messages = [train_message(node_id) for node_id in NODES]
        grid.send_and_receive(messages)
        times.append([grid.measured(m.metadata.message_id).arrival_s for m in messages])

    assert times[1] == pytest.approx(times[0], rel=1e-9)


class Shuffled(Runner):
    """Finishes the real work of a cohort in an order of its own, from another thread."""

    def __init__(self, node_ids, seed):
        super().__init__(node_ids)
        self.random, self.pool = random.Random(seed), ThreadPoolExecutor(1)

    def submit(self, messages):
        futures = [Future() for _ in messages]
        work = list(zip(messages, futures, strict=True))
        self.random.shuffle(work)

        def run_all():
            for message, future in work:
                future.set_result(self.run(message))

        self.pool.submit(run_all)
        return futures


def uneven_link(node_id):
    """Chance in every part: rate, delay, loss."""
    way = Direction(
        curve=steps([0, 3], [1e6 + 1e5 * node_id, 2e5], 5.0),
        delay_ms=30.0,
        jitter_ms=50.0,
        loss_fraction=0.02,
    )
    return Link(up=way, down=way)


def rounds_of(grid, rounds, first=1, timeout=1.55):
    """What a run sees of each round: who answered in time, when, and what was measured."""
    seen = []
    for number in range(first, first + rounds):
        messages = [train_message(node_id, group_id=str(number)) for node_id in NODES]
        replies = grid.send_and_receive(messages, timeout=timeout)
        ids = [message.metadata.message_id for message in messages]
        samples = [grid.measured(message_id) for message_id in ids]
        seen.append(([r.metadata.src_node_id for r in replies], samples, grid.now_s))
        grid.cancel(ids)
    return seen


@pytest.mark.parametrize("server_bps", [None, 1.5e6])
def test_times_do_not_depend_on_the_order_in_which_real_work_ends(server_bps):
    def run(submit):
        grid = grid_of(
            link_of=uneven_link,
            submit=submit,
            compute_s=1.0,
            server_egress_bps=server_bps,
            server_ingress_bps=server_bps,
        )
        return rounds_of(grid, 6)

    plain = run(Runner(NODES).submit)
    assert any(len(answered) < len(NODES) for answered, _, _ in plain)
    for seed in range(3):
        assert run(Shuffled(NODES, seed).submit) == plain


@pytest.mark.parametrize("server_bps", [None, 1.5e6])
@pytest.mark.parametrize("stop", [1, 2, 3, 5])
def test_a_resumed_run_sees_what_an_unbroken_one_does(server_bps, stop):
    options = {
        "link_of": uneven_link,
        "compute_s": 1.0,
        "server_egress_bps": server_bps,
        "server_ingress_bps": server_bps,
        "drop": lambda node_id, turn: (node_id + turn) % 5 == 0,
        "heartbeat_s": 4.0,
    }
    unbroken = rounds_of(grid_of(**options), 6)
    before = grid_of(**options)
    rounds_of(before, stop)
    after = grid_of(**options)
    after.restore(json.loads(json.dumps(before.state())))

    assert after.now_s == before.now_s
    assert after.sent_bytes == before.sent_bytes
    assert rounds_of(after, 6 - stop, first=stop + 1) == unbroken[stop:]
    assert rounds_of(before, 6 - stop, first=stop + 1) == unbroken[stop:]


def test_a_cancelled_exchange_keeps_its_node_busy():
    slow_up_s = 8 * 13_000 / 1e4
    grid = grid_of(link_of=lambda node_id: plain_link(up=RateCurve.constant(1e4)))
    first, second = train_message(7), train_message(7)
    grid.send_and_receive([first], timeout=5.0)
    grid.cancel([first.metadata.message_id])

    grid.send_and_receive([second])

    assert grid.measured(first.metadata.message_id).arrival_s > slow_up_s
    assert grid.measured(second.metadata.message_id).arrival_s == pytest.approx(
        2 * grid.measured(first.metadata.message_id).arrival_s, rel=1e-9
    )
    assert grid.pull_messages([first.metadata.message_id]) == []


def test_a_message_that_was_not_fetched_is_withdrawn():
    grid = grid_of()
    first, second = train_message(7), train_message(7)
    grid.push_messages([first, second])
    grid.cancel([second.metadata.message_id])

    grid.advance_to(100.0)

    assert grid.measured(first.metadata.message_id).arrival_s is not None
    assert grid.measured(second.metadata.message_id).downlink_bytes == 0
    assert grid.sent_bytes[0] == message_bytes(first)


def test_each_node_gets_records_of_its_own():
    contents = []

    def submit(messages):
        contents.extend(message.content for message in messages)
        return Runner().submit(messages)

    grid = grid_of(submit=submit)
    shared = train_message(7).content
    grid.send_and_receive([Message(shared, node_id, "train") for node_id in NODES])

    contents[0]["config"]["lr"] = 9.0
    assert contents[1]["config"]["lr"] == shared["config"]["lr"] == 0.1


def test_nothing_to_send_takes_no_time():
    grid = grid_of()

    assert grid.send_and_receive([]) == []
    assert grid.now_s == 0.0
    assert grid.sent_bytes == (0, 0)


def test_memory_of_replies_is_given_back():
    grid = grid_of()
    for _ in range(5):
        messages = [train_message(node_id) for node_id in NODES]
        grid.send_and_receive(messages, timeout=1.0)
        grid.cancel(message.metadata.message_id for message in messages)
    grid.advance_to(1000.0)

    assert grid._pending == {}
    assert grid._timeline._open == {}
    assert grid._timeline._events == []


def test_what_cannot_be_sent_is_refused():
    with pytest.raises(ConfigError, match="no node 99"):
        grid_of().push_messages([train_message(99)])
    with pytest.raises(ConfigError, match="server_ingress_bps must be above 0"):
        grid_of(server_ingress_bps=0.0)
    with pytest.raises(LinkError, match="compute must take 0 or more seconds"):
        grid_of(compute_s=-1.0).send_and_receive([train_message(7)])
