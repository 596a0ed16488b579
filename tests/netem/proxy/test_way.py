"""One direction of a link in virtual time: to the last bit, whatever the timer does."""

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from netem.proxy.way import AHEAD_S, PIECE_S
from netem.rate import RateCurve, steps

BPS = 1e6
SIZE_BYTES = 125_000
exact = pytest.approx
over_and_over = settings(
    max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def pattern(size_bytes):
    return np.random.default_rng(size_bytes).bytes(size_bytes)


def test_bytes_arrive_in_order_and_the_last_one_when_the_rate_says(timing, record, way_for):
    way, stream, data = way_for(RateCurve.constant(BPS)), record(), pattern(SIZE_BYTES)
    stream.send(way, data)
    timing.run_until(0.5)
    assert len(stream.got) * 8 == exact(0.5 * BPS, rel=0.05)
    timing.run_until(2)

    assert stream.got == data
    assert stream.end_s == exact(1.0)
    assert stream.waiting_bytes == 0


def test_a_late_timer_delays_what_it_delivers_and_nothing_after_it(timing, record, way_for):
    way, stream = way_for(RateCurve.constant(BPS)), record()
    stream.send(way, pattern(SIZE_BYTES))
    timing.run_until(5, late_s=0.009)

    assert 1.0 - 1e-9 <= stream.end_s <= 1.009 + 1e-9
    assert len(stream.arrivals) > 20


def test_delay_comes_on_top_of_the_rate(timing, record, way_for):
    way, stream = way_for(RateCurve.constant(BPS), delay_s=0.3), record()
    stream.send(way, pattern(SIZE_BYTES))
    timing.run_until(0.3)
    assert stream.got == b""
    timing.run_until(5)

    assert stream.end_s == exact(1.3)


def test_headers_are_charged_for_full_packets_and_for_one_at_least(timing, record, way_for):
    way, stream = way_for(RateCurve.constant(8 * 1500.0), header_bytes=52), record()
    stream.send(way, pattern(10 * 1448))
    timing.run_until(20)
    assert stream.end_s == exact(10.0)

    stream.send(way, b"x" * 23)
    timing.run_until(40)
    assert stream.end_s == exact(20 + 75 / 1500)


def test_a_recording_is_followed_and_loops(timing, record, way_for):
    curve = steps([0, 1, 2], [1e6, 0, 3e6], period_s=3)
    way, stream, data = way_for(curve), record(), pattern(10 * SIZE_BYTES)
    stream.send(way, data)
    timing.run_until(100)

    assert stream.end_s == exact(curve.finish_s(0, 8 * len(data)))
    for moment_s, _ in stream.arrivals[:-1]:
        assert not 1 + 1e-9 < moment_s % 3 < 2 - 1e-9 or moment_s % 3 == exact(1)


def test_an_outage_only_adds_its_own_length(timing, record, way_for):
    way, stream = way_for(RateCurve.constant(BPS).cut([(0.4, 2.9)]), delay_s=0.1), record()
    stream.send(way, pattern(SIZE_BYTES))
    timing.run_until(10)

    assert stream.end_s == exact(1 + 2.5 + 0.1)


@over_and_over
@given(
    cut_s=st.floats(0, 1.3),
    gap_s=st.floats(0, 5),
    delay_s=st.sampled_from([0.0, 0.2]),
    late_s=st.sampled_from([0.0, 0.004]),
)
def test_a_cut_holds_everything_and_adds_its_own_length(fresh, cut_s, gap_s, delay_s, late_s):
    assume(abs(cut_s - (1 + delay_s)) > 1e-6)  # at the very end either may come first
    timing, way, stream = fresh(RateCurve.constant(BPS), delay_s=delay_s)
    data = pattern(SIZE_BYTES)
    stream.send(way, data)
    timing.run_until(cut_s, late_s)
    way.hold()
    before = len(stream.got)
    assert way.held
    assert way.rate_bps() == 0
    timing.run_until(cut_s + gap_s, late_s)
    assert len(stream.got) == before
    way.release()
    timing.run_until(20, late_s)

    assert stream.got == data
    added_s = gap_s if cut_s < 1 + delay_s else 0
    assert stream.end_s == exact(1 + delay_s + added_s, abs=1e-6 + late_s)
    assert stream.waiting_bytes == 0


@over_and_over
@given(change_s=st.floats(0, 0.99), faster=st.floats(0.1, 10))
def test_a_new_link_takes_over_at_once_even_in_the_middle_of_a_piece(fresh, change_s, faster):
    timing, way, stream = fresh(RateCurve.constant(BPS))
    data = pattern(SIZE_BYTES)
    stream.send(way, data)
    timing.run_until(change_s)
    _, new, _ = fresh(RateCurve.constant(faster * BPS))
    way.change(new.terms)
    timing.run_until(50)

    assert stream.got == data
    assert stream.end_s == exact(change_s + (1 - change_s) / faster, rel=1e-6)


def test_a_dead_link_comes_back_with_another_one(timing, record, way_for):
    way, stream = way_for(RateCurve.constant(0.0)), record()
    stream.send(way, pattern(1000))
    timing.run_until(10)
    assert stream.got == b""
    way.change(way_for(RateCurve.constant(8000.0)).terms)
    timing.run_until(20)

    assert stream.end_s == exact(11.0)


def test_jitter_delays_keeps_order_and_is_the_same_for_the_same_seed(timing, record, way_for):
    ends = []
    for seed in (1, 1, 2):
        way, stream = way_for(RateCurve.constant(BPS), jitter_s=0.1, seed=seed), record()
        start_s, data = timing.now_s(), pattern(SIZE_BYTES)
        stream.send(way, data)
        timing.run_until(start_s + 10)
        assert stream.got == data
        ends.append(round(stream.end_s - start_s, 9))

    assert ends[0] == ends[1] != ends[2]
    assert all(1 <= end_s <= 1.1 for end_s in ends)


def test_lost_packets_stall_the_stream_but_leave_its_mean_rate(timing, record, way_for):
    terms = {"recovery_s": 0.2, "timeout_s": 0.6, "timeout_fraction": 0.3}
    way, stream = way_for(RateCurve.constant(BPS), loss_fraction=0.01, **terms), record()
    data = pattern(20 * SIZE_BYTES)
    stream.send(way, data)
    timing.run_until(60)

    assert stream.got == data
    assert 20 - 1e-9 <= stream.end_s <= 20.6
    gaps = np.diff([moment_s for moment_s, _ in stream.arrivals])
    packets = len(data) / 1448
    assert 0.003 * packets < np.count_nonzero(gaps > 0.1) < 0.02 * packets
    assert gaps.max() == exact(0.6, abs=0.05)


def test_an_event_arrives_after_what_was_sent_before_it_and_before_the_rest(
    timing, record, way_for
):
    way, stream = way_for(RateCurve.constant(BPS), delay_s=0.1), record()
    stream.send(way, pattern(1000))
    way.signal(stream, stream.mark)
    stream.send(way, pattern(1000))
    timing.run_until(5)

    assert [size_bytes for _, size_bytes in stream.arrivals] == [1000, 0, 1000]
    assert stream.arrivals[1][0] == exact(0.108)


def test_a_dead_stream_costs_the_link_nothing(timing, record, way_for):
    way, dead, live = way_for(RateCurve.constant(BPS)), record(), record()
    dead.send(way, pattern(SIZE_BYTES))
    live.send(way, pattern(SIZE_BYTES))
    dead.dead = True
    timing.run_until(5)

    assert live.end_s == exact(1.0, abs=AHEAD_S + 2 * PIECE_S)
    assert dead.dropped_bytes + len(dead.got) == SIZE_BYTES
    assert dead.waiting_bytes == 0


def test_the_window_is_the_queue_shared_by_the_streams_that_wait(way_for):
    way = way_for(RateCurve.constant(100e6))
    assert way.window_bytes() == 625_000
    way.busy_streams = 5
    assert way.window_bytes() == 125_000
    assert way_for(RateCurve.constant(1e3)).window_bytes() == 32_768
    assert way_for(RateCurve.constant(100e6), queue_bytes=20_000).window_bytes() == 20_000
