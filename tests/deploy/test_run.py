"""What a run makes of a disk that is full, on a disk of its own."""

import errno
import os
import threading
import time

import pytest

from fedsys.deploy import run
from fedsys.errors import ConfigError, DeployError


class Folder:
    def __init__(self, path):
        self.path = path


def test_a_full_disk_is_known_by_what_the_system_says_wherever_it_was_said():
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "rounds.jsonl")

    assert run.is_disk_full(full)
    assert run.is_disk_full(DeployError(f"the run failed after round 3: ServerApp failed: {full}"))
    assert not run.is_disk_full(OSError(errno.EACCES, os.strerror(errno.EACCES)))
    assert not run.is_disk_full(ConfigError("the disk"))


@pytest.fixture
def disk(tmp_path, monkeypatch):
    """Free bytes of the disk; a checkpoint of 1 MB is on it."""
    free = {"bytes": 0}
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "tensors").write_bytes(bytes(1_000_000))
    usage = type("Usage", (), {"free": property(lambda self: free["bytes"])})()
    monkeypatch.setattr(run.shutil, "disk_usage", lambda path: usage)
    return Folder(tmp_path), free


def test_a_run_waits_for_room_for_two_checkpoints_and_says_so(disk):
    folder, free = disk
    said = []
    threading.Timer(0.3, free.update, [{"bytes": 2_000_000}]).start()  # not enough
    threading.Timer(0.9, free.update, [{"bytes": 4_000_000}]).start()
    begin_s = time.monotonic()

    run.wait_for_room(folder, stop=lambda: False, say=said.append)

    assert time.monotonic() - begin_s > 0.8
    assert said == [f"the disk of {folder.path} is full; 3.0 MB are needed to go on"]


def test_it_does_not_wait_for_ever_nor_when_it_is_to_stop(disk, monkeypatch):
    folder, _ = disk
    with pytest.raises(KeyboardInterrupt):
        run.wait_for_room(folder, stop=lambda: True, say=lambda line: None)
    monkeypatch.setattr(run, "ROOM_WAIT_S", 0.1)
    with pytest.raises(DeployError, match="is full"):
        run.wait_for_room(folder, stop=lambda: False, say=lambda line: None)
