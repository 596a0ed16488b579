"""What a server infers from times and sizes: exact lines, bounds where it cannot know, changes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsys.types import ClientReport
from strategies._estimate import FLOOR_SHARE, PRIOR, PRIOR_STEP_S, Estimates, Line

SIZES = st.floats(100, 1e8)
SECONDS = st.floats(0.001, 1000)


def line(*points):
    found = Line()
    for size, seconds in points:
        found = found.seen(size, seconds)
    return found


def report(node_id=1, **figures):
    return ClientReport(node_id=node_id, accepted=True, reason="", **figures)


@given(
    floor_s=st.floats(0, 2),
    bps=st.floats(1e4, 1e9),
    sizes=st.lists(SIZES, min_size=2, max_size=6),
)
def test_two_kinds_of_size_are_enough_to_recover_a_line(floor_s, bps, sizes):
    sizes = [min(sizes), 2 * max(sizes), *sizes]
    found = line(*((size, floor_s + 8 * size / bps) for size in sizes))
    floor, slope = found.fit()
    for size in (min(sizes), max(sizes)):
        assert floor + slope * size == pytest.approx(floor_s + 8 * size / bps, rel=0.05)


def test_a_line_is_remembered_however_long_only_one_size_is_seen():
    found = line((100_000, 1.1), *[(10_000, 0.2)] * 100)
    floor_s, slope = found.fit()
    assert floor_s == pytest.approx(0.1)
    assert slope == pytest.approx(1e-5)


def test_one_size_splits_its_time_into_floor_and_slope():
    assert line((1000, 2.0)).fit() == pytest.approx((2 * FLOOR_SHARE, 2 * (1 - FLOOR_SHARE) / 1000))


@given(points=st.lists(st.tuples(SIZES, SECONDS), min_size=1, max_size=8))
def test_floor_is_never_negative_and_slope_is_always_positive(points):
    floor_s, slope = line(*points).fit()
    assert floor_s >= 0
    assert slope > 0


def test_a_larger_transfer_that_was_faster_leaves_a_slope_that_is_nearly_nothing():
    floor_s, slope = line((1000, 0.5), (10_000, 0.4)).fit()
    assert slope * 10_000 < 0.01
    assert floor_s == pytest.approx(0.45, abs=0.05)


def test_no_measurement_is_no_line():
    with pytest.raises(ValueError, match="no measurement"):
        Line().fit()


@pytest.mark.parametrize(
    ("size", "seconds", "changed"),
    [
        (1000, 1.9, False),
        (1000, 2.1, True),
        (1000, 0.4, True),
        # a line through (1000, 1) gives from 1 s (all floor) to 10 s (all slope)
        (10_000, 19.0, False),
        (10_000, 21.0, True),
        (10_000, 0.4, True),
        (100, 0.06, False),
        (100, 0.04, True),
    ],
)
def test_a_time_that_no_line_through_what_was_seen_explains_is_a_change(size, seconds, changed):
    before = line((1000, 1.0))
    assert before.changed_by(size, seconds) is changed
    if changed:
        assert before.seen(size, seconds) == line((size, seconds))


def test_a_link_without_any_time_does_not_divide_by_zero():
    assert line((1000, 0.0), (9000, 0.0)).fit() == (0.0, 0.0)


def test_directions_and_steps_are_kept_apart_and_a_change_is_told():
    first = report(
        upload_s=1.0, uplink_bytes=1000, download_s=0.1, downlink_bytes=1000,
        train_s=2.0, local_steps=20,
    )  # fmt: skip
    estimates, changed = Estimates({}).seen([first])
    assert changed == []
    ((up, down, step_s),) = estimates.of([1])
    assert (up, down, step_s) == (line((1000, 1.0)), line((1000, 0.1)), 0.1)

    estimates, changed = estimates.seen([report(upload_s=10.0, uplink_bytes=1000)])
    assert changed == [1]
    ((up, down, step_s),) = estimates.of([1])
    assert (up, down, step_s) == (line((1000, 10.0)), line((1000, 0.1)), 0.1)


def test_times_that_were_never_measured_teach_nothing():
    estimates, changed = Estimates({}).seen([report(uplink_bytes=500)])
    assert changed == []
    assert estimates.of([1]) == [(PRIOR, PRIOR, PRIOR_STEP_S)]


def test_a_node_that_never_answered_is_taken_for_the_others():
    seen = [
        report(1, upload_s=1.0, uplink_bytes=1000, train_s=1.0, local_steps=10),
        report(2, upload_s=3.0, uplink_bytes=1000, train_s=3.0, local_steps=10),
    ]
    estimates, _ = Estimates({}).seen(seen)
    ((up, _, step_s),) = estimates.of([9])
    floor_s, slope = up.fit()
    assert 1.0 <= floor_s + 1000 * slope <= 3.0
    assert step_s == pytest.approx(0.2)
