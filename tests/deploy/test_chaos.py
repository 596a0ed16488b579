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


def test_a_superlink_that_is_killed_comes_back_and_the_run_resumes(busy):
    busy.kill("superlink", below="server")
    busy.wait(lambda: ended(busy) is not None, 120, "the run does not end")
    assert ended(busy) == 1
    assert "--resume" in busy.said("run")
    before = busy.rounds()

    done = busy.run("--resume")

    assert done.returncode == 0, done.stderr
    assert busy.rounds() == 10 > before
    lines = (busy.folder / "runs/real-1/rounds.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [record["round"] for record in records] == list(range(1, 11))
    ends_s = [record["end_s"] for record in records]
    assert ends_s == sorted(ends_s)


def test_a_serverapp_that_is_killed_is_a_failed_run_that_resumes(busy):
    nursery = [p for p, line in busy.processes().items() if "_process nursery" in line]
    app = max(p for p in nursery if _parent(p) in nursery and _root(p, busy) == "server")
    os.kill(app, signal.SIGKILL)
    busy.wait(lambda: ended(busy) is not None, 180, "the run does not end")

    assert ended(busy) == 1
    assert "the run failed after round" in busy.said("run")
    assert busy.run("--resume").returncode == 0
    assert busy.rounds() == 10


def test_a_device_that_is_killed_is_missed_and_comes_back(busy):
    busy.kill("supernode", below="a")
    busy.wait(lambda: ended(busy) is not None, 400, "the run does not end")
    busy.wait(lambda: busy.said("a").count("connected to") == 2, 90, "it does not come back")

    assert ended(busy) == 0, busy.said("run")
    assert busy.rounds() == 10


def test_ctrl_c_ends_a_run_and_leaves_it_resumable(busy):
    assert busy.end("run", signal.SIGINT) == 130
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
