"""Rounds of the virtual-time Grid that close before all have answered."""

import json

import pytest

from fedsys._flwr_private import message_bytes, message_from_bytes
from fedsys.types import Quorum
from netem.rate import RateCurve
from tests.netem._grid import DOWN_BPS, UP_BPS, grid_of, plain_link, train_message

LATER = Quorum(0.5, 1, 1.2, 8)


def unequal(node_id):
    """Node 8 is slow upwards, node 9 downwards."""
    up_bps, down_bps = UP_BPS / (30 if node_id == 8 else 1), DOWN_BPS / (200 if node_id == 9 else 1)
    return plain_link(up=RateCurve.constant(up_bps), down=RateCurve.constant(down_bps))


def begun():
    """Node 7 has answered, 8 and 9 are at work; the app of 9 raises."""
    grid = grid_of(link_of=unequal)
    ids = grid.push_messages([train_message(node, raises=9) for node in (7, 8, 9)])
    replies = grid.receive(ids, quorum=Quorum(0.3, 1, 1.0, 8))
    return grid, ids, replies


def test_it_closes_a_while_after_enough_have_answered_and_late_replies_come_later():
    alone = grid_of(link_of=unequal)
    alone.send_and_receive([train_message(7)])
    grid = grid_of(link_of=unequal)
    ids = grid.push_messages([train_message(node) for node in (7, 8)])
    (first,) = grid.receive(ids, quorum=LATER)
    assert first.metadata.src_node_id == 7
    assert grid.now_s == pytest.approx(1.2 * alone.now_s)

    again = grid.push_messages([train_message(7)])
    replies = grid.receive(again, quorum=LATER, late=ids[1:])
    assert {reply.metadata.src_node_id for reply in replies} == {7, 8}
    # Nobody is left to wait for: it ends with the last of the two, and not with the quorum.
    arrivals_s = [grid.measured(one).arrival_s for one in (ids[1], again[0])]
    assert grid.now_s == max(arrivals_s)


def test_a_resumed_grid_knows_whose_late_reply_is_an_error():
    grid, ids, replies = begun()
    late = [one for one in ids if one not in {r.metadata.reply_to_message_id for r in replies}]
    saved = json.loads(json.dumps(grid.state()))
    kept = [message_from_bytes(message_bytes(reply)) for reply in grid.to_come(late)]
    resumed = grid_of(link_of=unequal)
    resumed.restore(saved)
    resumed.take_up(kept)
    ends = []
    for one in (grid, resumed):
        found = one.receive([], quorum=Quorum(0.5, 1, 1.0, 8), late=late)
        ends.append((one.now_s, [(r.metadata.src_node_id, r.has_error()) for r in found]))
    assert ends[0] == ends[1]
    assert any(not failed for _, failed in ends[0][1])
