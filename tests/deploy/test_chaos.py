"""Parts die in the middle of a run: what goes on, what is known when, and what resumes."""

import json
import os
import signal
import time

import pytest

pytestmark = [pytest.mark.net, pytest.mark.slow]


@pytest.fixture
def busy(fleet):
    """Two devices and a run of ten rounds in the background, past its second round."""
    fleet.write(rounds=10, clients=2)
    fleet.server()
    for name in ("a", "b"):
        fleet.join(name)
    fleet.start("run", "run", "e.toml", "--server", "srv")
    fleet.wait(lambda: fleet.rounds() >= 2, 200, "no rounds")
    return fleet


def ended(fleet, name="run"):
    return fleet._running[name].poll()


def records(fleet):
    lines = (fleet.folder / "runs/real-1/rounds.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def check_whole(fleet):
    """Ten rounds, each once and in its order."""
    assert [record["round"] for record in records(fleet)] == list(range(1, 11))
    ends_s = [record["end_s"] for record in records(fleet)]
    assert ends_s == sorted(ends_s)
    result = json.loads((fleet.folder / "runs/real-1/result.json").read_text())
    assert result["total"]["rounds"] == 10


def test_a_superlink_that_is_killed_comes_back_and_the_run_goes_on(busy):
    busy.kill("superlink", below="server")
    busy.wait(lambda: ended(busy) is not None, 400, "the run does not end")

    assert ended(busy) == 0, busy.said("run")
    assert "it goes on from there" in busy.said("run")
    check_whole(busy)


def test_a_serverapp_that_is_killed_is_noticed_and_the_run_goes_on(busy):
    nursery = [p for p, line in busy.processes().items() if "_process nursery" in line]
    app = max(p for p in nursery if _parent(p) in nursery and _root(p, busy) == "server")
    os.kill(app, signal.SIGKILL)
    busy.wait(lambda: "it goes on from there" in busy.said("run"), 60, "nobody notices")
    busy.wait(lambda: ended(busy) is not None, 400, "the run does not end")

    assert ended(busy) == 0, busy.said("run")
    check_whole(busy)


def test_a_run_whose_command_was_killed_is_taken_over_and_not_run_twice(busy):
    before = busy.rounds()
    assert busy.end("run", signal.SIGKILL) == -signal.SIGKILL
    busy.wait(lambda: busy.rounds() > before, 60, "the server goes on without the command")

    done = busy.run("--resume")

    assert done.returncode == 0, done.stderr
    check_whole(busy)
    status = json.loads(busy.fedsys("server", "status", "srv", "--json").stdout)
    # Whichever came to the end: the first by itself, or the second in its place.
    ends = [run["status"] for run in status["runs"]]
    assert ends.count("finished:completed") == 1
    assert ends.count("finished:stopped") == len(ends) - 1


def test_training_that_is_killed_is_said_and_the_device_is_back_in_the_next_round(busy):
    def train(name):
        nursery = [p for p, line in busy.processes().items() if "_process nursery" in line]
        return [p for p in nursery if _parent(p) in nursery and _root(p, busy) == name]

    busy.wait(lambda: train("a"), 60, "no training")
    os.kill(train("a")[0], signal.SIGKILL)
    busy.wait(lambda: ended(busy) is not None, 400, "the run does not end")

    assert ended(busy) == 0, busy.said("run")
    lost = [r for record in records(busy) for r in record["reports"] if not r["accepted"]]
    assert len(lost) <= 1  # it may have answered already
    assert all("stopped responding" in report["reason"] for report in lost)


def test_a_device_that_is_killed_is_missed_and_comes_back(busy):
    busy.kill("supernode", below="a")
    busy.wait(lambda: ended(busy) is not None, 400, "the run does not end")
    busy.wait(lambda: busy.said("a").count("connected to") == 2, 90, "it does not come back")

    assert ended(busy) == 0, busy.said("run")
    assert busy.rounds() == 10


def test_a_run_goes_back_to_a_kept_round_and_comes_to_the_same_model(fleet):
    fleet.write(rounds=6, clients=1)
    fleet.server()
    fleet.join("a")
    model = fleet.folder / "runs/real-1/model.safetensors"
    # Residuals of devices stay as they are; without any, the same rounds give the same bits.
    plain = ("--set", "codec.uplink='none'")
    assert fleet.run("--keep", 2, *plain).returncode == 0
    first = model.read_bytes()

    refused = fleet.run("--back-to", 3, *plain)
    done = fleet.run("--back-to", 2, *plain)

    assert refused.returncode == 2
    assert "round 3 was not kept; kept are: 2, 4, 5, 6" in refused.stderr.replace("\n", " ")
    assert done.returncode == 0, done.stderr
    assert fleet.rounds() == 6
    assert model.read_bytes() == first


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_a_run_and_leaves_it_resumable(busy, number):
    assert busy.end("run", number) == 130
    done = busy.run("--resume")

    assert done.returncode == 0, done.stderr
    assert busy.rounds() == 10


def test_a_revoked_device_is_out_and_says_so(busy):
    assert busy.fedsys("server", "revoke", "srv", "a").returncode == 0
    busy.wait(lambda: "has revoked it" in busy.said("a"), 60, "it is not told")
    busy.wait(lambda: "unknown or revoked key" in busy.said("server"), 60, "nobody is told")
    busy.wait(lambda: ended(busy) is not None, 400, "the run does not end")

    assert ended(busy) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_deploy_leaves_nothing_behind_however_it_ends(fleet, number):
    fleet.write(rounds=50, clients=2)
    fleet.start("deploy", "deploy", "e.toml", "--local", "2")
    fleet.wait(lambda: fleet.rounds() >= 1, 200, "no rounds")
    code = fleet.end("deploy", number)

    assert code == (130 if number == signal.SIGTERM else -signal.SIGKILL)
    until_s = time.monotonic() + 30
    while fleet.processes() and time.monotonic() < until_s:
        time.sleep(0.2)
    assert not fleet.processes()


def _parent(pid):
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def _root(pid, fleet):
    names = {process.pid: name for name, process in fleet._running.items()}
    while pid > 1:
        if pid in names:
            return names[pid]
        pid = _parent(pid)
    return ""
