"""Real commands as processes: a server, clients, a run; and what is on the machine meanwhile."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fedsys.deploy.children import free_port

EXPERIMENT = """
[run]
name = "real"
[run.budget]
rounds = {rounds}
[task]
name = "digits"
options = {{ model = "mlp" }}
[partition]
clients = {clients}
[training]
batch_size = 16
lr = 0.1
[codec]
uplink = "topk(0.1)|int8"
[network]
link = "lan"
"""


class Fleet:
    """Commands of ``fedsys`` in one folder; all of them ended by ``stop``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def fedsys(
        self, *arguments: object, timeout_s: float = 60
    ) -> "subprocess.CompletedProcess[str]":
        """One command to its end."""
        return subprocess.run(
            self._command(arguments),
            cwd=self.folder,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def start(self, name: str, *arguments: object) -> "subprocess.Popen[bytes]":
        """A command in the background; its output is what ``said`` returns."""
        with (self.folder / f"{name}.out").open("ab") as out:
            self._running[name] = subprocess.Popen(
                self._command(arguments),
                cwd=self.folder,
                env=self._environment(),
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        return self._running[name]

    def server(self) -> None:
        """A server with its folder, listening."""
        done = self.fedsys("server", "init", "srv", "--host", "127.0.0.1", "--port", self.port)
        assert done.returncode == 0, done.stderr
        self.start("server", "server", "start", "srv", "--listen", "127.0.0.1")
        self.wait(lambda: "listening" in self.said("server"), 90, "the server does not listen")

    def join(self, name: str) -> None:
        """A device, enrolled and joined."""
        done = self.fedsys("server", "enroll", "srv", name, "--link", "lan")
        assert done.returncode == 0, done.stderr
        self.start(name, "client", "join", f"{name}.enrolment", "--state", f"state-{name}")

    def run(self, *more: object, timeout_s: float = 400) -> "subprocess.CompletedProcess[str]":
        """The experiment, to its end."""
        return self.fedsys("run", "e.toml", "--server", "srv", *more, timeout_s=timeout_s)

    def write(self, *, rounds: int, clients: int) -> None:
        """The experiment file."""
        (self.folder / "e.toml").write_text(EXPERIMENT.format(rounds=rounds, clients=clients))

    def said(self, name: str) -> str:
        """The output so far."""
        file = self.folder / f"{name}.out"
        return file.read_text() if file.exists() else ""

    def wait(self, ready: Callable[[], object], timeout_s: float, otherwise: str) -> None:
        """Poll; AssertionError with everybody's output when it never is."""
        until_s = time.monotonic() + timeout_s
        while not ready():
            outputs = "\n".join(f"== {n}\n{self.said(n)}" for n in self._running)
            assert time.monotonic() < until_s, f"{otherwise}\n{outputs}"
            time.sleep(0.1)

    def rounds(self) -> int:
        """Rounds that the run has recorded."""
        file = self.folder / "runs" / "real-1" / "rounds.jsonl"
        return file.read_bytes().count(b"\n") if file.exists() else 0

    def processes(self) -> dict[int, str]:
        """Command lines of all processes that belong to this fleet."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                where = os.readlink(entry / "cwd")
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if where == str(self.folder):
                found[int(entry.name)] = line
        return found

    def files(self, pid: int) -> list[str]:
        """What a process has open."""
        found = []
        for handle in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                found.append(os.readlink(handle))
        return found

    def kill(self, part: str, *, below: str) -> None:
        """kill -9 the process ``part`` that a command of this fleet has started."""
        pid = self._running[below].pid
        for child, line in self.processes().items():
            if f"_process {part}" in line and _is_below(child, pid):
                os.kill(child, signal.SIGKILL)
                return
        raise AssertionError(f"no {part} below {below}: {self.processes()}")

    def end(self, name: str, number: int = signal.SIGTERM) -> int:
        """Signal a command, and wait for its end; its exit code."""
        process = self._running[name]
        process.send_signal(number)
        return process.wait(60)

    def stop(self) -> None:
        """End all, clients first."""
        for process in reversed(self._running.values()):
            process.terminate()
        for process in self._running.values():
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _command(self, arguments: tuple[object, ...]) -> list[str]:
        return [sys.executable, "-m", "fedsys.cli.main", *map(str, arguments)]

    def _environment(self) -> dict[str, str]:
        # A proxy of the environment must not catch what stays on this machine.
        proxies = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
        return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"} | proxies


def _is_below(child: int, ancestor: int) -> bool:
    while child > 1:
        if child == ancestor:
            return True
        stat = Path(f"/proc/{child}/stat").read_text()
        child = int(stat.rpartition(")")[2].split()[1])
    return False
