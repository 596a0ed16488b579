"""Max-min fair sharing of the server's link, exact to 1e-9."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netem.fair import SharedLink, fair_rates
from netem.rate import RateCurve, steps

MEGABYTE_BITS = 8e6
FREE = RateCurve.constant(math.inf)


def finish_times_s(flows, capacity_bps, order=None):
    """When each (start_s, size_bits, access curve) ends; equal starts enter in ``order``."""
    link, finish_s = SharedLink(capacity_bps), [math.inf] * len(flows)
    keys = list(order or range(len(flows)))
    arrivals = sorted(keys, key=lambda key: flows[key][0], reverse=True)
    while arrivals or link.next_event_s() < math.inf:
        arrival_s = flows[arrivals[-1]][0] if arrivals else math.inf
        if link.next_event_s() <= arrival_s:
            now_s = link.next_event_s()
            for key in link.advance_to(now_s):
                finish_s[key] = now_s
        else:
            key = arrivals.pop()
            link.add(key, flows[key][1], flows[key][2], arrival_s)
    return finish_s


def test_a_slow_client_leaves_the_rest_to_a_fast_one():
    flows = [(0, MEGABYTE_BITS, RateCurve.constant(bps)) for bps in (2e6, 100e6)]

    assert finish_times_s(flows, 10e6) == pytest.approx([4.0, 1.0], rel=1e-9)


def test_what_a_finished_flow_leaves_goes_to_the_others():
    flows = [(0, MEGABYTE_BITS, FREE), (0, 2 * MEGABYTE_BITS, FREE)]

    assert finish_times_s(flows, 8e6) == pytest.approx([2.0, 3.0], rel=1e-9)


def test_a_later_flow_takes_its_share_from_its_start():
    flows = [(0, 2 * MEGABYTE_BITS, FREE), (1, MEGABYTE_BITS, FREE)]

    assert finish_times_s(flows, 8e6) == pytest.approx([3.0, 3.0], rel=1e-9)


def test_equal_flows_end_together_when_the_link_has_carried_them_all():
    flows = [(0, MEGABYTE_BITS, FREE)] * 50

    assert finish_times_s(flows, 10e6) == pytest.approx([50 * 0.8] * 50, rel=1e-9)


ACCESS = st.lists(st.floats(1e3, 1e8), min_size=1, max_size=30)


@given(access=ACCESS, capacity=st.floats(1e3, 1e9))
def test_rates_fill_the_link_and_nobody_gains_but_from_a_slower_one(access, capacity):
    rates = fair_rates(access, capacity)

    assert sum(rates) == pytest.approx(min(capacity, sum(access)), rel=1e-9)
    level = max(rates)
    for rate, limit in zip(rates, access, strict=True):
        assert rate <= limit
        assert rate == limit or rate == pytest.approx(level, rel=1e-9)


CURVES = st.one_of(
    st.floats(1e5, 1e7).map(RateCurve.constant),
    st.tuples(st.floats(1e5, 1e7), st.floats(0, 1e6), st.floats(0.5, 5)).map(
        lambda drawn: steps([0, drawn[2]], drawn[:2], 2 * drawn[2])
    ),
)
FLOWS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.5, 1.0, 7.25]), st.floats(1e3, 2e6), CURVES),
    min_size=1,
    max_size=8,
)


@given(flows=FLOWS)
def test_a_link_without_limit_leaves_flows_independent(flows):
    alone = [curve.finish_s(start_s, bits) for start_s, bits, curve in flows]

    assert finish_times_s(flows, 1e12) == pytest.approx(alone, rel=1e-9)


@given(sizes=st.lists(st.floats(1e3, 1e7), min_size=1, max_size=10), capacity=st.floats(1e5, 1e7))
def test_without_access_limits_it_is_processor_sharing(sizes, capacity):
    finish_s = finish_times_s([(0.0, bits, FREE) for bits in sizes], capacity)

    now_s, served, left = 0.0, 0.0, len(sizes)
    for bits, index in sorted((bits, index) for index, bits in enumerate(sizes)):
        now_s += (bits - served) * left / capacity
        served, left = bits, left - 1
        assert finish_s[index] == pytest.approx(now_s, rel=1e-9)


@given(flows=FLOWS, capacity=st.floats(1e5, 1e7), seed=st.integers(0, 1000))
def test_order_of_arrival_list_and_names_do_not_matter(flows, capacity, seed):
    order = list(range(len(flows)))
    random.Random(seed).shuffle(order)
    renamed = finish_times_s([flows[index] for index in order], capacity)

    assert [renamed[order.index(index)] for index in range(len(flows))] == finish_times_s(
        flows, capacity
    )


@given(flows=FLOWS, capacity=st.floats(1e5, 1e7))
def test_the_link_carries_all_bits_and_no_more_than_it_can(flows, capacity):
    finish_s = finish_times_s(flows, capacity)
    first_s, last_s = min(flow[0] for flow in flows), max(finish_s)

    assert sum(flow[1] for flow in flows) <= capacity * (last_s - first_s) * (1 + 1e-9)
    for (start_s, bits, curve), end_s in zip(flows, finish_s, strict=True):
        assert end_s >= curve.finish_s(start_s, bits) * (1 - 1e-9)


@given(flows=FLOWS, capacity=st.floats(1e5, 1e7), wait_s=st.floats(0.01, 1e4))
def test_an_outage_of_all_flows_shifts_the_end_by_its_length(flows, capacity, wait_s):
    constant = [(0.0, bits, RateCurve.constant(float(c.rate_bps[0]))) for _, bits, c in flows]
    begin_s = min(finish_times_s(constant, capacity)) / 2
    cut = [(s, bits, c.cut([(begin_s, begin_s + wait_s)])) for s, bits, c in constant]

    assert finish_times_s(cut, capacity) == pytest.approx(
        [end_s + wait_s for end_s in finish_times_s(constant, capacity)], rel=1e-9
    )


@given(flows=FLOWS, capacity=st.floats(1e5, 1e7), events=st.integers(0, 6))
def test_a_restored_link_continues_to_the_last_bit(flows, capacity, events):
    link = SharedLink(capacity)
    for key, (_, bits, curve) in enumerate(flows):
        link.add(key, bits, curve, 0.0)
    for _ in range(events):
        if link.next_event_s() < math.inf:
            link.advance_to(link.next_event_s())
    twin = SharedLink(capacity)
    twin.restore(link.state(), {key: flow[2] for key, flow in enumerate(flows)})

    while link.next_event_s() < math.inf:
        now_s = link.next_event_s()
        assert twin.next_event_s() == now_s
        assert twin.advance_to(now_s) == link.advance_to(now_s)
