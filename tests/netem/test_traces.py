"""Recorded rates: what each reader makes of a file, and of files that are not traces."""

from pathlib import Path

import numpy as np
import pytest

from fedsys.errors import ConfigError, LinkError
from netem.profiles import link_for
from netem.traces import guess_format, read_csv, read_mahimahi, read_two_columns

RECORDED = Path(__file__).parents[2].parent / "shared" / "traces"
needs_recordings = pytest.mark.skipif(
    not RECORDED.is_dir(), reason=f"no recorded traces in {RECORDED}"
)


@pytest.fixture
def write(tmp_path):
    def to_file(text, name="trace"):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return to_file


def test_mahimahi_counts_1500_bytes_a_line_and_loops_at_the_last_stamp(write):
    curve = read_mahimahi(write("100\n100\n450\n500\n"), 0.1)

    assert curve.period_s == 0.5
    assert curve.bits_between(0.1, 0.2) == pytest.approx(24_000)
    assert curve.bits_between(0.2, 0.4) == 0
    assert curve.bits_between(0, 5) == pytest.approx(10 * 4 * 12_000)


def test_two_columns_hold_each_value_until_the_next_stamp(write):
    curve = read_two_columns(write("10 1.5\n12 0\n13 3\n"))

    assert [curve.rate_at(now_s) for now_s in (0, 1.9, 2, 3)] == [1.5e6, 1.5e6, 0, 3e6]
    assert curve.period_s == pytest.approx(4.5)  # the last value holds for a mean step of 1.5 s


def test_csv_takes_named_columns_and_leaves_rows_out(write):
    path = write("t,State,UL\n0,D,100\n1,I,0\n1.5,D,300\n1.5,D,500\n4,D,200\n", "log.csv")
    options = {"unit_bps": 1000.0, "time_column": "t", "row_s": 1.0}
    curve = read_csv(path, "UL", keep="State=D", **options)

    np.testing.assert_allclose(curve.edge_s, [0, 1.5, 4])
    np.testing.assert_allclose(curve.rate_bps, [100e3, 500e3, 200e3])
    by_row = read_csv(path, "UL", keep="", **{**options, "time_column": "", "row_s": 2.0})
    assert by_row.period_s == 10.0


@pytest.mark.parametrize(
    ("text", "form"), [("12\n", "mahimahi"), ("\n0.5\t3.2\n", "mbps"), ("a,b\n1,2\n", "csv")]
)
def test_formats_are_told_apart(write, text, form):
    assert guess_format(write(text)) == form


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "first line"),
        ("hello world\n", "first line"),
        ("5\n4\n", ":2: expected milliseconds in ascending order"),
        ("5\n1.5\n", ":2: expected milliseconds"),
        ("0\n0\n", "above 0 ms"),
        ("0 1\n", "at least 2 rows"),
        ("0 1\n1\n", ":2: expected 'seconds Mbit/s'"),
        ("0 1\n2 nan\n", ":2: expected"),
        ("0 1\n2 1\n1 1\n", "stamps must ascend"),
        ("0 1\n2 -1\n", "0 or more"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_with_its_place(write, text, words):
    path = write(text)

    with pytest.raises(ConfigError, match=words) as caught:
        link_for("trace", {"up_file": path, "down_bps": 1e6}, 1, 1)
    assert path in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"up_column": "UP"}, "no column 'UP' among t, UL"),
        ({}, "needs up_column"),
        ({"up_column": "UL", "time_column": "x"}, "no column 'x'"),
        ({"up_column": "UL", "keep": "State=D"}, "no column 'State'"),
        ({"up_column": "t"}, ":3: expected numbers, got '-'"),
    ],
)
def test_a_csv_without_the_column_is_refused(write, options, words):
    path = write("t,UL\n0,1\n-,2\n")

    with pytest.raises(ConfigError, match=words):
        link_for("trace", {"up_file": path, "down_bps": 1e6, **options}, 1, 1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"up_bps": 1e6, "down_bps": 1e6}, "needs up_file or down_file"),
        ({"up_file": "x"}, "either down_file or down_bps"),
        ({"up_file": "x", "up_bps": 1.0, "down_bps": 1.0}, "either up_file or up_bps"),
        ({"up_file": "nowhere", "down_bps": 1.0}, "cannot read"),
    ],
)
def test_a_trace_link_needs_one_source_per_direction(options, words):
    with pytest.raises(ConfigError, match=words):
        link_for("trace", options, 1, 1)


def test_the_readers_themselves_raise_link_errors(write):
    with pytest.raises(LinkError):
        read_mahimahi(write("x"), 0.1)


def test_nodes_enter_a_recording_at_points_of_their_own(write):
    path = write("0 1\n10 2\n20 3\n30 4\n")
    options = {"up_file": path, "down_file": path}
    first, second = (link_for("trace", options, 1, node).up for node in (1, 2))
    start = link_for("trace", {**options, "random_start": False}, 1, 1).up

    assert first.layer == "goodput"
    assert first.curve.bits_between(0, 3) != second.curve.bits_between(0, 3)
    assert start.curve.rate_at(0) == 1e6
    for way in (first, second, start):
        assert way.curve.bits_between(0, way.curve.period_s) == pytest.approx(100e6)


@needs_recordings
@pytest.mark.parametrize(
    ("file", "mean_mbps"),  # from the table in the recordings' own README
    [
        ("mahimahi-ATT-LTE-driving-2016.down", 4.56),
        ("mahimahi-ATT-LTE-driving-2016.up", 1.91),
        ("mahimahi-Verizon-EVDO-driving.down", 0.52),
        ("mahimahi-Verizon-LTE-short.down", 5.03),
        ("mahimahi-Verizon-LTE-short.up", 5.95),
        ("mahimahi-TMobile-UMTS-driving.up", 0.94),
    ],
)
def test_recordings_deliver_what_their_stamps_say(file, mean_mbps):
    path = RECORDED / file
    curve = read_mahimahi(str(path), 0.1)
    stamps = np.loadtxt(path)

    assert curve.bits_between(0, curve.period_s) / curve.period_s == pytest.approx(
        mean_mbps * 1e6, rel=0.01
    )
    for until_s in np.linspace(curve.period_s / 10, curve.period_s, 7):
        packets = np.count_nonzero(stamps < 1000 * until_s)
        in_a_bin = int(np.count_nonzero(np.abs(stamps / 1000 - until_s) <= 0.1))
        assert curve.bits_between(0, until_s) / 12_000 == pytest.approx(packets, abs=in_a_bin + 1)
