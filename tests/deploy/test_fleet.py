"""The whole way: server, devices, a run over TLS; and who is not let in."""

import dataclasses
import datetime
import json
import re
import stat

import pytest

from fedsys.deploy.enrolment import Enrolment
from fedsys.deploy.home import ServerHome
from fedsys.deploy.pace import Pace
from fedsys.deploy.pki import make_authority, make_node_key
from fedsys.telemetry.runfolder import RunFolder

pytestmark = pytest.mark.net


def test_an_experiment_on_real_devices_and_strangers_at_the_door(fleet):
    fleet.write(rounds=3, clients=2)
    fleet.server()
    for name in ("a", "b"):
        fleet.join(name)
    _send_strangers(fleet)
    simulated = ("simulate", "e.toml", "--out", "simulated", "--workers", "1", "--quiet")
    fleet.start("simulated", *simulated)

    done = fleet.run("--json", "result.json")

    assert done.returncode == 0, done.stderr + fleet.said("server")
    folder = RunFolder.open(fleet.folder / "runs" / "real-1")
    records = folder.records()
    assert [len([r for r in record.reports if r.accepted]) for record in records] == [2, 2, 2]
    assert records[-1].test_metric > 0.5
    assert folder.result()["stopped_by"] == "rounds"
    assert {"model.safetensors", "report.html"} <= {p.name for p in folder.path.iterdir()}
    assert len(list((fleet.folder / "state-a" / "rounds").rglob("node-*.safetensors"))) == 1
    _check_it_is_the_simulated_model(fleet, folder)
    _check_strangers(fleet)
    _check_nothing_private_shows(fleet)
    status = json.loads(fleet.fedsys("server", "status", "srv", "--json").stdout)
    assert [node["state"] for node in status["nodes"]] == ["online", "online", "offline", "offline"]
    assert [run["status"] for run in status["runs"]] == ["finished:completed"]
    _check_nobody_can_dial_a_device(fleet)
    _check_the_door_is_closed_to_the_revoked(fleet)
    assert [fleet.end(name) for name in ("a", "b", "server")] == [0, 0, 0]


def _check_nobody_can_dial_a_device(fleet):
    """What is listened at by whom is not asked: it is all on loopback."""
    with open("/proc/net/tcp") as file:
        rows = [line.split() for line in list(file)[1:]]
    inodes = {row[9]: row[1].split(":")[0] for row in rows if row[3] == "0A"}
    for pid in fleet.processes():
        for handle in fleet.files(pid):
            if handle.startswith("socket:["):
                assert inodes.get(handle[8:-1], "0100007F") == "0100007F"


def _check_the_door_is_closed_to_the_revoked(fleet):
    assert fleet.fedsys("server", "revoke", "srv", "b").returncode == 0
    fleet.wait(lambda: "has revoked it" in fleet.said("b"), 60, "it is not told")
    fleet.wait(lambda: "unknown or revoked key" in fleet.said("server"), 60, "nobody is told")


def _check_it_is_the_simulated_model(fleet, folder):
    """The same cohort, steps, codec and order of sums give the same bits, on whatever network."""
    assert fleet._running["simulated"].wait(60) == 0, fleet.said("simulated")
    simulated = RunFolder.open(fleet.folder / "simulated" / "real-1")
    assert simulated.result()["model_sha256"] == folder.result()["model_sha256"]


def _send_strangers(fleet):
    """One who trusts another CA, and one whose key nobody knows."""
    home = ServerHome.open(fleet.folder / "srv")
    for name in ("false-ca", "false-key"):
        made = home.enrol(name, link="lan", pace=Pace(), address=f"127.0.0.1:{fleet.port}")
        made.save(fleet.folder / f"{name}.enrolment")
    path = fleet.folder / "false-ca.enrolment"
    other = make_authority("x", datetime.datetime.now(datetime.UTC)).certificate
    _rewrite(path, authority=other)
    _rewrite(fleet.folder / "false-key.enrolment", key=make_node_key())
    for name in ("false-ca", "false-key"):
        fleet.start(name, "client", "join", f"{name}.enrolment", "--state", f"state-{name}")


def _rewrite(path, **changes):
    enrolment = Enrolment.load(path)
    path.unlink()
    dataclasses.replace(enrolment, **changes).save(path)


def _check_strangers(fleet):
    for name, words in (("false-ca", "another CA"), ("false-key", "does not know this device's")):
        fleet.wait(lambda words=words, name=name: words in fleet.said(name), 60, f"{name} waits")
        assert fleet._running[name].wait(60) == 1
        last = fleet.said(name).splitlines()[-1]
        assert re.match("fedsys: error: ", last)
    assert re.search(r"refused: 127.0.0.1, key [0-9a-f]{16}", fleet.said("server"))


def _check_nothing_private_shows(fleet):
    keys = [Enrolment.load(fleet.folder / f"{n}.enrolment").key.private for n in ("a", "b")]
    secrets = [line for key in keys for line in key.decode().splitlines() if len(line) > 40]
    secrets += [(fleet.folder / "srv" / "admin.token").read_text()]
    arguments = " ".join(fleet.processes().values())
    logs = [p for p in fleet.folder.rglob("*") if p.suffix in (".log", ".out")]
    text = arguments + "".join(p.read_text() for p in logs)
    assert len(logs) >= 6
    assert not [secret for secret in secrets if secret in text]
    for part in ("srv", "state-a"):
        modes = {stat.S_IMODE(p.stat().st_mode) for p in (fleet.folder / part).iterdir()}
        assert not any(mode & 0o077 for mode in modes if mode & 0o400), part
