"""Two processes on one run: the second waits a moment, and is refused before it writes."""

import os
import signal
import subprocess
import sys
import time

import pytest

from fedsys.errors import ConfigError
from fedsys.telemetry.lock import sole_writer

HOLD = """
import sys, time
from pathlib import Path
from fedsys.telemetry.lock import sole_writer
with sole_writer(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""

DRIVER = """
import multiprocessing, os, sys, time
from fedsys.cli.pool import process_pools

def work(seconds):
    print(os.getpid(), flush=True)
    time.sleep(seconds)

if __name__ == "__main__":
    event = multiprocessing.get_context("spawn").Event()
    with process_pools(1, event) as start_pool, start_pool() as pool:
        pool.submit(work, 60).result()
"""


def holder(path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"held\n"
    return process


def test_a_folder_that_another_process_writes_into_is_refused(tmp_path):
    with holder(tmp_path / "run") as other:
        with (
            pytest.raises(ConfigError, match="another process is writing into it"),
            sole_writer(tmp_path / "run"),
        ):
            pytest.fail("two writers")
        other.kill()


def test_once_the_other_is_gone_the_folder_is_free(tmp_path):
    with holder(tmp_path / "run") as other:
        other.send_signal(signal.SIGKILL)
    with sole_writer(tmp_path / "run"), sole_writer(tmp_path / "run"):
        assert (tmp_path / "run").is_dir()


def test_what_is_a_file_is_no_folder(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"), sole_writer(tmp_path / "run"):
        pytest.fail("wrote into a file")


def test_workers_end_with_the_comparison_that_was_killed(tmp_path):
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE) as driver:
        worker = int(driver.stdout.readline())
        driver.kill()
        driver.stdout.close()
    until_s = time.monotonic() + 10
    while time.monotonic() < until_s:
        try:
            os.kill(worker, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    os.kill(worker, signal.SIGKILL)
    pytest.fail("the worker went on without its driver")
