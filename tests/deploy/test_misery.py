"""Clocks that are off and disks that are full, on real commands."""

import json
import time

import pytest

from benchmarks.deploy_lab import lab

pytestmark = [pytest.mark.net, pytest.mark.slow]

EXPERIMENT = """
[run]
name = "real"
[run.budget]
rounds = 40
[task]
name = "digits"
[partition]
clients = 1
[cohort]
deadline_s = 20.0
"""


@pytest.fixture
def place(tmp_path):
    """A server and a device behind a proxy; the run folders are on a small disk."""
    (tmp_path / "e.toml").write_text(EXPERIMENT)
    with lab(tmp_path, "lan", 1) as made:
        made.small_disk("runs")
        made.wait(lambda: "connected to" in made.said("d1"), 120, "the device does not connect")
        yield made


def run(place, *more):
    place.command("run", "run", "e.toml", "--server", "srv", "--out", "runs", *more)


def records(place):
    file = place.folder / "runs/real-1/rounds.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def ended(place):
    return place.running["run"].poll()


@pytest.mark.parametrize(("skew_s", "words"), [(7200, "ahead of"), (-7200, "behind")])
def test_a_clock_that_is_off_is_named_and_the_device_is_back_once_it_is_set(place, skew_s, words):
    if not place.has_clocks:
        pytest.skip("needs a C compiler to put a clock off")
    place.skew("d1", skew_s)
    place.wait(lambda: f"s {words} the server's; set the clock" in place.said("d1"), 90, "no word")
    assert "a false signature, or a clock that is off" in place.said("server")

    place.skew("d1", 0)
    place.wait(lambda: place.said("d1").count("connected to") == 2, 120, "it does not come back")


def test_a_full_disk_of_the_server_is_named_and_the_run_goes_on_once_there_is_room(place):
    if "runs" not in place.disks:
        pytest.skip("needs root to mount a small disk")
    run(place)
    place.wait(lambda: len(records(place)) >= 2, 120, "no rounds")
    place.fill("runs")
    place.wait(lambda: "is full" in place.said("run"), 120, "nothing is said")

    time.sleep(2)
    assert ended(place) is None
    assert not (place.folder / "runs/real-1/result.json").exists()
    place.empty("runs")
    place.wait(lambda: ended(place) is not None, 300, "the run does not end")
    assert ended(place) == 0, place.said("run")
    assert [record["round"] for record in records(place)] == list(range(1, 41))


def test_a_full_disk_of_a_device_is_said_and_costs_rounds_and_not_the_run(place):
    if "state-d1" not in place.disks:
        pytest.skip("needs root to mount a small disk")
    place.fill("state-d1")
    run(place)
    place.wait(lambda: "is full" in place.said("d1"), 120, "nothing is said")
    place.empty("state-d1")
    place.wait(lambda: ended(place) is not None, 400, "the run does not end")

    assert ended(place) == 0, place.said("run")
    assert records(place)[-1]["reports"][0]["accepted"], records(place)[-1]["reports"]


def test_devices_stay_while_the_server_computes_for_longer_than_a_minute(place):
    text = EXPERIMENT.replace("rounds = 40", "rounds = 2")
    text = text.replace('name = "digits"', 'name = "tests.deploy.slow_task:SlowToEvaluate"')
    (place.folder / "e.toml").write_text(text)

    run(place)
    place.wait(lambda: ended(place) is not None, 400, "the run does not end")

    assert ended(place) == 0, place.said("run")
    first, second = records(place)
    computed_s = second["start_s"] - first["start_s"] - first["reports"][0]["arrival_s"]
    assert computed_s > 60
    assert all(one["reports"][0]["accepted"] for one in (first, second))
    assert place.said("d1").count("connected to") == 1
