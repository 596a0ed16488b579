"""The links benchmark reads recordings as their formats say, and goes on where it was stopped."""

import dataclasses

import pytest

from benchmarks.links import run
from benchmarks.links_cells import Cell, Row, Store, compared, finished
from benchmarks.links_page import write_page
from benchmarks.links_recorded import read
from fedsys.errors import DeployError

ROW = Row(section="proxy", name="a link", bound=0.02, measured=None, unit="s")


def found_s(row):
    return compared(row, 2.0, 2.01)


def must_not_run(row):
    raise AssertionError(row)


def fails(row):
    raise DeployError("no\nsuch port")


def test_stamps_let_a_packet_pass_each_and_start_again_at_the_last(tmp_path):
    path = tmp_path / "a.up"
    path.write_text("10\n10\n500\n1000\n")
    (recording,) = read(path)

    passed = [recording.bytes_by(s) / 1448 for s in (0.009, 0.01, 0.5, 0.9, 1.0, 1.01, 2.5)]
    assert passed == [0, 2, 3, 3, 4, 6, 11]


def test_two_columns_are_rates_that_hold_until_the_next(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("5 8\n7 0\n8 16\n9 1\n")
    (recording,) = read(path)

    assert [recording.bytes_by(s) for s in (0, 1, 2, 3, 3.5, 4)] == [0, 1e6, 2e6, 2e6, 3e6, 4e6]


def test_rows_that_are_not_downloads_are_no_capacity(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("DL_bitrate,UL_bitrate,State\n80,8,D\n0,0,I\n160,8,D\n")
    up, down = read(path)

    assert (up.way, down.way) == ("up", "down")
    assert [down.bytes_by(s) for s in (1, 1.5, 2)] == [10_000, 20_000, 30_000]
    assert up.bytes_by(2) == 2000


def test_a_row_is_judged_by_the_size_of_its_error():
    row = compared(ROW, 2.0, 1.95)

    assert row.measured == pytest.approx(0.025)
    assert not row.ok
    assert "-2.50 %" in row.line()
    assert compared(ROW, 2.0, 2.01).ok
    assert dataclasses.replace(row, bound=None).ok
    assert dataclasses.replace(row, measured=3.0, bound=2.0, at_least=True).ok
    assert not ROW.ok


def test_finished_rows_are_taken_up_and_failed_ones_tried_again(tmp_path):
    path = tmp_path / "kept.jsonl"
    other = dataclasses.replace(ROW, name="another")
    cells = [Cell(row=ROW, measure=found_s), Cell(row=other, measure=fails)]
    first, failed = finished(cells, Store(path, "code"), 0)

    assert first.ok
    assert failed.note == "no such port"
    assert not failed.ok
    again = [Cell(row=ROW, measure=must_not_run), Cell(row=other, measure=found_s)]
    store = Store(path, "code")
    assert list(finished(again, store, 0)) == [first, compared(other, 2.0, 2.01)]
    assert store.taken_up == 1
    assert Store(path, "other code").find(ROW) is None


def test_a_page_tells_what_was_reached_and_what_was_left_out(tmp_path):
    found = run([], quick=True, store=Store(None, ""))
    rows = [compared(ROW, 2.0, 2.5), dataclasses.replace(ROW, name="broken", note="no port")]
    found |= {"rows": [row.as_json() for row in rows], "skipped": {"kernel": "needs root"}}
    path = tmp_path / "links.md"
    write_page(path, found)
    text = path.read_text()

    assert "| a link | 2 | 2.5 | +25.00 % | 2 % | **no** | 1 |" in text
    assert "| broken (no port) |  |  | failed |  | **no** |  |" in text
    assert "0 of 2" in text
    assert "kernel: needs root" in text


def test_a_part_is_taken_up_as_a_whole_and_only_that_part(tmp_path):
    path = tmp_path / "kept.jsonl"
    rows = [
        dataclasses.replace(compared(ROW, 2.0, 2.01), name=name, part=part)
        for name, part in (("one", "a"), ("two", "a"), ("three", "b"))
    ]
    first = Store(path, "code")
    for row in rows:
        first.add(row)

    assert Store(path, "code").part("proxy", "a") == rows[:2]
    assert Store(path, "code").part("kernel", "a") == []
    assert first.part("proxy", "a") == []
