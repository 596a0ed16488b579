"""The virtual-time Grid sees the same times in any order of real work, after a stop, and ahead."""

import json
import math
import random
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from netem.link import Direction, Link
from netem.rate import steps
from tests.netem._grid import NODES, Runner, grid_of, train_message


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


@pytest.mark.parametrize("server_bps", [None, 1.5e6])
def test_looking_ahead_foretells_the_arrival_and_changes_nothing(server_bps):
    def run(look):
        grid = grid_of(
            link_of=uneven_link,
            server_egress_bps=server_bps,
            server_ingress_bps=server_bps,
            drop=lambda node_id, turn: (node_id + turn) % 5 == 0,
            heartbeat_s=4.0,
        )
        waiting, seen = set(grid.push_messages([train_message(node) for node in NODES])), []
        while len(seen) < 12:
            foretold_s = grid.next_arrival_s(waiting) if look else None
            for reply in grid.receive_next():
                assert look is False or grid.now_s == foretold_s
                seen.append((reply.metadata.src_node_id, reply.has_error(), grid.now_s))
                waiting.discard(reply.metadata.reply_to_message_id)
                waiting.update(grid.push_messages([train_message(reply.metadata.src_node_id)]))
        return seen, grid.sent_bytes

    assert run(look=True) == run(look=False)


def test_receive_next_brings_each_reply_once_or_ends_with_the_timeout():
    grid = grid_of(link_of=uneven_link)
    ids = grid.push_messages([train_message(node) for node in NODES])
    first_s = grid.next_arrival_s(ids)

    assert grid.receive_next(timeout=first_s / 2) == []
    assert grid.now_s == first_s / 2
    got = []
    while len(got) < 2:
        got += [reply.metadata.reply_to_message_id for reply in grid.receive_next()]
    (last,) = set(ids) - set(got)
    grid.advance_to(1e3)
    grid.cancel([last])
    assert grid.receive_next() == []
    assert grid.now_s == 1e3
    assert grid.next_arrival_s(ids) == math.inf
