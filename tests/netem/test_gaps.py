"""Outages that come again, and the hours in which a device takes part."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsys.errors import LinkError
from netem.gaps import Availability, Gaps, merged
from netem.profiles import link_for
from netem.rate import RateCurve, steps

RATES = {"up_bps": 1e6, "down_bps": 4e6}
SPANS = st.lists(st.tuples(st.floats(0.01, 9), st.floats(0.01, 9)), min_size=1, max_size=5)


def gaps_of(spans, rest_s=1.0):
    edges = np.cumsum([part for span in spans for part in span]).tolist()
    return Gaps(tuple(zip(edges[::2], edges[1::2], strict=True)), edges[-1] + rest_s)


def walk_finish_s(curve, now_s, bits):
    """The end of a transfer by walking from change to change."""
    while True:
        bps, change_s = curve.step_at(now_s)
        if bps > 0 and bits <= bps * (change_s - now_s):
            return now_s + bits / bps
        bits -= bps * (change_s - now_s)
        now_s = change_s


@given(
    again=SPANS, once=SPANS, start_s=st.floats(0, 300), bits=st.floats(1, 1e8), cut=st.booleans()
)
def test_finish_equals_a_walk_through_both_kinds_of_outages(again, once, start_s, bits, cut):
    curve = steps([0, 5], [1e6, 3e6], 12.0)
    curve = curve.cut(gaps_of(once).windows if cut else (), gaps_of(again))

    finish_s = curve.finish_s(start_s, bits)

    assert finish_s == pytest.approx(walk_finish_s(curve, start_s, bits), rel=1e-9)
    assert curve.bits_between(start_s, finish_s) == pytest.approx(bits, rel=1e-6, abs=1.0)


@given(spans=SPANS, laps=st.integers(1, 10_000))
def test_a_pattern_is_the_same_in_every_lap(spans, laps):
    gaps = gaps_of(spans)
    first = list(itertools.islice(gaps.after(0.0), len(spans)))
    later = list(itertools.islice(gaps.after(laps * gaps.period_s - 1e-6), len(spans)))

    for one, two in zip(first, later, strict=True):
        assert two == pytest.approx([part + laps * gaps.period_s for part in one])


def test_windows_that_meet_become_one():
    gaps = Gaps(((1.0, 2.0),), 10.0)
    once = [(1.5, 3.0), (10.5, 11.0), (30.0, math.inf)]

    assert list(merged(once, gaps.after(0.0))) == [
        (1.0, 3.0), (10.5, 12.0), (21.0, 22.0), (30.0, math.inf),
    ]  # fmt: skip


def test_a_link_that_only_works_during_its_outages_is_dead():
    blinking = steps([0, 1], [1e6, 0.0], 2.0).cut((), Gaps(((0.0, 1.0),), 2.0))

    assert blinking.finish_s(5.0, 1.0) == math.inf


def test_drawn_outages_have_their_means_and_go_on_for_ever():
    options = {**RATES, "mean_up_s": 50.0, "mean_outage_s": 10.0}
    windows = [
        window
        for node in range(40)
        for window in link_for("constant", options, 1, node).up.curve.gaps.windows
    ]
    lengths_s = [end_s - begin_s for begin_s, end_s in windows]
    curve = link_for("constant", options, 1, 3).up.curve
    year_s = 365 * 86400.0

    assert np.mean(lengths_s) == pytest.approx(10.0, rel=0.05)
    assert np.std(lengths_s) == pytest.approx(10.0, rel=0.05)
    assert curve.bits_between(year_s, 2 * year_s) == pytest.approx(1e6 * year_s * 5 / 6, rel=0.1)


def test_nodes_have_outages_of_their_own_in_both_directions_at_once():
    links = [link_for("constant", {**RATES, "mean_up_s": 20.0}, 1, node) for node in (1, 2)]

    assert links[0].up.curve.gaps == links[0].down.curve.gaps
    assert links[0].up.curve.gaps != links[1].up.curve.gaps


@given(now_s=st.floats(0, 1e7), share=st.floats(0.01, 1), phase=st.floats(0, 0.999))
def test_hours_open_no_later_than_a_period_and_stay_open(now_s, share, phase):
    hours = Availability(1000.0, 1000.0 * share, 1000.0 * phase)
    open_s = hours.from_s(now_s)

    assert now_s <= open_s <= now_s + 1000.0 * (1 - share) + 1e-6
    assert hours.from_s(open_s + 1e-6) == pytest.approx(open_s, abs=1e-5)


def test_a_node_takes_part_for_its_share_at_hours_of_its_own():
    options = {**RATES, "available_fraction": 0.25, "available_period_s": 100.0}
    hours = [link_for("constant", options, 1, node).availability for node in range(400)]

    assert {(one.period_s, one.open_s) for one in hours} == {(100.0, 25.0)}
    assert np.mean([one.from_s(350.0) == 350.0 for one in hours]) == pytest.approx(0.25, abs=0.06)
    same = {**options, "available_spread": 0.0}
    assert {link_for("constant", same, 1, node).availability.phase_s for node in range(9)} == {0.0}


@pytest.mark.parametrize(
    ("windows", "period_s"),
    [((), 5.0), (((2.0, 1.0),), 5.0), (((1.0, 6.0),), 5.0), (((1.0, 2.0),), math.inf)],
)
def test_what_cannot_come_again_is_refused(windows, period_s):
    with pytest.raises(LinkError, match="ascending windows"):
        Gaps(windows, period_s)


def test_a_constant_curve_knows_that_it_is_one():
    plain = RateCurve.constant(2e6)

    assert plain.limited(0.5).constant_bps == 1e6
    assert plain.cut([(1.0, 2.0)]).constant_bps is None
    assert plain.cut((), Gaps(((1.0, 2.0),), 5.0)).constant_bps is None


def test_a_stop_counts_from_where_one_looks_and_only_if_it_is_long():
    curve = steps([0, 10, 12, 20], [1e6, 0.0, 1e6, 0.0], 30.0).cut([(12.0, 13.0)])

    assert curve.next_stop(0.0, 50.0, 2.5) == (10.0, 13.0)  # a step and a window in a row
    assert curve.next_stop(0.0, 50.0, 4.0) == (20.0, 30.0)
    assert curve.next_stop(11.0, 50.0, 2.5) == (20.0, 30.0)
    assert curve.next_stop(0.0, 9.0, 1.0) is None
    assert curve.next_stop(0.0, 1000.0, 10.5) is None
