"""Max-min fair sharing of the server's link, exact to 1e-9."""

import json
import math
import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netem.fair import SharedLink
from netem.rate import RateCurve, steps
from tests.netem._recompute_fair import fair_rates, recomputed_finish_s

MEGABYTE_BITS = 8e6
FREE = RateCurve.constant(math.inf)


def constant(*rates_bps):
    return [RateCurve.constant(bps) for bps in rates_bps]


def finish_times_s(flows, capacity, order=None, watch=None, until_s=math.inf):
    """When each (start_s, size_bits, access curve) ends; equal starts enter in ``order``.

    ``watch(link, now_s)`` sees the link after every event, and may give another one back.
    """
    link, finish_s = SharedLink(capacity), [math.inf] * len(flows)
    keys = list(range(len(flows)) if order is None else order)
    arrivals = sorted(keys, key=lambda key: flows[key][0], reverse=True)
    while arrivals or math.inf in finish_s:
        arrival_s = flows[arrivals[-1]][0] if arrivals else math.inf
        now_s = min(link.next_event_s(), arrival_s)
        if now_s >= until_s:
            break
        if link.next_event_s() == now_s:
            for key in link.advance_to(now_s):
                finish_s[key] = now_s
        else:
            key = arrivals.pop()
            link.add(key, flows[key][1], flows[key][2], arrival_s)
        link = (watch(link, now_s) if watch else None) or link
    return finish_s


def test_a_slow_client_leaves_the_rest_to_a_fast_one():
    flows = [(0, MEGABYTE_BITS, curve) for curve in constant(2e6, 100e6)]

    assert finish_times_s(flows, 10e6) == pytest.approx([4.0, 1.0], rel=1e-9)


def test_what_a_finished_flow_leaves_goes_to_the_others():
    flows = [(0, MEGABYTE_BITS, FREE), (0, 2 * MEGABYTE_BITS, FREE)]

    assert finish_times_s(flows, 8e6) == pytest.approx([2.0, 3.0], rel=1e-9)


def test_a_later_flow_takes_its_share_from_its_start():
    flows = [(0, 2 * MEGABYTE_BITS, FREE), (1, MEGABYTE_BITS, FREE)]

    assert finish_times_s(flows, 8e6) == pytest.approx([3.0, 3.0], rel=1e-9)


@pytest.mark.parametrize("count", [1, 7, 50, 1000])
def test_equal_flows_end_at_one_moment_when_the_link_has_carried_them_all(count):
    finish_s = finish_times_s([(0, MEGABYTE_BITS, FREE)] * count, 10e6)

    assert finish_s == pytest.approx([count * 0.8] * count, rel=1e-9)
    assert len(set(finish_s)) == 1


def test_a_flow_that_becomes_faster_than_the_level_is_held_back_by_it_from_then_on():
    slow_first = steps([0, 2], [1e6, 100e6])
    flows = [(0, 6e6, slow_first), (0, 20e6, FREE)]  # 1 and 9, then 5 and 5 Mbit/s

    # By 2 s they have 4 and 2 Mbit left; the second takes 0.4 s more, the first then 0.2 s alone.
    assert finish_times_s(flows, 10e6) == pytest.approx([2.6, 2.4], rel=1e-9)


@given(
    flows=st.lists(
        st.tuples(st.floats(1e3, 1e7), st.floats(1e3, 1e8) | st.just(math.inf) | st.just(0.0)),
        min_size=1,
        max_size=30,
    ),
    capacity=st.floats(1e3, 1e9),
)
def test_after_every_event_the_link_is_full_and_nobody_gains_but_from_a_slower_one(flows, capacity):
    access = [bps for _, bps in flows]

    def watch(link, now_s):
        rates = link.rates_bps()
        total_bps = sum(access[key] for key in rates)
        assert sum(rates.values()) == pytest.approx(min(capacity, total_bps), rel=1e-9)
        fair = fair_rates([access[key] for key in rates], capacity)
        assert list(rates.values()) == pytest.approx(fair, rel=1e-9)
        level = max(rates.values(), default=0.0)
        for key, bps in rates.items():
            assert bps == pytest.approx(min(access[key], level), rel=1e-9)

    finish_times_s(
        [(0, bits, RateCurve.constant(bps)) for bits, bps in flows],
        capacity,
        watch=watch,
        until_s=1e9,
    )


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

    for capacity in (1e12, math.inf):
        assert finish_times_s(flows, capacity) == pytest.approx(alone, rel=1e-9)


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
    plain = finish_times_s(flows, capacity)
    renamed = finish_times_s([flows[index] for index in order], capacity)

    assert [renamed[order.index(index)] for index in range(len(flows))] == plain
    assert finish_times_s(flows, capacity, order) == plain


@given(flows=FLOWS, capacity=st.floats(1e5, 1e7))
def test_what_a_flow_gets_until_its_end_is_its_size(flows, capacity):
    got, rates, last_s = [0.0] * len(flows), {}, 0.0

    def watch(link, now_s):
        nonlocal rates, last_s
        for key, bps in rates.items():
            got[key] += bps * (now_s - last_s)
        rates, last_s = link.rates_bps(), now_s

    finish_times_s(flows, capacity, watch=watch)

    assert got == pytest.approx([bits for _, bits, _ in flows], rel=1e-9)


@given(flows=FLOWS, capacity=st.floats(1e5, 1e7), wait_s=st.floats(0.01, 1e4))
def test_an_outage_of_all_flows_shifts_the_end_by_its_length(flows, capacity, wait_s):
    plain = [(0.0, bits, RateCurve.constant(float(c.rate_bps[0]))) for _, bits, c in flows]
    begin_s = min(finish_times_s(plain, capacity)) / 2
    window = [(begin_s, begin_s + wait_s)]
    later = [end_s + wait_s for end_s in finish_times_s(plain, capacity)]

    cut = [(start_s, bits, curve.cut(window)) for start_s, bits, curve in plain]
    assert finish_times_s(cut, capacity) == pytest.approx(later, rel=1e-9)
    server = RateCurve.constant(capacity).cut(window)
    assert finish_times_s(plain, server) == pytest.approx(later, rel=1e-9)


@given(bits=st.floats(1e3, 1e9), bps=st.floats(1.0, 1e11), wait_s=st.floats(1.0, 1e4))
def test_nobody_waits_out_an_outage_that_begins_as_he_ends(bits, bps, wait_s):
    end_s = bits / bps
    window = [(end_s, end_s + wait_s)]
    alone = [(0.0, bits, RateCurve.constant(bps).cut(window))]
    pair = [(0.0, bits / 2, FREE)] * 2

    assert finish_times_s(alone, 1e12) == pytest.approx([end_s], rel=1e-9)
    assert finish_times_s(alone, bps) == pytest.approx([end_s], rel=1e-9)
    server = RateCurve.constant(bps).cut(window)
    assert finish_times_s(pair, server) == pytest.approx([end_s] * 2, rel=1e-9)


@pytest.mark.parametrize("capacity", [1e12, 3.3e5])
def test_a_looping_rate_is_the_inverse_of_its_sum(capacity):
    curve = steps([0, 1.5, 4], [1e5, 8e5, 0], 6.0).shifted(2.25).cut([(7, 8.5)])
    limited = curve.limited(1.0, capacity)

    (finish_s,) = finish_times_s([(0.5, 2e7, curve)], capacity)

    assert finish_s == pytest.approx(limited.finish_s(0.5, 2e7), rel=1e-9)


def random_case(seed):
    """Flows, and the capacity of a link that cannot carry them all at once for most seeds."""
    draw = random.Random(seed)

    def curve():
        kind = draw.random()
        if kind < 0.5:
            return RateCurve.constant(draw.choice([math.inf, 1e5, 1e6, 10 ** draw.uniform(4, 8)]))
        rates = [
            draw.choice([0.0, 1e6, 10 ** draw.uniform(4, 7)]) for _ in range(draw.randint(2, 4))
        ]
        looping = steps(range(len(rates)), [*rates[1:], 3e5], float(len(rates)))
        begin_s = draw.choice([2.0, draw.uniform(0, 5)])
        cut = [(begin_s, begin_s + draw.uniform(0.5, 3))] if kind > 0.8 else []
        return looping.shifted(draw.choice([0.0, draw.uniform(0, 4)])).cut(cut)

    flows = [
        (
            draw.choice([0.0, 1.0, draw.uniform(0, 3)]),
            draw.choice([1e6, 10 ** draw.uniform(3, 6)]),
            curve(),
        )
        for _ in range(draw.randint(1, 12))
    ]
    capacity = draw.choice([1e6, 10 ** draw.uniform(5, 7)])
    if seed % 3:
        return flows, RateCurve.constant(capacity)
    return flows, steps(
        [0, 1, 2.5], [capacity, draw.choice([0.0, capacity / 3]), 2 * capacity], 4.0
    )


def test_a_thousand_random_cases_equal_recomputing_everything():
    checked = 0
    for seed in range(1000):
        flows, capacity = random_case(seed)
        found = finish_times_s(flows, capacity, until_s=20.0)
        expected = recomputed_finish_s(flows, capacity, until_s=20.0)

        assert found == pytest.approx(expected, rel=1e-9), f"case {seed}"
        checked += sum(end_s < math.inf for end_s in found)
    assert checked > 5000


def test_a_link_restored_or_copied_at_any_event_continues_to_the_last_bit():
    for seed in range(60):
        flows, capacity = random_case(seed)
        curves = {key: curve for key, (_, _, curve) in enumerate(flows)}
        chance = random.Random(seed)

        def watch(link, now_s, curves=curves, capacity=capacity, chance=chance):
            if chance.random() < 0.3:
                link = link.copy()
            if chance.random() < 0.3:
                state = json.loads(json.dumps(link.state(), allow_nan=False))
                link = SharedLink(capacity)
                link.restore(state, curves)
            return link

        unbroken = finish_times_s(flows, capacity, until_s=20.0)
        assert finish_times_s(flows, capacity, watch=watch, until_s=20.0) == unbroken


def test_a_copy_leaves_the_link_alone():
    flows, capacity = random_case(2)

    def watch(link, now_s):
        twin = link.copy()
        for _ in range(5):
            if (next_s := twin.next_event_s()) < math.inf:
                twin.advance_to(next_s)
        twin.add(99, 1e6, FREE, twin._now_s)

    assert finish_times_s(flows, capacity, watch=watch) == finish_times_s(flows, capacity)


def test_rates_from_one_bit_a_second_to_a_hundred_gigabit_share_one_link():
    flows = [(0, bps * 10.0, RateCurve.constant(bps)) for bps in (1.0, 56.0, 1e3, 1e6, 1e9)]
    flows += [(0, 1e11, RateCurve.constant(1e11)), (0, 1e11, FREE)]
    capacity = 1e11

    finish_s = finish_times_s(flows, capacity)

    assert finish_s[:5] == pytest.approx([10.0] * 5, rel=1e-9)
    slow_bps = sum(bits for _, bits, _ in flows[:5]) / 10
    assert finish_s[5:] == pytest.approx([2e11 / (capacity - slow_bps)] * 2, rel=1e-9)


def test_the_clock_of_work_does_not_drift():
    """Years of events add up as fractions do, and a flow of 1 kbit is still timed exactly."""
    link, capacity, now_s, exact = SharedLink(1e9), 1e9, 0.0, Fraction(0)
    link.add(0, 1e18, FREE, 0.0)
    for number in range(1, 4001):
        before_s, now_s = now_s, now_s + 1e5 / (3 + number % 7)
        exact += Fraction(capacity) * (Fraction(now_s) - Fraction(before_s)) / (2 - number % 2)
        if number % 2:
            link.add(number, 1e14, FREE, now_s)
        else:
            link.discard(number - 1, now_s)

    assert link._work / 2**60 == pytest.approx(float(exact), rel=1e-15)
    now_s = 2.0**27  # times near a power of two have 3e-8 s between them
    link.add(1, 1e3, FREE, now_s)
    link.add(2, 5e8, FREE, now_s)
    assert link.next_event_s() - now_s == pytest.approx(3e3 / capacity, abs=1.5e-8)
    link.advance_to(link.next_event_s())
    assert link.next_event_s() - now_s == pytest.approx((1e3 + 1e9) / capacity, abs=3e-8)


def test_flows_that_never_move_cost_nothing_and_end_when_they_are_told_to():
    link = SharedLink(1e6)
    link.add(1, 1e6, RateCurve.constant(0.0), 0.0)
    link.add(2, 1e6, FREE, 0.0)

    assert link.next_event_s() == 1.0
    assert link.advance_to(1.0) == [2]
    assert link.next_event_s() == math.inf
    link.discard(1, 5.0)
    link.discard(1, 5.0)
    assert link.rates_bps() == {}


@pytest.mark.parametrize("capacity", [1e6, 2e5, steps([0, 1], [1e6, 1e5], 2.0)])
def test_memory_follows_the_flows_and_not_the_events(capacity):
    link, now_s = SharedLink(capacity), 0.0
    replayed = steps([0, 0.3, 0.5], [4e4, 8e4, 1e3], 0.7)
    for number in range(3000):
        curve = [RateCurve.constant(4e4), FREE, replayed.shifted(number % 7 / 10)][number % 3]
        link.add(number, 1e9, curve, now_s)
        if number >= 20:
            link.discard(number - 20, now_s)
        while now_s < number * 0.02:
            now_s = min(link.next_event_s(), number * 0.02)
            link.advance_to(now_s)

    held = [len(value) for value in vars(link).values() if isinstance(value, dict | list)]
    assert max(held) < 300
