"""The virtual-time Grid under an unmodified Flower strategy, against times worked out by hand."""

import math
import random

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message
from flwr.serverapp.strategy import FedAvg

from fedsys.errors import ConfigError, LinkError
from netem.link import Direction, Link
from netem.rate import RateCurve, steps
from netem.sizes import download, upload
from tests.netem._grid import (
    COMPUTE_S,
    DELAY_MS,
    NODES,
    Runner,
    grid_of,
    hand_times,
    plain_link,
    train_message,
)


def test_one_exchange_takes_download_compute_and_upload():
    grid = grid_of()
    message = train_message(7)

    (reply,) = grid.send_and_receive([message])
    sample = grid.measured(message.metadata.message_id)
    download_s, upload_s = hand_times(message, reply)

    assert sample.download_s == pytest.approx(download_s, rel=1e-12)
    assert sample.train_s == pytest.approx(COMPUTE_S, rel=1e-12)
    assert sample.upload_s == pytest.approx(upload_s, rel=1e-12)
    assert grid.now_s == sample.arrival_s == pytest.approx(download_s + COMPUTE_S + upload_s)
    assert (sample.downlink_bytes, sample.uplink_bytes) == grid.sent_bytes
    down, up = download(message), upload(reply)
    assert sample.downlink_bytes == down.size_bytes + up.back_bytes
    assert sample.uplink_bytes == up.size_bytes + down.back_bytes
    assert reply.metadata.reply_to_message_id == message.metadata.message_id
    assert reply.metadata.src_node_id == 7


def test_unmodified_fedavg_learns_and_its_clock_is_the_sum_of_its_rounds():
    grid = grid_of()
    start = ArrayRecord([np.zeros(10_000, np.float64)])
    random.seed(0)

    result = FedAvg(fraction_evaluate=0.0).start(grid=grid, initial_arrays=start, num_rounds=4)

    np.testing.assert_array_equal(result.arrays.to_numpy_ndarrays()[0], np.full(10_000, 4.0))
    samples = [grid.measured(f"message-{number}") for number in range(1, 13)]
    assert grid.sent_bytes == (
        sum(sample.downlink_bytes for sample in samples),
        sum(sample.uplink_bytes for sample in samples),
    )
    assert grid.now_s == pytest.approx(
        sum(s.download_s + COMPUTE_S + s.upload_s for s in samples) / 3, rel=1e-12
    )


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
    down, up = download(messages[0]), upload(replies[0])
    download_s = 10 * 8 * down.size_bytes / egress_bps + DELAY_MS / 1000
    upload_s = 10 * 8 * up.size_bytes / ingress_bps + DELAY_MS / 1000
    waits_s = (down.round_trips + up.round_trips) * 2 * DELAY_MS / 1000

    assert grid.now_s == pytest.approx(download_s + COMPUTE_S + upload_s + waits_s, rel=1e-9)


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


def test_a_server_whose_rates_change_is_followed_through_its_outage():
    fast, server_bps = RateCurve.constant(1e9), 1e5
    server = RateCurve.constant(server_bps).cut([(3.0, 102.0)])  # all are under way by then
    grids = [
        grid_of(link_of=lambda node: plain_link(up=fast, down=fast), server_egress_bps=egress)
        for egress in (server_bps, server, steps([0, 0.1], [server_bps, server_bps / 2], 0.2))
    ]
    for grid in grids:
        messages = [train_message(node_id) for node_id in NODES]
        replies = grid.send_and_receive(messages)

    plain_s, cut_s, halved_s = (grid.now_s for grid in grids)
    assert cut_s == pytest.approx(plain_s + 99.0, rel=1e-9)
    trips = 1 + download(messages[0]).round_trips + upload(replies[0]).round_trips
    upload_s = COMPUTE_S + 2 * trips * DELAY_MS / 1000
    assert halved_s - upload_s == pytest.approx((plain_s - upload_s) / 0.75, rel=0.05)
    with pytest.raises(ConfigError, match="must not be 0 for good"):
        grid_of(server_ingress_bps=steps([0, 5], [1e6, 0]))
