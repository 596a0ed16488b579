"""A rate curve and its integral invert each other, to 1e-9."""

import math
import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsys.errors import LinkError
from netem.rate import RateCurve, steps

RATES = st.lists(st.sampled_from([0.0, 1e3, 2.5e5, 1e6, 3e7]), min_size=1, max_size=12)
WIDTHS = st.floats(0.01, 50.0)


@st.composite
def curves(draw):
    rates = draw(RATES)
    widths = draw(st.lists(WIDTHS, min_size=len(rates), max_size=len(rates)))
    edges = np.concatenate([[0.0], np.cumsum(widths)])
    looping = draw(st.booleans())
    outages, now_s = [], 0.0
    for wait_s, length_s in draw(st.lists(st.tuples(WIDTHS, WIDTHS), max_size=3)):
        outages.append((now_s + wait_s, now_s + wait_s + length_s))
        now_s = outages[-1][1]
    curve = steps(edges[:-1], rates, float(edges[-1]) if looping else None)
    return curve.cut(outages)


def walk_finish_s(curve, start_s, bits):
    """The same question answered by walking from change to change."""
    now_s = start_s
    while bits > 0:
        change_s, bps = curve.next_change_s(now_s), curve.rate_at(now_s)
        if bps > 0 and bits <= bps * (change_s - now_s):
            return now_s + bits / bps
        if change_s == math.inf or now_s > curve.dead_from_s() >= 0:
            return math.inf
        bits -= bps * (change_s - now_s)
        now_s = change_s
    return now_s


def test_constant_rate_is_size_over_rate():
    assert RateCurve.constant(2e6).finish_s(3.0, 8e6) == 7.0
    assert RateCurve.constant(0.0).finish_s(3.0, 1.0) == math.inf
    assert RateCurve.constant(math.inf).finish_s(3.0, 8e9) == 3.0
    assert RateCurve.constant(0.0).finish_s(3.0, 0.0) == 3.0


def test_steps_by_hand():
    curve = steps([0, 10, 20], [1e6, 0, 2e6])

    assert curve.finish_s(0.0, 10e6) == 10.0  # the last bit leaves before the outage
    assert curve.finish_s(0.0, 10e6 + 2) == pytest.approx(20.000001, rel=1e-12)
    assert curve.finish_s(15.0, 4e6) == 22.0
    assert curve.bits_between(5.0, 25.0) == 15e6


def test_loop_by_hand():
    curve = steps([0, 1], [0.0, 3e6], 4.0)  # 9 Mbit a lap, none in the first second

    assert curve.finish_s(0.0, 9e6) == 4.0
    assert curve.finish_s(0.0, 90e6) == 40.0
    assert curve.finish_s(2.0, 9e6) == pytest.approx(4 + 2.0)
    assert curve.bits_between(3.5, 13.5) == pytest.approx(1.5e6 + 18e6 + 1.5e6)


@given(curve=curves(), start_s=st.floats(0, 500), bits=st.floats(1, 1e9))
def test_finish_equals_a_walk_over_the_steps(curve, start_s, bits):
    bits = min(bits, 1e9 if curve.period_s is None else 30 * curve.bits_between(0, 100) + 1)
    expected_s = walk_finish_s(curve, start_s, bits) if _delivers(curve) else math.inf

    assert curve.finish_s(start_s, bits) == pytest.approx(expected_s, rel=1e-9)


def _delivers(curve):
    return bool((curve.rate_bps > 0).any())


@given(curve=curves(), start_s=st.floats(0, 500), bits=st.floats(1, 1e9))
def test_bits_between_start_and_finish_are_the_bits(curve, start_s, bits):
    finish_s = curve.finish_s(start_s, bits)

    if finish_s < math.inf:
        rounding = 1e-9 * bits + 1e-12 * finish_s * float(curve.rate_bps.max())
        assert curve.bits_between(start_s, finish_s) == pytest.approx(bits, abs=rounding)


@given(curve=curves(), start_s=st.floats(0, 500), parts=st.tuples(*[st.floats(1, 1e8)] * 2))
def test_two_transfers_in_a_row_take_as_long_as_one(curve, start_s, parts):
    first, second = parts
    split_s = curve.finish_s(start_s, first)
    split_s = curve.finish_s(split_s, second) if split_s < math.inf else math.inf

    assert split_s == pytest.approx(curve.finish_s(start_s, first + second), rel=1e-9)


@given(curve=curves(), start_s=st.floats(0, 500), bits=st.floats(1, 1e9), more=st.floats(0, 1e9))
def test_more_bits_never_end_earlier(curve, start_s, bits, more):
    assert curve.finish_s(start_s, bits) <= curve.finish_s(start_s, bits + more)


@given(start_s=st.floats(0, 100), length_s=st.floats(0.1, 1e4), bits=st.floats(1e6, 1e9))
def test_an_outage_only_adds_its_own_length(start_s, length_s, bits):
    plain = RateCurve.constant(1e6)
    begin_s = start_s + 0.5  # half a second in: 0.5 Mbit of at least 1 are through
    cut = plain.cut([(begin_s, begin_s + length_s)])

    assert cut.finish_s(start_s, bits) == pytest.approx(
        plain.finish_s(start_s, bits) + length_s, rel=1e-9
    )


@given(curve=curves(), by_s=st.floats(0, 300), span_s=st.floats(0.1, 100))
def test_a_shifted_loop_is_the_loop_seen_later(curve, by_s, span_s):
    curve = curve.cut([])
    if curve.period_s is not None:
        later = curve.bits_between(by_s, by_s + span_s)
        scale = float(curve.rate_bps.max()) * span_s
        assert curve.shifted(by_s).bits_between(0, span_s) == pytest.approx(
            later, abs=1e-9 * scale + 1e-6
        )


@given(curve=curves(), now_s=st.floats(0, 1e6))
def test_the_next_change_always_lies_ahead_and_what_begins_there_has_begun(curve, now_s):
    for _ in range(8):
        change_s = curve.next_change_s(now_s)
        assert change_s > now_s
        if change_s == math.inf:
            break
        assert curve.rate_at(now_s) == curve.rate_at((now_s + change_s) / 2)
        now_s = change_s


@given(curve=curves(), by_s=st.floats(0, 300), start_s=st.floats(0, 500))
def test_a_curve_made_from_another_is_the_curve_that_its_arrays_describe(curve, by_s, start_s):
    made = (curve if curve.period_s is None else curve.shifted(by_s)).limited(0.37)
    again = pickle.loads(pickle.dumps(made))

    assert again.outages == made.outages
    assert again.finish_s(start_s, 1e6) == pytest.approx(made.finish_s(start_s, 1e6), rel=1e-9)


def test_curves_made_from_one_recording_share_its_memory():
    recording = steps(np.arange(100_000.0), np.arange(100_000.0), 1e5)
    tracemalloc.start()
    nodes = [recording.shifted(n).limited(0.5).cut([(1, 2)]) for n in range(100)]
    held_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()

    assert len(nodes) * 1000 > held_bytes


def test_a_curve_knows_when_it_is_dead():
    assert steps([0, 5, 9], [1e6, 0, 0]).dead_from_s() == 5.0
    assert steps([0, 5], [1e6, 0], 10.0).dead_from_s() == math.inf
    assert steps([0, 5], [0, 0], 10.0).dead_from_s() == 0.0
    assert RateCurve.constant(1e6).cut([(3.0, math.inf)]).dead_from_s() == 3.0
    assert RateCurve.constant(1e6).cut([(3.0, math.inf)]).finish_s(0.0, 4e6) == math.inf


def test_limits_scale_first_and_cap_after():
    curve = steps([0, 1], [1e6, 4e6]).limited(0.5, 1.5e6)

    assert curve.rate_at(0.5) == 0.5e6
    assert curve.rate_at(1.0) == 1.5e6


@pytest.mark.parametrize(
    ("edges", "rates", "period_s", "words"),
    [
        ([], [], None, "at least one"),
        ([0, 1], [1], None, "as many edges"),
        ([1, 2], [1, 1], None, "start at 0"),
        ([0, 2, 2], [1, 1, 1], None, "ascend"),
        ([0], [-1], None, "0 or more"),
        ([0], [math.nan], None, "0 or more"),
        ([0, 1], [1, math.inf], None, "only as a constant"),
        ([0, 1], [1, 1], 1.0, "after the last edge"),
    ],
)
def test_what_is_not_a_curve_is_refused(edges, rates, period_s, words):
    with pytest.raises(LinkError, match=words):
        steps(edges, rates, period_s)


@pytest.mark.parametrize("outages", [[(2, 1)], [(1, 3), (2, 4)], [(-1, 2)]])
def test_outages_out_of_order_are_refused(outages):
    with pytest.raises(LinkError, match="ascending order"):
        RateCurve.constant(1.0).cut(outages)
