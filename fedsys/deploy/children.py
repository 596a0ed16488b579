"""One of Flower's processes as a child: its output in a log, its end noticed, its stop clean."""

import contextlib
import datetime
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedsys.deploy import _flower
from fedsys.deploy._process import start
from fedsys.deploy.private import FILE_MODE

STOP_S = 8.0
"""Flower ends by itself five seconds after it was asked to."""
MAX_LOG_BYTES = 4 << 20
"""A log that is longer becomes NAME.1, in place of the one before."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Child:
    """A process of ``fedsys.deploy._process`` and whatever it starts."""

    def __init__(
        self,
        name: str,
        settings: Mapping[str, Any],
        *,
        log: Path,
        environment: Mapping[str, str],
        on_line: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Starts at once. ``on_line`` gets each line of output, in a thread of its own."""
        self._log_path = log
        self._on_line = on_line
        self._process = start(
            name,
            dict(settings),
            environment=dict(os.environ) | _flower.ENVIRONMENT | dict(environment),
            output=subprocess.PIPE,
            own_group=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Of the process itself."""
        return self._process.pid

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.poll()

    def stop(self) -> int:
        """End it and what it has started; its exit code."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        code = self._process.wait()
        # A process that was still importing does not see that its parent has gone.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._reader.join(2.0)
        return code

    def _read(self) -> None:
        """Log until the output ends; a full disk costs lines and nothing else."""
        output = self._process.stdout
        if output is None:
            return
        for line in output:
            try:
                self._write(line)
            except OSError as error:
                self._on_line(f"the log cannot be written: {error.strerror}")
            self._on_line(line.rstrip("\n"))

    def _write(self, line: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            if self._log_path.stat().st_size > MAX_LOG_BYTES:
                self._log_path.replace(self._log_path.with_name(f"{self._log_path.name}.1"))
        handle = os.open(self._log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE_MODE)
        with os.fdopen(handle, "a", encoding="utf-8") as file:
            file.write(f"{datetime.datetime.now():%Y-%m-%d %H:%M:%S.%f} {line}")


def threads_environment(threads: int) -> dict[str, str]:
    """What keeps a process and its libraries to so many threads."""
    return dict.fromkeys(THREADS, str(threads))


def free_port() -> int:
    """A TCP port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def check_port(host: str, port: int) -> str:
    """Why a server cannot listen at ``host``:``port``; empty where it can."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.strerror or str(error)
    return ""


def listens(port: int) -> bool:
    """Whether somebody on this machine takes connections there."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
