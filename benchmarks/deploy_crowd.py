"""Two hundred devices that speak the real Fleet API, and what they cost one server."""

import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.deploy_rig import ROOT, Row, experiment
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
NAMES = ("ServerApp", "SuperLink")
SMALL_BYTES, LARGE_BYTES, LARGEST_BYTES = 30_000, 2_000_000, 10_000_000
MAX_DEVICE_MB = {"ServerApp": 0.2, "SuperLink": 1.0}
"""What a device more may cost. It has two pieces of half a megabyte on their way; with its update
in memory it would be a model."""
MAX_MODELS = {"ServerApp": 15.0, "SuperLink": 2.0}
"""What a larger model may cost, in models, where 20 devices send it. With all updates of a round in
memory it would be 20 and more; the ServerApp evaluates it, adds up and writes checkpoints."""
_WAIT_S = 600.0
_RUN_S = 900.0
_LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class Stage:
    """One run."""

    devices: int
    model_bytes: int
    rounds: int

    @property
    def name(self) -> str:
        """For rows."""
        return f"{self.devices} devices, {self.model_bytes / 1e6:.2g} MB each way"


@dataclass(frozen=True, slots=True)
class Found:
    """What became of it."""

    stage: Stage
    peak_bytes: Mapping[str, int]
    records: Sequence[RoundRecord]


STAGES = (
    Stage(20, SMALL_BYTES, 3),
    Stage(20, LARGE_BYTES, 3),
    Stage(200, SMALL_BYTES, 3),
    Stage(200, LARGE_BYTES, 3),
    Stage(20, LARGEST_BYTES, 2),
)
QUICK_STAGES = (Stage(20, SMALL_BYTES, 2), Stage(20, LARGE_BYTES // 2, 2))


class Peak:
    """The largest memory of the server's processes while it is looked at."""

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
    """One run after the other, by the same server and the same devices."""
    found: list[Found] = []
    for one in _found(QUICK_STAGES if quick else STAGES):
        found.append(one)
        yield from _stage_rows(one)
    if quick:
        return
    at = {(one.stage.devices, one.stage.model_bytes): one.peak_bytes for one in found}
    for name in NAMES:
        few, many = at[20, LARGE_BYTES][name], at[200, LARGE_BYTES][name]
        yield Row(
            section=SECTION,
            name=f"{name}: memory for each device from the 20th to the 200th",
            bound=MAX_DEVICE_MB[name],
            measured=max(0.0, (many - few) / 180 / 1e6),
            unit="MB",
            note=f"{few / 1e6:.0f} and {many / 1e6:.0f} MB",
        )
        large, largest = at[20, LARGE_BYTES][name], at[20, LARGEST_BYTES][name]
        yield Row(
            section=SECTION,
            name=f"{name}: memory for a larger model, in models",
            bound=MAX_MODELS[name],
            measured=max(0.0, (largest - large) / (LARGEST_BYTES - LARGE_BYTES)),
            note=f"{large / 1e6:.0f} and {largest / 1e6:.0f} MB",
        )


def _stage_rows(found: Found) -> Iterator[Row]:
    stage = found.stage
    used = sum(report.accepted for record in found.records for report in record.reports)
    yield Row(
        section=SECTION,
        name=f"{stage.name}: share of the updates of {stage.rounds} rounds that were used",
        bound=1,
        measured=used / (stage.devices * stage.rounds),
        at_least=True,
    )
    lengths_s = [record.end_s - record.start_s for record in found.records[1:]]
    memory = ", ".join(f"{name} {found.peak_bytes[name] / 1e6:.0f} MB" for name in NAMES)
    yield Row(
        section=SECTION,
        name=f"{stage.name}: seconds of a round, median",
        bound=None,
        measured=statistics.median(lengths_s),
        unit="s",
        note=memory,
    )


def _found(stages: Sequence[Stage]) -> Iterator[Found]:
    """Run all stages."""
    devices = max(stage.devices for stage in stages)
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
            for number, stage in enumerate(stages):
                yield _run(home, stage, folder / f"run-{number}")


def _run(home: ServerHome, stage: Stage, out: Path) -> Found:
    text = experiment(
        name="crowd",
        link="perfect",
        options={},
        model_bytes=stage.model_bytes,
        clients=stage.devices,
        rounds=stage.rounds,
    )
    trial = parse_experiment(text, where="benchmark")
    run = RunFolder.create(out, trial, resume=False)
    until_s = time.monotonic() + _RUN_S
    with Peak(home) as peak:
        done = run_on(
            home,
            trial,
            run,
            screen=Console(quiet=True),
            wait_s=_WAIT_S,
            min_nodes=None,
            quiet=True,
            stop=lambda: time.monotonic() > until_s,
        )
    return Found(stage, peak.bytes, done.records)


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
    """(what, bytes) of the server's processes: the SuperLink, and the last nursery's.

    Pages that processes share are counted in parts.
    """
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if str(home.path).encode() not in (entry / "environ").read_bytes():
                continue
            line = (entry / "cmdline").read_bytes()
            figures = _figures(entry / "status") | _figures(entry / "smaps_rollup")
        except OSError:
            continue
        size_bytes = 1024 * int(figures.get("Pss", "0").split()[0])
        if b"_process\0superlink" in line:
            yield "SuperLink", size_bytes
        elif b"_process\0nursery" in line and _is_fork(figures):
            yield "ServerApp", size_bytes


def _figures(file: Path) -> dict[str, str]:
    return dict(one.split(":", 1) for one in file.read_text().splitlines() if ":" in one)


def _is_fork(figures: dict[str, str]) -> bool:
    """Whether the process was forked from another of the same kind."""
    parent = Path("/proc") / figures["PPid"].strip() / "cmdline"
    try:
        return b"_process\0nursery" in parent.read_bytes()
    except OSError:
        return False
