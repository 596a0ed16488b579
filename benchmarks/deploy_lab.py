"""Commands of fedsys as processes, and all that can be done to them while they run."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from benchmarks.deploy_rig import ROOT
from fedsys.cli.server import link_pace
from fedsys.deploy.children import free_port
from fedsys.deploy.home import ServerHome

CLOCK = Path(__file__).with_name("deploy_clock.c")
DISK_BYTES = 24 << 20
Process = subprocess.Popen[bytes]


class Lab:
    """A server, a proxy and devices, each as its command, in one folder."""

    def __init__(self, folder: Path, link: str, devices: int) -> None:
        self.folder = folder
        self.link = link
        self.devices = [f"d{number}" for number in range(1, devices + 1)]
        self.running: dict[str, Process] = {}
        self.disks: dict[str, Path] = {}
        """Small disks of their own, by what is on them."""
        self._ports = {name: free_port() for name in (*self.devices, "control", "server")}
        self._clock = _build_clock(folder)
        self._http = httpx.Client(base_url=f"http://127.0.0.1:{self._ports['control']}")

    @property
    def has_clocks(self) -> bool:
        """Whether a device's clock can be put off: a C compiler is there."""
        return self._clock is not None

    def start(self) -> None:
        """Everything but the run."""
        home = ServerHome.create(self.folder / "srv", ["127.0.0.1"], self._ports["server"])
        for device in self.devices:
            enrolment = home.enrol(
                device,
                link=self.link,
                pace=link_pace(self.link),
                address=f"127.0.0.1:{self._ports[device]}",
            )
            enrolment.save(self.folder / f"{device}.enrolment")
        self.command("server", "server", "start", "srv", "--listen", "127.0.0.1")
        self.wait(lambda: "listening" in self.said("server"), 300, "no server")
        self.start_proxy()
        for device in self.devices:
            self._disk(f"state-{device}")
            self.command(
                *(device, "client", "join", f"{device}.enrolment", "--state", f"state-{device}")
            )
            skew = self.folder / f"{device}.skew"
            skew.write_text("0")

    def command(self, name: str, *arguments: str) -> Process:
        """Start ``fedsys ARGUMENTS``; its output is what ``said`` returns."""
        environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": str(ROOT),
        }
        if self._clock is not None and name in self.devices:
            environment |= {
                "LD_PRELOAD": str(self._clock),
                "SKEW_FILE": str(self.folder / f"{name}.skew"),
            }
        with (self.folder / f"{name}.out").open("ab") as out:
            self.running[name] = subprocess.Popen(
                [sys.executable, "-m", "fedsys.cli.main", *arguments],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        return self.running[name]

    def start_proxy(self) -> None:
        """The proxy before all devices, at the ports that they dial."""
        arguments = ["proxy", "--upstream", f"127.0.0.1:{self._ports['server']}"]
        arguments += ["--control", f"127.0.0.1:{self._ports['control']}"]
        for device in self.devices:
            arguments += ["--node", f"127.0.0.1:{self._ports[device]}={self.link}"]
        self.command("proxy", *arguments)

    def act(self, device: str, **action: Any) -> None:
        """Do something to a device's link; OSError or httpx.HTTPError while there is no proxy."""
        number = self.devices.index(device) + 1
        self._http.post(f"/nodes/{number}", json=action, timeout=5).raise_for_status()

    def links(self) -> dict[str, Any]:
        """The counters of all links."""
        nodes: dict[str, Any] = self._http.get("/nodes", timeout=5).json()["nodes"]
        return nodes

    def skew(self, device: str, seconds: int) -> None:
        """Put a device's wall clock off."""
        draft = self.folder / f"{device}.skew.new"
        draft.write_text(str(seconds))
        draft.replace(self.folder / f"{device}.skew")

    def fill(self, disk: str) -> None:
        """Leave no byte free."""
        with (self.disks[disk] / "ballast").open("wb", buffering=0) as file:
            block = bytes(1 << 16)
            while block:
                try:
                    file.write(block)
                except OSError:
                    block = block[: len(block) // 2]

    def empty(self, disk: str) -> None:
        """Undo ``fill``."""
        (self.disks[disk] / "ballast").unlink(missing_ok=True)

    def processes(self, kind: str, below: str) -> list[int]:
        """Those of a kind (see ``fedsys.deploy._process``) that a command has started.

        ``task`` are the processes that were forked for one task each.
        """
        parents, lines = _processes()
        top = self.running[below].pid
        wanted = "nursery" if kind == "task" else kind
        found = [
            pid
            for pid, line in lines.items()
            if f"fedsys.deploy._process {wanted}" in line and _is_below(pid, top, parents)
        ]
        if wanted != "nursery":
            return found
        return [pid for pid in found if (parents[pid] in found) == (kind == "task")]

    def kill(self, kind: str, below: str) -> bool:
        """kill -9; whether there was one."""
        for pid in self.processes(kind, below):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            return True
        return False

    def said(self, name: str) -> str:
        """The output so far."""
        file = self.folder / f"{name}.out"
        return file.read_text(errors="replace") if file.exists() else ""

    def wait(self, ready: Callable[[], object], timeout_s: float, otherwise: str) -> None:
        """Poll; RuntimeError with the last words of all when it never is."""
        until_s = time.monotonic() + timeout_s
        while not ready():
            if time.monotonic() > until_s:
                words = "\n".join(f"{name}: {self.said(name)[-500:]}" for name in self.running)
                raise RuntimeError(f"{words}\n{otherwise}")
            time.sleep(0.2)

    def stop(self) -> None:
        """End everything, and take the small disks away."""
        for process in reversed(self.running.values()):
            process.terminate()
        for process in self.running.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._http.close()
        for disk in self.disks.values():
            subprocess.run(["umount", "--lazy", str(disk)], check=False, capture_output=True)

    def small_disk(self, name: str) -> None:
        """Give a folder of the lab a disk of its own, where this user may."""
        self._disk(name)

    def _disk(self, name: str) -> None:
        path = self.folder / name
        path.mkdir(mode=0o700, exist_ok=True)
        if os.geteuid() != 0 or shutil.which("mount") is None:
            return
        options = f"size={DISK_BYTES},mode=0700"
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)],
            check=False,
            capture_output=True,
        )
        if mounted.returncode == 0:
            self.disks[name] = path


@contextmanager
def lab(folder: Path, link: str, devices: int) -> Iterator[Lab]:
    """Everything started; all of it ended afterwards, whatever happens."""
    made = Lab(folder, link, devices)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def _build_clock(folder: Path) -> Path | None:
    """The library that puts a clock off; None without a compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    library = folder / "clock.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(CLOCK), "-ldl"]
    done = subprocess.run(command, check=False, capture_output=True)
    return library if done.returncode == 0 else None


def _processes() -> tuple[dict[int, int], dict[int, str]]:
    """Parent and command line of every process."""
    parents: dict[int, int] = {}
    lines: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        pid = int(entry.name)
        parents[pid] = int(stat.rpartition(")")[2].split()[1])
        lines[pid] = line
    return parents, lines


def _is_below(pid: int, top: int, parents: dict[int, int]) -> bool:
    while pid > 1:
        if pid == top:
            return True
        pid = parents.get(pid, 0)
    return False
