"""One run on a server, followed from outside: who takes part, how far it is, how it ended."""

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedsys import __version__
from fedsys.clock import WallClock
from fedsys.config.load import dump_toml
from fedsys.config.schema import Experiment
from fedsys.deploy import _flower
from fedsys.deploy.control import Control, NoAnswerError, NodeStatus, RunStatus
from fedsys.deploy.home import NodeEntry, ServerHome
from fedsys.deploy.orders import END_S, ORDER, PROTOCOL, PROTOCOL_KEY, Order, write_app
from fedsys.deploy.private import write_private
from fedsys.errors import ConfigError, DeployError
from fedsys.telemetry.lock import sole_writer
from fedsys.telemetry.runfolder import RunFolder
from fedsys.types import RoundRecord

LOOK_S = 0.25
STATUS_S = 1.0
"""The SuperLink is asked less often than the folder is looked at: it has other work."""
SILENT_S = 300.0
"""A server that does not answer for so long is given up."""


ROOM_WAIT_S = 3600.0
"""How long a run waits for room on a full disk of the server."""
SPARE_BYTES = 1 << 20
"""What a round may need beside its checkpoint."""
APP_FAILED = "ServerApp failed with exception"
"""How Flower begins to say that the program of a run has given up by itself."""


class BrokenOffError(DeployError):
    """The run ended by no fault of its own: it can go on from its checkpoint at once."""


def is_disk_full(error: BaseException) -> bool:
    """Whether a disk of the server was full, be it for this process or for the ServerApp."""
    return os.strerror(errno.ENOSPC) in str(error)


def wait_for_room(
    folder: RunFolder, *, stop: Callable[[], bool], say: Callable[[str], None]
) -> None:
    """Return when there is room for another checkpoint.

    Raises DeployError where there is none after ``ROOM_WAIT_S``, KeyboardInterrupt on ``stop``.
    """
    clock = WallClock()
    until_s = clock.now_s() + ROOM_WAIT_S
    files = [file for file in (folder.path / "checkpoint").glob("*") if file.is_file()]
    needed = SPARE_BYTES + 2 * sum(file.stat().st_size for file in files)
    text = f"the disk of {folder.path} is full; {needed / 1e6:.1f} MB are needed to go on"
    say(text)
    while shutil.disk_usage(folder.path).free < needed:
        if stop():
            raise KeyboardInterrupt
        if clock.now_s() > until_s:
            raise DeployError(text)
        clock.sleep_s(LOOK_S)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run came to its end."""

    stopped_by: str
    """The budget that was met, or empty for a run that was stopped from outside."""
    records: list[RoundRecord]


def enrolled_for(experiment: Experiment, home: ServerHome) -> list[NodeEntry]:
    """The device of each part of the data; ConfigError where one is missing."""
    clients = experiment.partition.clients
    found = {e.partition: e for e in home.nodes() if not e.revoked and e.partition < clients}
    if len(found) < clients:
        raise ConfigError(
            f"partition.clients = {clients}, but {len(found)} devices are enrolled; each trains on "
            f"one part: 'fedsys server enroll {home.path} NAME' makes one more"
        )
    return [found[part] for part in range(clients)]


def wait_for_nodes(
    control: Control,
    entries: list[NodeEntry],
    *,
    at_least: int,
    wait_s: float,
    stop: Callable[[], bool],
    say: Callable[[str], None],
) -> dict[int, NodeEntry]:
    """Flower's numbers of the devices, once ``at_least`` of them are connected.

    Raises DeployError that names those who are missing after ``wait_s``.
    """
    clock = WallClock()
    until_s, said = clock.now_s() + wait_s, ""
    keys = {_flower.key_bytes(entry.public_key): entry for entry in entries}
    while not stop():
        known = [node for node in _nodes(control) if node.public_key in keys]
        online = {keys[node.public_key].name for node in known if node.is_online}
        missing = [entry.name for entry in entries if entry.name not in online]
        if len(known) == len(entries) and len(online) >= at_least:
            return {node.node_id: keys[node.public_key] for node in known}
        text = f"{len(online)} of {len(entries)} devices are there; missing: {', '.join(missing)}"
        if clock.now_s() >= until_s:
            raise DeployError(f"{text}; waited {wait_s:.0f} s (--wait, --min-nodes)")
        if text != said:
            say(text)
            said = text
        clock.sleep_s(LOOK_S)
    raise KeyboardInterrupt


def _nodes(control: Control) -> list[NodeStatus]:
    """Those that the SuperLink knows; none while it is away."""
    try:
        return control.nodes()
    except NoAnswerError:
        return []


def start_run(
    control: Control,
    home: ServerHome,
    experiment: Experiment,
    folder: RunFolder,
    nodes: dict[int, NodeEntry],
    *,
    keep_every_rounds: int = 0,
) -> int:
    """Hand the experiment to the server; Flower's number of the run."""
    parts = {node_id: entry.partition for node_id, entry in nodes.items()}
    paces = {node_id: entry.pace for node_id, entry in nodes.items()}
    order = Order.of(folder.path, parts, paces, keep_every_rounds).save(home.path)
    with tempfile.TemporaryDirectory(prefix="fedsys-app-") as app:
        write_app(Path(app), __version__)
        config = {"experiment": dump_toml(experiment), ORDER: order, PROTOCOL_KEY: PROTOCOL}
        run_id = control.start(Path(app), config)
    write_private(_mark(home, folder), str(run_id).encode())
    return run_id


def take_over(control: Control, home: ServerHome, folder: RunFolder) -> None:
    """Stop a run into the folder that is under way, and wait until it writes no more.

    Whoever followed it is gone. Raises ConfigError where it does not end.
    """
    previous = _marked(_mark(home, folder))
    if previous is not None and any(
        run.run_id == previous and not run.is_finished for run in control.runs()
    ):
        control.stop_run(previous)
    with sole_writer(folder.path, WallClock(), END_S):
        pass


def is_taken_over(home: ServerHome, folder: RunFolder, run_id: int) -> bool:
    """Whether somebody else has begun a run into the folder since."""
    return _marked(_mark(home, folder)) not in (run_id, None)


def _mark(home: ServerHome, folder: RunFolder) -> Path:
    """The file that holds the number of the last run into the folder."""
    digest = hashlib.sha256(str(folder.path.absolute()).encode()).hexdigest()[:16]
    return home.path / "orders" / f"{digest}.run"


def _marked(mark: Path) -> int | None:
    try:
        return int(mark.read_text())
    except (OSError, ValueError):
        return None


def follow(
    control: Control,
    run_id: int,
    folder: RunFolder,
    *,
    on_round: Callable[[RoundRecord], None],
    stop: Callable[[], bool],
) -> Ended:
    """Wait for the end, telling of each round.

    Raises DeployError with the reason of a run that failed, or of a server that is gone, and
    BrokenOffError where a process of the run was ended from outside; what was done until then is
    in the folder, and ``--resume`` goes on from it.
    """
    clock, told = WallClock(), _Told(folder, on_round)
    heard_s = clock.now_s()
    asked_s = float("-inf")
    while True:
        told.look()
        if stop():
            control.stop_run(run_id)
            return Ended("", folder.records())
        if clock.now_s() - asked_s < STATUS_S and not folder.has_result:
            clock.sleep_s(LOOK_S)
            continue
        asked_s = clock.now_s()
        try:
            status = control.run(run_id)
            heard_s = clock.now_s()
        except DeployError as error:
            if clock.now_s() - heard_s > SILENT_S:
                raise DeployError(f"{error}; go on with --resume when it is back") from error
            status = None
        if status is not None and status.is_finished:
            told.look()
            return _ended(status, folder)
        clock.sleep_s(LOOK_S)


def _ended(status: RunStatus, folder: RunFolder) -> Ended:
    """Believe the result file and Flower together, and neither alone."""
    result = folder.result()
    if status.is_completed and result is not None:
        return Ended(str(result["stopped_by"]), folder.records())
    done = len(folder.records())
    why = status.details or f"Flower says {status.status}:{status.sub_status}"
    if status.sub_status == "stopped":
        why = "it was stopped, or its SuperLink had to be started again"
    kind = DeployError if why.startswith(APP_FAILED) else BrokenOffError
    raise kind(f"the run failed after round {done}: {why}; --resume goes on from there")


class _Told:
    """Which rounds the user has been told of."""

    def __init__(self, folder: RunFolder, on_round: Callable[[RoundRecord], None]) -> None:
        self._folder = folder
        self._on_round = on_round
        self._count = len(folder.records())
        self._size_bytes = -1

    def look(self) -> None:
        """Tell of those that are new."""
        file = self._folder.path / "rounds.jsonl"
        size_bytes = file.stat().st_size if file.exists() else 0
        if size_bytes == self._size_bytes:
            return
        self._size_bytes = size_bytes
        records = self._folder.records()
        # A run that is resumed may have lost rounds that its checkpoint did not know yet.
        for record in records[min(self._count, len(records)) :]:
            self._on_round(record)
        self._count = len(records)
