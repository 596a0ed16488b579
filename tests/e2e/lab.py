"""Flower's own processes on this machine: a SuperLink, SuperNodes, and ``flwr run``."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BIN = Path(sys.executable).parent


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Lab:
    """A SuperLink without TLS, and whatever nodes are added; all of it in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = free_port()
        self._env = os.environ | {
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
        }
        self._processes: list[subprocess.Popen[bytes]] = []
        (folder / "flwr").mkdir(parents=True)
        (folder / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "lab"\n[superlink.lab]\naddress = "127.0.0.1:{self.port}"\n'
            "insecure = true\n"
        )

    def start_superlink(self) -> None:
        """Start it and wait until it listens."""
        self._start(
            *("flower-superlink", "--insecure", "--port", str(self.port)),
            "--disable-runtime-dependency-installation",
        )
        wait_for(lambda: _listens(self.port), 60, "the SuperLink does not listen")

    def start_supernode(self, partition: int, partitions: int, superlink_port: int) -> None:
        """Start a node that dials ``superlink_port``, which may be a proxy's."""
        self._start(
            *("flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{superlink_port}"),
            *("--port", str(free_port()), "--node-config"),
            f"partition-id={partition} num-partitions={partitions}",
        )

    def run(self, app: Path, timeout_s: float) -> str:
        """``flwr run`` to its end; what it printed. Raises AssertionError if the run failed."""
        command = [str(BIN / "flwr"), "run", str(app), "lab", "--stream"]
        done = subprocess.run(
            command, env=self._env, capture_output=True, text=True, timeout=timeout_s
        )
        listed = subprocess.run(
            [str(BIN / "flwr"), "ls", "lab", "--format", "json"],
            **{"env": self._env, "capture_output": True, "text": True, "timeout": 60},
        )
        runs: list[dict[str, Any]] = json.loads(listed.stdout)["runs"]
        printed = done.stdout + done.stderr
        assert runs[0]["status"] == "finished:completed", f"{runs[0]['status']}\n{printed}"
        return printed

    def stop(self) -> None:
        """End every process, politely first."""
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, *command: str) -> None:
        log = (self._folder / f"{len(self._processes)}-{command[0]}.log").open("wb")
        with log:
            self._processes.append(
                subprocess.Popen(
                    [str(BIN / command[0]), *command[1:]], env=self._env, stdout=log, stderr=log
                )
            )


@contextmanager
def running_lab(folder: Path) -> Iterator[Lab]:
    """A lab whose SuperLink runs; everything is stopped at the end."""
    lab = Lab(folder)
    try:
        lab.start_superlink()
        yield lab
    finally:
        lab.stop()


def wait_for(ready: Callable[[], bool], timeout_s: float, otherwise: str) -> None:
    """Poll ``ready``; AssertionError with ``otherwise`` when it never is."""
    deadline_s = time.monotonic() + timeout_s
    while not ready():
        assert time.monotonic() < deadline_s, otherwise
        time.sleep(0.1)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
