"""Keys and enrolments on the disk: who may read them, and that none is ever overwritten."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsys.deploy.enrolment import Enrolment
from fedsys.deploy.home import ServerHome
from fedsys.deploy.pace import CHUNK_S, MAX_CHUNK_BYTES, MIN_CHUNK_BYTES, Pace, pace_for
from fedsys.deploy.private import write_private
from fedsys.errors import ConfigError

PACE = pace_for(1e6, 4e6)


@pytest.fixture
def home(tmp_path):
    return ServerHome.create(tmp_path / "server", ["fl.example.org", "10.0.0.7"], 9440)


def modes(folder: Path) -> set[int]:
    return {stat.S_IMODE(p.stat().st_mode) for p in [folder, *folder.rglob("*")]}


def test_nobody_else_may_read_anything_even_under_an_open_umask(tmp_path):
    code = (
        "import os, sys; os.umask(0); from pathlib import Path\n"
        "from fedsys.deploy.home import ServerHome; from fedsys.deploy.pace import Pace\n"
        "home = ServerHome.create(Path(sys.argv[1]) / 's', ['localhost'], 9440)\n"
        "home.enrol('a', link='lte', pace=Pace()).save(Path(sys.argv[1]) / 's' / 'a.enrolment')\n"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True)

    assert modes(tmp_path / "s") == {0o600, 0o700}


def test_a_servers_folder_is_never_overwritten(home):
    keys = {p: p.read_bytes() for p in home.path.glob("*.key")}

    with pytest.raises(ConfigError, match="not empty"):
        ServerHome.create(home.path, ["localhost"], 9440)
    assert {p: p.read_bytes() for p in home.path.glob("*.key")} == keys


def test_a_folder_that_others_may_look_into_is_refused(home):
    home.path.chmod(0o755)

    with pytest.raises(ConfigError, match="chmod 700"):
        ServerHome.open(home.path)


def test_an_enrolment_comes_back_as_it_was_and_says_whom_to_dial(home, tmp_path):
    made = home.enrol("kitchen", link="lte", pace=PACE)
    made.save(tmp_path / "kitchen.enrolment")

    assert Enrolment.load(tmp_path / "kitchen.enrolment") == made
    assert made.address == "fl.example.org:9440"
    assert made.authority == (home.path / "ca.crt").read_bytes()
    with pytest.raises(ConfigError, match="not overwritten"):
        made.save(tmp_path / "kitchen.enrolment")


def test_the_private_half_of_a_devices_key_stays_with_the_device(home):
    secret = home.enrol("kitchen", link="lte", pace=PACE).key.private

    lines = [line for line in secret.splitlines() if len(line) > 40]
    everything = b"".join(p.read_bytes() for p in home.path.rglob("*") if p.is_file())
    assert lines
    assert not any(line in everything for line in lines)


def test_a_locked_key_needs_its_passphrase(home, tmp_path):
    path = tmp_path / "a.enrolment"
    home.enrol("a", link="lte", pace=PACE, passphrase="correct horse").save(path)
    locked = Enrolment.load(path)

    with pytest.raises(ConfigError, match="needs a passphrase"):
        locked.unlocked(None)
    with pytest.raises(ConfigError, match="wrong passphrase"):
        locked.unlocked("battery staple")
    assert locked.unlocked("correct horse").key.private.startswith(b"-----BEGIN OPENSSH")


def test_an_enrolment_that_others_may_read_is_refused(home, tmp_path):
    home.enrol("a", link="lte", pace=PACE).save(tmp_path / "a.enrolment")
    (tmp_path / "a.enrolment").chmod(0o644)

    with pytest.raises(ConfigError, match="chmod 600"):
        Enrolment.load(tmp_path / "a.enrolment")


@pytest.mark.parametrize("text", ["", "[enrolment]\nversion = 1\n", "\x00", "a = 1"])
def test_what_is_no_enrolment_is_one_line(tmp_path, text):
    write_private(tmp_path / "x", text.encode())

    with pytest.raises(ConfigError, match="not an enrolment file"):
        Enrolment.load(tmp_path / "x")


def test_a_name_is_used_once_and_a_part_of_the_data_again(home):
    parts = [home.enrol(name, link="lte", pace=PACE).partition for name in ("a", "b", "c")]
    home.revoke("b")

    assert parts == [0, 1, 2]
    with pytest.raises(ConfigError, match="was enrolled"):
        home.enrol("b", link="lte", pace=PACE)
    assert home.enrol("d", link="lte", pace=PACE).partition == 1
    assert [entry.name for entry in home.nodes() if entry.revoked] == ["b"]


def test_a_name_cannot_leave_the_folder(home):
    for name in ("../x", "", ".hidden", "a/b", "a" * 65):
        with pytest.raises(ConfigError, match="device name"):
            home.enrol(name, link="lte", pace=PACE)


def test_one_server_a_folder(home):
    with home.claimed(1234):
        assert home.running().pid == os.getpid()
        with pytest.raises(ConfigError, match="runs on it already"), home.claimed(1235):
            pass
    assert home.running() is None


def test_a_server_that_died_is_not_running(home):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    write_private(home.path / "running.json", f'{{"pid": {dead.pid}, "control_port": 1}}'.encode())

    assert home.running() is None


@given(st.floats(1e3, 1e10), st.floats(1e3, 1e10))
def test_the_chunks_that_are_under_way_pass_the_slow_direction_in_time(up_bps, down_bps):
    pace = pace_for(up_bps, down_bps)

    under_way_s = 8 * pace.chunk_bytes * pace.connections / min(up_bps, down_bps)
    assert MIN_CHUNK_BYTES <= pace.chunk_bytes <= MAX_CHUNK_BYTES
    assert under_way_s <= CHUNK_S or pace.chunk_bytes == MIN_CHUNK_BYTES
    # Flower gives up after 30 s; the smallest chunk gets through from 1 kbit/s on.
    assert under_way_s < 30


def test_a_model_takes_its_time_in_both_directions():
    assert Pace(up_bps=1e6, down_bps=2e6).exchange_s(1_000_000) == pytest.approx(8 + 4)


def test_the_largest_piece_is_far_below_what_the_gate_takes():
    from fedsys.deploy.gate import MAX_BODY_BYTES

    assert 4 * MAX_CHUNK_BYTES < MAX_BODY_BYTES
