"""Two hundred devices that speak the real Fleet API, and what they cost one server."""

import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from benchmarks.deploy_rig import ROOT, Row, experiment
from benchmarks.deploy_task import bytes_of, hidden_for
from fedsys.cli.execute import run_on
from fedsys.config.load import parse_experiment
from fedsys.deploy.children import free_port
from fedsys.deploy.control import Control
from fedsys.deploy.home import ServerHome
from fedsys.deploy.local import LocalFleet
from fedsys.deploy.pace import Pace
from fedsys.telemetry.runfolder import RunFolder
from fedsys.types import RoundRecord

SECTION = "crowd"
DEVICES, QUICK_DEVICES = 200, 20
SMALL_BYTES = 30_000
MODEL_BYTES, QUICK_MODEL_BYTES = 2_000_000, 1_000_000
ROUNDS, QUICK_ROUNDS = 2, 2
MAX_GROWTH_MODELS = 25.0
"""What a process of the server may take more for the larger model, in models. With all updates of
a round in memory it would be one for each device."""
_WAIT_S = 600.0
_LOOK_S = 0.1


class Peak:
    """The largest resident memory of the server's processes while it is looked at."""

    def __init__(self, home: ServerHome) -> None:
        self._home = home
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.bytes = {"SuperLink": 0, "ServerApp": 0}

    def __enter__(self) -> "Peak":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(_LOOK_S):
            for name, size_bytes in _memory(self._home):
                self.bytes[name] = max(self.bytes[name], size_bytes)


def rows(quick: bool) -> Iterator[Row]:
    """All devices with a small model, then with a large one."""
    devices = QUICK_DEVICES if quick else DEVICES
    rounds = QUICK_ROUNDS if quick else ROUNDS
    sizes = [SMALL_BYTES, QUICK_MODEL_BYTES if quick else MODEL_BYTES]
    model_bytes = [bytes_of(hidden_for(size_bytes)) for size_bytes in sizes]
    (small, few), (large, records) = _measured(devices, model_bytes, rounds)
    yield Row(
        section=SECTION,
        name=f"rounds of {devices} devices that were completed, of {2 * rounds}",
        bound=2 * rounds,
        measured=len(few) + len(records),
        at_least=True,
    )
    used = sum(report.accepted for record in [*few, *records] for report in record.reports)
    yield Row(
        section=SECTION,
        name="share of updates that were used",
        bound=1,
        measured=used / (devices * 2 * rounds),
        at_least=True,
    )
    for name in ("ServerApp", "SuperLink"):
        yield Row(
            section=SECTION,
            name=f"{name}: more memory for the larger model, in models",
            bound=devices / 2 if quick else MAX_GROWTH_MODELS,
            measured=(large[name] - small[name]) / (model_bytes[1] - model_bytes[0]),
            note=f"{small[name] / 1e6:.0f} and {large[name] / 1e6:.0f} MB with models of "
            f"{model_bytes[0] / 1e6:.2f} and {model_bytes[1] / 1e6:.1f} MB",
        )
    for size_bytes, found in zip(model_bytes, (few, records), strict=True):
        yield Row(
            section=SECTION,
            name=f"seconds of a round of {devices}, {size_bytes / 1e6:.2f} MB each way",
            bound=None,
            measured=statistics.median(r.end_s - r.start_s for r in found[1:]),
            unit="s",
        )


def _measured(
    devices: int, model_bytes: Sequence[int], rounds: int
) -> list[tuple[dict[str, int], list[RoundRecord]]]:
    """For each model, peak memory of each process, and the records of a run."""
    found = []
    with tempfile.TemporaryDirectory(prefix="fedsys-crowd-") as name:
        folder = Path(name)
        home = ServerHome.create(folder / "server", ["127.0.0.1"], free_port())
        own = folder / "devices"
        own.mkdir(mode=0o700)
        for number in range(devices):
            enrolment = home.enrol(f"device-{number:03}", link="perfect", pace=Pace())
            enrolment.save(own / f"{number:03}.enrolment")
        with (
            (folder / "events.log").open("a", buffering=1) as log,
            LocalFleet(home, {}, folder, say=lambda line: print(line, file=log)),
            # One that comes before the server knows it is refused, and Flower's client then ends.
            _device_process(own, folder / "devices.log", when=lambda: _known(home) == devices),
        ):
            for size_bytes in model_bytes:
                text = experiment(
                    name="crowd",
                    link="perfect",
                    options={},
                    model_bytes=size_bytes,
                    clients=devices,
                    rounds=rounds,
                )
                trial = parse_experiment(text, where="benchmark")
                run = RunFolder.create(folder / f"run-{size_bytes}", trial, resume=False)
                with Peak(home) as peak:
                    done = run_on(
                        home,
                        trial,
                        run,
                        screen=Console(quiet=True),
                        wait_s=_WAIT_S,
                        min_nodes=None,
                        quiet=True,
                        stop=lambda: False,
                    )
                found.append((peak.bytes, done.records))
    return found


@contextmanager
def _device_process(folder: Path, log: Path, when: Callable[[], bool]) -> Iterator[None]:
    until_s = time.monotonic() + _WAIT_S
    while not when() and time.monotonic() < until_s:
        time.sleep(0.5)
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.deploy_devices", str(folder)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=out,
        )
    try:
        yield
    finally:
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _known(home: ServerHome) -> int:
    """How many devices may come."""
    with Control.of(home) as control:
        return len(control.nodes())


def _memory(home: ServerHome) -> Iterator[tuple[str, int]]:
    """(what, resident bytes) of the server's processes: the SuperLink, and the last nursery's."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environment = (entry / "environ").read_bytes()
            line = (entry / "cmdline").read_bytes()
            status = (entry / "status").read_text()
        except OSError:
            continue
        if str(home.path).encode() not in environment:
            continue
        figures = dict(one.split(":", 1) for one in status.splitlines() if ":" in one)
        size_bytes = 1024 * int(figures.get("VmRSS", "0").split()[0])
        if b"_process\0superlink" in line:
            yield "SuperLink", size_bytes
        elif b"_process\0nursery" in line and _is_fork(figures):
            yield "ServerApp", size_bytes


def _is_fork(figures: dict[str, str]) -> bool:
    """Whether the process was forked from another of the same kind."""
    parent = Path("/proc") / figures["PPid"].strip() / "cmdline"
    try:
        return b"_process\0nursery" in parent.read_bytes()
    except OSError:
        return False
