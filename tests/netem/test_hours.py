"""When a device begins an exchange: it asks every so often, and takes part at some hours only."""

import json
import statistics

import pytest

from netem.gaps import Availability
from netem.link import Direction, Link
from netem.rate import RateCurve
from netem.timeline import Exchange, Timeline
from netem.transfer import Traffic


def link(**how):
    way = Direction(curve=RateCurve.constant(8e6), delay_ms=50.0)
    return Link(up=way, down=way, **{"tcp": "none", "tls": False, **how})


def timeline(on, seed=1, now_s=0.0):
    return Timeline(
        link_of=lambda node_id: on,
        outcome_of=lambda exchange: (Traffic(size_bytes=0), 2.0),
        seed=seed,
        server_egress_bps=None,
        server_ingress_bps=None,
        heartbeat_s=60.0,
        now_s=now_s,
    )


def exchange(key, node_id=1, sent_s=0.0):
    return Exchange(
        key=key,
        node_id=node_id,
        flow=(node_id, key, "train"),
        download=Traffic(size_bytes=0),
        vanishes=False,
        sent_s=sent_s,
    )


def run(one):
    ended = []
    while one.next_event_s() < float("inf"):
        ended += one.step()
    return ended


def begun_s(on, keys, seed=1):
    """When nodes begin that each get one message at time 0."""
    one = timeline(on, seed)
    for key in keys:
        one.send(exchange(key, node_id=key))
    return [done.begun_s for done in sorted(run(one), key=lambda done: done.key)]


def test_without_polling_a_node_begins_at_once():
    assert begun_s(link(), [1, 2]) == [0.0, 0.0]


def test_an_idle_node_looks_at_a_moment_of_its_own_and_pays_a_round_trip():
    waits_s = begun_s(link(poll_s=3.0), range(1, 400))

    assert 0.1 <= min(waits_s) < 0.15
    assert 3.05 < max(waits_s) <= 3.1
    assert abs(statistics.mean(waits_s) - 1.6) < 0.1
    assert begun_s(link(poll_s=3.0), [7]) == [waits_s[6]]


def test_a_node_that_was_at_work_looks_at_once():
    one = timeline(link(poll_s=30.0))
    one.send(exchange(1))
    one.send(exchange(2))
    first, second = run(one)

    assert second.begun_s - first.ended_s == pytest.approx(0.1)


def test_an_exchange_begins_in_its_hours_and_then_goes_on():
    hours = Availability(period_s=100.0, open_s=10.0, phase_s=40.0)
    one = timeline(link(availability=hours))
    for key in range(1, 8):
        one.send(exchange(key))
    done = run(one)
    length_s = 0.05 + 2.0 + 0.05

    assert done[0].begun_s == 40.0
    assert [round(part.begun_s - done[0].begun_s, 6) for part in done] == [
        round(turn * length_s + 100.0 * (turn > 4) - 5 * length_s * (turn > 4), 6)
        for turn in range(7)
    ]
    assert done[4].ended_s > 50.0  # it began in time, and was not cut off


def test_a_message_that_waits_for_hours_can_be_withdrawn():
    hours = Availability(period_s=100.0, open_s=10.0, phase_s=40.0)
    one = timeline(link(availability=hours))
    one.send(exchange(1))
    one.send(exchange(2))

    assert one.withdraw(1)
    done = run(one)
    assert [(part.key, part.begun_s) for part in done] == [(2, 40.0)]
    assert not one.withdraw(1)


def test_what_waits_for_a_poll_is_restored_to_the_same_moment():
    on = link(poll_s=5.0, availability=Availability(period_s=60.0, open_s=20.0, phase_s=30.0))
    before, unbroken = timeline(on), timeline(on)
    for one in (before, unbroken):
        for key in range(1, 20):
            one.send(exchange(key, node_id=key % 5))
        for _ in range(3):
            one.step()
    after = timeline(on)
    after.restore(json.loads(json.dumps(before.state())))

    assert [vars_of(part) for part in run(after)] == [vars_of(part) for part in run(unbroken)]


def vars_of(part):
    return part.key, part.begun_s, part.downloaded_s, part.trained_s, part.ended_s
