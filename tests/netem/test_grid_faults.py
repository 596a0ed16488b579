"""The virtual-time Grid when clients raise, devices vanish, links die, messages are cancelled."""

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import FedAvg

from netem.rate import RateCurve, steps
from netem.sizes import download, upload
from tests.netem._grid import NODES, grid_of, hand_times, plain_link, train_message


def test_an_exception_comes_back_as_its_traceback_after_a_small_upload():
    grid = grid_of()
    message = train_message(8, raises=8)

    (reply,) = grid.send_and_receive([message])
    download_s, upload_s = hand_times(message, reply)

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
    download_s, _ = hand_times(messages[0], replies[2])

    assert [(r.metadata.src_node_id, r.has_error()) for r in replies] == [
        (7, False), (9, False), (8, True),
    ]  # fmt: skip
    assert replies[2].error.code == 5
    assert grid.now_s == pytest.approx(download_s + 60.0, rel=1e-12)
    assert asked == [(7, 5), (8, 5), (9, 5)]
    assert (
        grid.measured(messages[1].metadata.message_id).uplink_bytes
        == download(messages[1]).back_bytes
    )


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
    (reply,) = grid.pull_messages([first.metadata.message_id])
    assert grid.sent_bytes[0] == download(first).size_bytes + upload(reply).back_bytes
