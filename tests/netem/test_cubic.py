"""CUBIC by rounds against the formulas of its RFC, and against itself on simple paths."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netem.cubic import BETA, Path, cubic_flight
from netem.loss import loss_runs
from netem.rate import RateCurve, steps

PACKET_BITS = 12_000.0


def path(bps=math.inf, rtt_s=0.1, queue_packets=math.inf, curve=None):
    return Path(curve or RateCurve.constant(bps), PACKET_BITS, rtt_s, queue_packets)


def every(packets):
    """One packet lost in so many."""
    return ((n * packets, n * packets + 1) for n in itertools.count(1))


def mean_window(packets, rtt_s):
    """Packets a round trip of a long transfer that loses one packet in so many."""
    flight = cubic_flight(path(rtt_s=rtt_s), 100.0 * packets, 0.0, every(packets), 10**6)
    spans = flight.spans[5:]  # without the start, which left a window far too large
    return rtt_s * sum(span.packets for span in spans) / (spans[-1].end_s - spans[0].begin_s)


@pytest.mark.parametrize(("packets", "rtt_s"), [(3_000, 0.1), (10_000, 0.1), (10_000, 0.4)])
def test_window_under_rare_loss_is_that_of_rfc_9438(packets, rtt_s):
    # Section 5.1, figure 5: the window between losses that come one in so many packets.
    formula = (0.4 * (3 + BETA) / (4 * (1 - BETA))) ** 0.25 * (rtt_s * packets) ** 0.75

    # The formula counts no round for the recovery, of which few rounds between losses feel more.
    assert mean_window(packets, rtt_s) == pytest.approx(formula, rel=0.18)


@pytest.mark.parametrize("packets", [100, 300, 1_000])
def test_window_on_a_short_round_trip_is_that_of_reno(packets):
    # Small windows are whole packets, and so a little smaller.
    assert mean_window(packets, 0.005) == pytest.approx(math.sqrt(1.5 * packets), rel=0.2)


def test_windows_double_until_the_first_loss_and_go_on_at_seven_tenths():
    one_loss = iter([(200, 201), (10**9, 10**9 + 1)])
    flight = cubic_flight(path(rtt_s=1.0), 400.0, 0.0, one_loss)

    # 9 + 20 + 40 + 80 + 160 packets, of which the last round loses one at its 52nd place
    assert flight.spans[0] == pytest.approx((0.0, 5.0, 309.0))
    assert flight.spans[1].packets == pytest.approx(92.0)  # one of them again
    assert flight.spans[1].end_s == 5.0


def test_a_clean_flight_is_the_sum_of_the_rounds():
    flight = cubic_flight(path(12e6, 0.1), 200.0, 3.0, None)

    # windows of 9, 20 and 40 packets of 1 ms are shorter than a round trip, and one of 80 too
    assert flight.spans[-1].end_s == pytest.approx(3.0 + 4 * 0.1 + 51 * 0.001)


def test_the_last_packet_lost_waits_for_a_timer_and_one_amid_others_does_not():
    def end_s(lost):
        runs = iter([(lost, lost + 1), (10**9, 10**9 + 1)])
        return cubic_flight(path(12e6, 0.05), 25.0, 0.0, runs).spans[-1].end_s

    clean_s = cubic_flight(path(12e6, 0.05), 25.0, 0.0, None).spans[-1].end_s

    assert end_s(14) == pytest.approx(clean_s + 0.05 - 9 * 0.001, abs=0.003)
    assert end_s(24) == pytest.approx(clean_s + 0.05 + 0.1, abs=0.003)


def test_timers_double_while_nothing_gets_through():
    def end_s(rounds):
        runs = iter([(0, 9), (9, 9 + rounds), (10**9, 10**9 + 1)])
        return cubic_flight(path(12e6, 0.05), 9.0, 0.0, runs).spans[-1].end_s

    waits_s = np.diff([end_s(rounds) for rounds in (9, 10, 11, 12)])

    assert np.all(waits_s[1:] >= 0.9 * waits_s[:-1])
    assert end_s(12) > end_s(0) + 1.0


def test_a_queue_of_one_round_trip_keeps_the_link_busy():
    free = cubic_flight(path(10e6, 0.1), 7_000.0, 0.0, None).spans[-1].end_s
    held = cubic_flight(path(10e6, 0.1, 84.0), 7_000.0, 0.0, None).spans[-1].end_s
    short = cubic_flight(path(10e6, 0.1, 8.0), 7_000.0, 0.0, None).spans[-1].end_s

    assert held == pytest.approx(free, rel=0.02)
    assert short > 1.1 * free


@given(
    packets=st.integers(1, 3_000),
    loss=st.floats(0.0005, 0.2),
    burst=st.floats(1, 5),
    rtt_s=st.floats(0.01, 0.6),
    seed=st.integers(0, 50),
    looping=st.booleans(),
)
def test_spans_join_and_carry_everything_no_faster_than_the_link(
    packets, loss, burst, rtt_s, seed, looping
):
    curve = steps([0, 3, 4], [2e6, 0.0, 5e5], 9.0) if looping else RateCurve.constant(2e6)
    runs = loss_runs(np.random.default_rng(seed), loss, burst)
    flight = cubic_flight(path(rtt_s=rtt_s, curve=curve), float(packets), 1.0, runs)

    assert flight.spans[0].begin_s == 1.0
    for one, two in itertools.pairwise(flight.spans):
        assert one.end_s == two.begin_s
    for span in flight.spans:
        carried = curve.bits_between(span.begin_s, span.end_s) / PACKET_BITS
        assert span.packets <= carried + 1e-6
    assert sum(span.packets for span in flight.spans) + flight.rest_packets >= packets - 1e-6
