"""Figures of a link against values worked out by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsys.errors import ConfigError
from netem.describe import PERCENTILES, SIZES_BYTES, Window, describe, window_s
from netem.gaps import Gaps
from netem.profiles import PROFILES
from netem.rate import RateCurve, steps
from netem.spec import LinkSpec, parse_link


def window(edge_s, rate_bps, period_s=None, seconds=10.0, outages=()):
    return Window.of(steps(edge_s, rate_bps, period_s).cut(outages), seconds)


def test_figures_of_a_pattern_worked_out_by_hand():
    one = window([0, 1, 4, 5], [4e6, 0, 1e6, 0], 10.0, 20.0)  # twice: 1 s, gap 3 s, 1 s, gap 5 s

    assert one.mean_bps == pytest.approx(0.5e6)
    assert one.zero_fraction == pytest.approx(0.8)
    assert one.longest_gap_s == pytest.approx(5.0)
    assert [one.percentile_bps(p) for p in (10, 79, 81, 90, 91, 99)] == [0, 0, 1e6, 1e6, 4e6, 4e6]


def test_neighbouring_gaps_are_one_and_an_outage_cuts_a_rate():
    one = window([0, 2, 3, 4], [1e6, 0, 0, 1e6], outages=[(4.0, 4.5), (8.0, math.inf)])

    assert one.longest_gap_s == pytest.approx(2.5)
    assert one.zero_fraction == pytest.approx(0.45)
    assert one.mean_bps == pytest.approx(0.55e6)


def test_bins_hold_the_mean_of_their_time():
    mean_bps, zero_fraction = window([0, 3], [2e6, 0], 4.0, 8.0).binned(4)

    np.testing.assert_allclose(mean_bps, [2e6, 1e6, 2e6, 1e6])
    np.testing.assert_allclose(zero_fraction, [0, 0.5, 0, 0.5])


@given(
    lengths_s=st.lists(st.floats(0.1, 5.0), min_size=1, max_size=6),
    rates=st.lists(st.sampled_from([0.0, 1e5, 3e6]), min_size=6, max_size=6),
    seconds=st.floats(0.5, 60.0),
    loops=st.booleans(),
    gap=st.tuples(st.floats(0, 20), st.floats(0.1, 20)),
    again=st.none() | st.just(Gaps(((0.5, 1.5), (4.0, 4.25)), 7.0)),
)
def test_a_window_is_the_curve_over_that_time(lengths_s, rates, seconds, loops, gap, again):
    ends = np.cumsum(lengths_s)
    edges = np.concatenate([[0.0], ends[:-1]])
    curve = steps(edges, rates[: ends.size], float(ends[-1]) if loops else None)
    curve = curve.cut([(gap[0], gap[0] + gap[1])], again)
    one = Window.of(curve, seconds)
    mean_bps, zero_fraction = one.binned(7)

    assert one.mean_bps * seconds == pytest.approx(curve.bits_between(0, seconds), rel=1e-9, abs=1)
    assert mean_bps.mean() == pytest.approx(one.mean_bps, rel=1e-9, abs=1e-3)
    assert zero_fraction.mean() == pytest.approx(one.zero_fraction, abs=1e-9)
    assert all(low <= high for low, high in zip(rates_of(one)[:-1], rates_of(one)[1:], strict=True))
    assert one.longest_gap_s <= one.zero_fraction * seconds + 1e-9


def rates_of(one):
    return [one.percentile_bps(percent) for percent in PERCENTILES]


def test_messages_take_what_size_over_rate_and_delay_say():
    found = describe(
        parse_link("constant(up_bps=8e6, down_bps=16e6, delay_ms=50, tcp=none, tls=false)"), 1, 1
    )
    times = {(one.size_bytes, one.way): one.median_s for one in found.durations}

    assert set(times) == {(size, way) for size in SIZES_BYTES for way in ("up", "down")}
    packets = math.ceil(1e6 / 1448)
    assert times[1_000_000, "up"] == pytest.approx(8 * (1e6 + 52 * packets) / 8e6 + 0.05)
    assert times[1_000_000, "down"] == pytest.approx(8 * (1e6 + 52 * packets) / 16e6 + 0.05)
    assert found.rtt_ms == 100


def test_half_of_the_starts_in_an_outage_move_the_p90_but_not_the_median():
    text = "constant(up_bps=1e9, down_bps=1e9, tcp=none, outages=[[80, 100]])"
    found = describe(parse_link(text), 1, 1, seconds=100, starts=400)
    first = found.durations[0]

    assert first.median_s < 0.01
    assert 7 < first.p90_s < 13  # a fifth waits, up to 20 s: the p90 of all waits about 10 s


def test_a_link_that_dies_never_delivers_and_says_since_when():
    found = describe(parse_link("step(up_bps=1e6, down_bps=1e6, at_s=10, factor=0)"), 1, 1)

    assert found.ways["up"].dead_from_s == 10
    assert found.durations[-1].median_s == math.inf
    assert found.ways["down"].longest_gap_s == pytest.approx(found.seconds - 10)


@pytest.mark.parametrize("name", PROFILES)
def test_every_profile_is_described_alike_for_the_same_seed(name):
    first, again = (describe(LinkSpec(name), 3, 2, starts=5) for _ in range(2))

    assert first == again
    assert first.source.startswith(PROFILES[name].source)
    other = describe(LinkSpec(name), 4, 2, starts=5)
    assert (other.ways == first.ways) == (name in ("perfect", "lan"))


def test_nodes_spread_as_their_option_says():
    text = "constant(up_bps=1e6, down_bps=1e6, spread=0.5)"
    low, median, high = describe(parse_link(text), 1, 1).ways["up"].node_median_bps

    assert low < median < high
    assert math.log(high / low) == pytest.approx(2 * 1.28 * 0.5, rel=0.4)
    alike = describe(parse_link("constant(up_bps=1e6, down_bps=1e6)"), 1, 1).ways["up"]
    assert alike.node_median_bps == (1e6, 1e6, 1e6)


@pytest.mark.parametrize(
    ("curve", "expected_s"),
    [
        (RateCurve.constant(1e6), 60),
        (steps([0, 5], [1, 2], 300.0), 300),
        (steps([0, 200], [1, 2]), 250),
        (RateCurve.constant(1e6).cut([(400.0, math.inf)]), 500),
        (RateCurve.constant(1e6).cut([], Gaps(((1.0, 2.0), (5.0, 8.0)), 10.0)), 100),
    ],
)
def test_the_window_is_one_lap_or_reaches_past_the_events(curve, expected_s):
    link = parse_link("lan").link(1, 1)
    way = type(link.up)(curve=curve)

    assert window_s(type(link)(up=way, down=way)) == expected_s


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan])
def test_seconds_that_are_no_time_are_refused(seconds):
    with pytest.raises(ConfigError, match="seconds must be above 0"):
        describe(parse_link("lan"), 1, 1, seconds)


def test_a_window_of_too_many_steps_is_refused_before_it_fills_the_memory():
    with pytest.raises(ConfigError, match="too many steps"):
        describe(parse_link("3g"), 1, 1, 1e9)
