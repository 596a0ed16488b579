"""Deadlines and figures of a real network, on a clock and a network of our own."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from fedsys._flwr_private import set_task_identity, stamp
from fedsys.deploy.grid import GRACE_S, MARGIN, START_S, WireGrid
from fedsys.types import Quorum

FLOWER = 10_000
"""What Flower's number of a device is above the strategy's."""


class Clock:
    """Time passes when somebody sleeps."""

    def __init__(self):
        self.time_s = 0.0

    def now_s(self):
        return self.time_s

    def sleep_s(self, seconds):
        self.time_s += seconds


class Network(Grid):
    """Replies come after ``delays`` seconds; None is never."""

    def __init__(self, clock, delays):
        self.clock, self.delays, self.due = clock, delays, {}
        self.ttl = []

    def set_run(self, run):
        raise NotImplementedError

    run = property(lambda self: None)
    create_message = None

    def get_node_ids(self):
        return [node + FLOWER for node in self.delays]

    def push_messages(self, messages):
        for message in messages:
            node = message.metadata.dst_node_id - FLOWER
            stamp(message, run_id=1, src_node_id=1, message_id=f"{node}-{self.clock.now_s()}")
            self.ttl.append(message.metadata.ttl)
            if self.delays[node] is not None:
                due_s = self.clock.now_s() + self.delays[node]
                self.due[message.metadata.message_id] = (due_s, answer(message))
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, ids):
        ready = [i for i in ids if i in self.due and self.due[i][0] <= self.clock.now_s()]
        return [self.due.pop(i)[1] for i in ready]

    def send_and_receive(self, messages, *, timeout=None):
        raise NotImplementedError


def answer(message):
    if message.metadata.dst_node_id == 666 + FLOWER:
        return Message(Error(5, "gone"), reply_to=message)
    metrics = MetricRecord({"train-seconds": 2.0, "local-steps": 10})
    arrays = ArrayRecord({"p": Array(np.zeros(2500, np.float32))})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def question(node, steps=10):
    arrays = ArrayRecord({"p": Array(np.zeros(5000, np.float32))})
    config = ConfigRecord({"local-steps": steps})
    return Message(RecordDict({"arrays": arrays, "config": config}), node, "train")


@pytest.fixture
def clock():
    set_task_identity(1)
    return Clock()


def grid_for(clock, delays, begin_s=0.0):
    network = Network(clock, delays)
    return network, WireGrid(
        network,
        places={node: node + FLOWER for node in delays},
        piece_bytes=1000,
        model_bytes=1_000_000,
        exchange_bps=1e6,
        begin_s=begin_s,
        clock=clock,
    )


def test_the_first_deadline_is_from_the_links_and_the_next_from_what_was_seen(clock):
    network, grid = grid_for(clock, {1: 5.0, 2: 7.0})
    first_s = GRACE_S + START_S + MARGIN * 8.0

    assert len(grid.receive(grid.push_messages([question(1), question(2)]))) == 2
    grid.push_messages([question(1, steps=40)])

    # The slower one was 7 s under way, of which it trained 2 s for 10 steps.
    assert network.ttl[0] == pytest.approx(first_s)
    assert network.ttl[2] == pytest.approx(GRACE_S + MARGIN * (5.0 + 40 * 0.2), abs=4 * 0.3)


def test_a_round_ends_when_all_have_answered_and_not_later(clock):
    _, grid = grid_for(clock, {1: 5.0, 2: 7.0})

    grid.receive(grid.push_messages([question(1), question(2)]), timeout=100)

    assert 7.0 <= clock.now_s() <= 7.3


def test_a_quorum_closes_a_round_and_the_late_reply_is_taken_in_the_next(clock):
    _network, grid = grid_for(clock, {1: 5.0, 2: 5.0, 3: 5.5, 4: 9.0})
    quorum = Quorum(0.5, 1, 1.2, 8)
    first = list(grid.push_messages([question(node) for node in (1, 2, 3, 4)]))
    replies = grid.receive(first, quorum=quorum)
    assert sorted(reply.metadata.src_node_id - FLOWER for reply in replies) == [1, 2, 3]
    assert clock.now_s() == pytest.approx(6.0, abs=0.3)

    second = list(grid.push_messages([question(1)]))
    closed_s = clock.now_s()
    replies = grid.receive(second, quorum=quorum, late=[first[3]])
    assert sorted(reply.metadata.src_node_id - FLOWER for reply in replies) == [1, 4]
    assert clock.now_s() == pytest.approx(closed_s + 5.0, abs=0.3)
    sample = grid.measured(first[3])
    # Asked at 0 s, of which 2 s were training and the rest the network's.
    assert sample.arrival_s == pytest.approx(9.0, abs=0.3)
    assert sample.download_s + sample.train_s + sample.upload_s == pytest.approx(9.0, abs=0.3)


def test_a_reply_that_was_given_up_is_not_measured_any_more(clock):
    _, grid = grid_for(clock, {1: 5.0, 2: None})
    ids = list(grid.push_messages([question(1), question(2)]))
    grid.receive(ids, quorum=Quorum(0.5, 1, 1.0, 8))
    assert grid.measured(ids[1]).downlink_bytes > 0
    grid.cancel([ids[1]])
    assert grid.measured(ids[1]) is None


def test_silence_ends_a_round_at_its_deadline(clock):
    _, grid = grid_for(clock, {1: 5.0, 2: None})

    replies = grid.receive(grid.push_messages([question(1), question(2)]), timeout=20)

    assert [reply.metadata.src_node_id for reply in replies] == [1 + FLOWER]
    assert list(grid.get_node_ids()) == [1, 2]
    assert clock.now_s() == pytest.approx(20, abs=0.01)


def test_silence_without_a_deadline_ends_as_well(clock):
    _, grid = grid_for(clock, {1: None})

    assert grid.receive(grid.push_messages([question(1)])) == []
    assert clock.now_s() == pytest.approx(GRACE_S + START_S + MARGIN * 8.0, abs=0.01)


def test_an_error_counts_as_an_answer_and_teaches_nothing(clock):
    network, grid = grid_for(clock, {666: 1.0})

    replies = grid.receive(grid.push_messages([question(666)]))
    grid.push_messages([question(666)])

    assert replies[0].has_error()
    assert network.ttl[1] == network.ttl[0]


def test_an_exchange_is_measured(clock):
    _, grid = grid_for(clock, {1: 5.0, 2: None})
    messages = [question(1), question(2)]
    grid.receive(grid.push_messages(messages), timeout=10)

    sample, silent = (grid.measured(m.metadata.message_id) for m in messages)

    assert sample.train_s == 2.0
    assert sample.arrival_s == pytest.approx(5.0, abs=0.3)
    total_s = sample.download_s + sample.train_s + sample.upload_s
    assert total_s == pytest.approx(sample.arrival_s)
    assert 20_000 < sample.downlink_bytes < 26_000
    assert 10_000 < sample.uplink_bytes < 31_000
    assert (silent.uplink_bytes, silent.arrival_s) == (0, None)
    both_down = sample.downlink_bytes + silent.downlink_bytes
    assert grid.sent_bytes == (both_down, sample.uplink_bytes)


def test_a_resumed_run_goes_on_from_its_time(clock):
    _, grid = grid_for(clock, {1: 1.0}, begin_s=100.0)
    clock.sleep_s(3)

    assert grid.now_s == 103.0
