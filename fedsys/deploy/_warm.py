"""A process for each task, forked from one that has imported everything already.

Flower starts a new Python for each message, which then imports flwr and torch for seconds, and
gives it its token as an argument, where every user of the machine can read it.
"""

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
from pathlib import Path
from typing import Any

from fedsys.deploy._flower import module, notice_dead_tasks, pull_after
from fedsys.deploy._process import END_S, Settings, start, tell


def tasks(settings: Settings) -> None:
    """Flower's SuperExec, with its processes forked."""
    nursery = _Nursery(settings["preload"])
    superexec = module("flwr.supercore.superexec.run_superexec")
    superexec.get_executor = lambda *args, **kwargs: nursery
    superexec.run_superexec(
        runtime_api_address=settings["runtime_address"],
        insecure=settings["root_certificates"] is None,
        root_certificates_path=settings["root_certificates"],
        superexec_auth_secret=bytes.fromhex(settings["secret"]),
        parent_pid=os.getppid(),
    )


def nursery(settings: Settings) -> None:
    """Reads a task a line, and forks a process for each that has all modules already.

    A task says in the end what it had to import beside those, and the next ones have it.
    """
    for name in ("flwr.superlink.runtime", "flwr.supernode.runtime.run_clientapp"):
        module(name)
    pull_after(0.05, 0.25)  # where nobody keeps the question until the piece is there
    notice_dead_tasks("flwr.supercore.heartbeat")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for name in settings["preload"]:
        module(name)
    parent_pid = os.getppid()
    said, saying = os.pipe()
    with selectors.DefaultSelector() as inputs:
        inputs.register(0, selectors.EVENT_READ)
        inputs.register(said, selectors.EVENT_READ)
        rest = {0: b"", said: b""}
        while True:
            for key, _ in inputs.select():
                data = os.read(key.fd, 1 << 16)
                if not data:
                    return
                *lines, rest[key.fd] = (rest[key.fd] + data).split(b"\n")
                for line in lines:
                    if key.fd == said:
                        _import_again(line.decode())
                    elif os.fork() == 0:
                        _run_task(json.loads(line), parent_pid, saying)


class _Nursery:
    """Flower's executor, as the SuperExec uses it."""

    def __init__(self, preload: list[str]) -> None:
        self._preload = preload
        self._process = self._start()

    def get_eligible_capacity(self, supported: set[Any], **_: Any) -> tuple[set[Any], set[str]]:
        """Whatever comes."""
        return supported, set()

    def launch(self, spec: Any) -> Any:
        """Have the task's process forked."""
        from flwr.supercore.superexec.executor.types import LaunchResult

        task = {
            "kind": str(spec.task_type),
            "runtime_address": spec.runtime_api_address,
            "token": spec.token,
            "insecure": spec.insecure,
            "root_certificates": spec.root_certificates_path,
        }
        for _ in range(2):
            try:
                tell(self._process, task)
                return LaunchResult.accepted()
            except OSError:
                self._process = self._start()
        return LaunchResult.failed("the process that forks tasks cannot be reached")

    def reconcile(self) -> None:
        """Nothing to do between two looks."""

    def close(self) -> None:
        """End the process that forks."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _start(self) -> "subprocess.Popen[str]":
        return start("nursery", {"preload": self._preload})


def _import_again(name: str) -> None:
    """Import what a task has imported; it may be gone, and is not needed here."""
    with contextlib.suppress(Exception):
        module(name)


def _installed_since(before: set[str]) -> list[str]:
    """Modules imported since, of packages that are installed: an app's own may change."""
    places = tuple({sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib")})
    new = [name for name in sys.modules if name not in before and "\n" not in name]
    files = ((name, str(getattr(sys.modules[name], "__file__", None))) for name in new)
    return [name for name, file in files if file.startswith(places)]


def _run_task(task: dict[str, Any], parent_pid: int, saying: int) -> None:
    """Be the process of one task, and write to ``saying`` what it imported; does not return."""
    before = set(sys.modules)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _end_with(os.getppid())
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    certificates = task["root_certificates"] and Path(task["root_certificates"]).read_bytes()
    common = {
        "runtime_api_address": task["runtime_address"],
        "token": task["token"],
        "insecure": task["insecure"],
        "certificates": certificates or None,
        "parent_pid": parent_pid,
        "runtime_dependency_install": False,
    }
    code = 1
    try:
        if task["kind"] == "flwr-clientapp":
            from flwr.supernode.runtime.run_clientapp import run_clientapp

            run_clientapp(**common)
        elif task["kind"] == "flwr-serverapp":
            _run_serverapp(common)
        else:
            print(f"no task of kind {task['kind']} is run here", flush=True)
    except SystemExit as end:
        code = int(end.code or 0) if isinstance(end.code, int | None) else 1
    finally:
        if code:
            _forget_apps()
        sys.stdout.flush()
        sys.stderr.flush()
        for name in _installed_since(before):
            os.write(saying, name.encode() + b"\n")
        os._exit(code)


def _forget_apps() -> None:
    """Have the next task install its app anew.

    One that was written to a full disk is there in part, and Flower takes it for whole for ever.
    """
    if home := os.environ.get("FLWR_HOME"):
        shutil.rmtree(Path(home) / "apps", ignore_errors=True)


def _end_with(nursery_pid: int) -> None:
    """See to it that this process ends soon after the one that forked it.

    Flower asks it to end as well, but one that uploads its log to a server that is gone hangs.
    """

    def watch() -> None:
        pause = threading.Event()
        while os.getppid() == nursery_pid:
            pause.wait(0.5)
        pause.wait(END_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _run_serverapp(common: dict[str, Any]) -> None:
    from queue import Queue

    from flwr.supercore.logger import mirror_output_to_queue
    from flwr.superlink.runtime import run_serverapp

    log: Queue[str | None] = Queue()
    mirror_output_to_queue(log)
    run_serverapp(log_queue=log, **common)
