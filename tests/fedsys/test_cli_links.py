"""``fedsys links show`` draws what the link does and says never where nothing arrives."""

import io
import json
import sys

import numpy as np
import pytest

from fedsys.cli.link_screen import bars
from fedsys.cli.main import run


@pytest.fixture
def show(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "120")

    def screen_and_json(*arguments):
        path = tmp_path / "link.json"
        assert run(["links", "show", *map(str, arguments), "--json", str(path)]) == 0
        return capsys.readouterr().out, json.loads(path.read_text())

    return screen_and_json


def test_bars_grow_from_the_lowest_row():
    drawn = bars(np.array([0.0, 1e-9, 4.0, 8.0, 6.0]), 8.0, 2, " 12345678")

    assert drawn == ["   84", " 1888"]


def test_a_profile_is_drawn_with_its_source_and_its_gaps(show):
    screen, found = show("lte-driving")

    assert "ATT-LTE-driving-2016" in screen
    assert screen.count("no traffic") == 2
    assert "round trip 70.0 ms" in screen
    assert "tcp cubic" in screen
    assert found["ways"]["up"]["zero_fraction"] > 0
    assert found["seconds"] == 900
    assert found["durations"][2]["size_bytes"] == 1_000_000


def test_seed_and_node_choose_the_link(show):
    means = {
        tuple(map(str, options)): show("3g", *options)[1]["ways"]["up"]["mean_bps"]
        for options in ([], ["--seed", 1, "--node", 1], ["--seed", 2], ["--node", 2])
    }

    assert means[()] == means["--seed", "1", "--node", "1"]
    assert len(set(means.values())) == 3


def test_a_dead_link_says_never(show):
    screen, found = show("step(up_bps=1e6, down_bps=1e6, at_s=10, factor=0)")

    assert screen.count("never") > 10
    assert "nothing moves any more from 10.0 s on" in screen
    assert found["durations"][0]["median_s"] is None
    assert found["ways"]["up"]["dead_from_s"] == 10


def test_what_else_a_link_does_is_said_where_it_does(show):
    options = "mean_up_s=60, on_outage=restart, idle_timeout_s=5, poll_s=3"
    screen, found = show(f"lte({options}, available_fraction=0.25, queue_bytes=64000, tcp=none)")

    for words in (
        "an outage of more than 5.00 s breaks the connection",
        "polls every 3.00 s",
        "takes part 25.0 % of the time",
        "queues hold 64.0 kB",
    ):
        assert words in screen
    assert found["ways"]["up"]["zero_fraction"] > 0
    assert "polls" not in show("lte")[0]


def test_no_limit_is_a_rate_that_is_no_number(show):
    screen, found = show("perfect")

    assert "no limit" in screen
    assert found["ways"]["up"]["mean_bps"] is None


def test_a_recording_is_shown_with_the_options_it_got(show, tmp_path):
    file = tmp_path / "log.csv"
    file.write_text("time_s,up_mbps,down_mbps\n0,1,8\n2,0,4\n")
    screen, found = show(file)

    assert found["text"].endswith(
        'up_column="up_mbps", unit_bps=1000000.0, down_column="down_mbps", time_column="time_s")'
    )
    assert found["ways"]["up"]["zero_fraction"] == pytest.approx(0.5)
    assert f"recorded in {file}" in screen


def test_a_picture_is_the_same_for_the_same_link(show, tmp_path):
    first, second, raster = (tmp_path / name for name in ("a.svg", "b.svg", "c.png"))
    for path in (first, second, raster):
        show("3g(tcp=none)", "--seconds", 100, "--plot", path)

    assert first.read_bytes() == second.read_bytes()
    assert b"uplink, Mbit/s" in first.read_bytes()
    assert raster.read_bytes().startswith(b"\x89PNG")


def test_a_terminal_without_unicode_gets_ascii(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, "ascii"))
    assert run(["links", "show", "2g"]) == 0
    sys.stdout.flush()
    assert b"#" in raw.getvalue()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["lt"], "did you mean 'lte'?"),
        (["lte(sprd=1)"], "did you mean 'spread'?"),
        (["lte", "--plot", "x.gif"], "must end in .png or .svg"),
        (["lte", "--plot", "nowhere/x.svg"], "--plot nowhere/x.svg"),
        (["lte", "--seconds", "0"], "seconds must be above 0"),
        (["lte", "--json", "nowhere/x"], "--json nowhere/x"),
    ],
)
def test_bad_input_is_one_line_and_code_2(capsys, arguments, words):
    assert run(["links", "show", *arguments]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_list_is_the_list_of_links(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert run(["links", "list"]) == 0
    first = capsys.readouterr().out
    assert run(["list", "links"]) == 0
    assert capsys.readouterr().out == first
    assert "lte-driving" in first
