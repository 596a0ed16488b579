"""The server's link in virtual time: max-min fair, as ``netem.fair``."""

import pytest

from netem.proxy.bottleneck import Bottleneck
from netem.rate import RateCurve

SECONDS = 20


@pytest.mark.parametrize(
    ("access_mbps", "capacity_mbps", "shares_mbps"),
    [
        ([2, 100], 10, [2, 8]),
        ([1, 1, 1], 10, [1, 1, 1]),
        ([8, 8, 8, 8], 8, [2, 2, 2, 2]),
        ([0.5, 1, 3, 20], 5.5, [0.5, 1, 2, 2]),
    ],
)
def test_busy_nodes_share_max_min_fair(
    timing, record, way_for, access_mbps, capacity_mbps, shares_mbps
):
    shared = Bottleneck(timing, 1e6 * capacity_mbps)
    ways = [way_for(RateCurve.constant(1e6 * mbps), bottleneck=shared) for mbps in access_mbps]
    streams = [record() for _ in ways]
    while timing.now_s() < SECONDS:
        for stream, way in zip(streams, ways, strict=True):
            if stream.waiting_bytes < 16_384:
                stream.send(way, bytes(16_384))
        timing.run_until(timing.now_s() + 0.002)

    for stream, mbps in zip(streams, shares_mbps, strict=True):
        assert 8 * len(stream.got) / SECONDS == pytest.approx(1e6 * mbps, rel=0.02)


def test_one_busy_node_gets_all_of_it_and_a_newcomer_half_at_once(timing, record, way_for):
    shared = Bottleneck(timing, 1e6)
    first, second = (way_for(RateCurve.constant(float("inf")), bottleneck=shared) for _ in "ab")
    early, late = record(), record()
    early.send(first, bytes(125_000))
    timing.run_until(0.5)
    assert len(early.got) == pytest.approx(62_500, rel=0.05)
    late.send(second, bytes(25_000))
    timing.run_until(5)

    assert late.end_s == pytest.approx(0.5 + 0.4, abs=0.03)
    assert early.end_s == pytest.approx(1.2)


def test_a_node_that_is_cut_leaves_its_share_to_the_others(timing, record, way_for):
    shared = Bottleneck(timing, 1e6)
    cut, going = (way_for(RateCurve.constant(1e6), bottleneck=shared) for _ in "ab")
    held, free = record(), record()
    cut.hold()
    held.send(cut, bytes(16_384))
    free.send(going, bytes(125_000))
    timing.run_until(5)

    assert held.got == b""
    assert free.end_s <= 1 + 2 * 8 * 16_384 / 1e6
    cut.release()
    timing.run_until(10)
    assert len(held.got) == 16_384
