"""The worker processes of one run, from their parent's side: jobs go out, answers and deaths come.

Knows nothing of what a job is. A dead worker is replaced by whoever asks for one; its jobs come
back to the caller.
"""

import multiprocessing
import os
import pickle
import selectors
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from typing import Any

from fedsys.engine.nursery import DROP, JOB, READY, SEGMENT, run_nursery
from fedsys.engine.serving import Service
from fedsys.engine.shared import Segment
from fedsys.errors import FedsysError

_ENVIRONMENT = {
    # Sums over several threads differ in the last bits from sums over one, and a process that has
    # started threads cannot be forked in good order.
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    # Nor one in which torch has asked CUDA itself whether there is a GPU.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}
"""What numeric libraries in the nursery and its workers read when they are loaded."""


class WorkerDied(FedsysError):
    """Worker processes do not start, or died again and again while they served one message."""


@dataclass(slots=True, eq=False)
class Worker:
    """One process, and the keys of the jobs that it has not answered, in order."""

    connection: Connection
    pid: int
    jobs: list[int] = field(default_factory=list)
    segments: set[int] = field(default_factory=set)
    """Keys of those that it has mapped."""
    depth: int = 1
    """Jobs that it is given at once."""


Event = tuple[Worker, int, bool, Any]
"""A worker, the key of a job, whether it went well, and the result or a traceback."""


class Crew:
    """``count`` workers, and the nursery that they come from."""

    def __init__(self, service: Service, count: int) -> None:
        """Begin to start; ``wait_ready`` says when that is done."""
        self._service = service
        self._count = count
        self.workers: list[Worker] = []
        self._selector = selectors.DefaultSelector()
        self._context = multiprocessing.get_context("spawn")
        self._open_nursery()

    def wait_ready(self) -> None:
        """Return once all workers are there; WorkerDied if they cannot be.

        Also raises what the preparation raised, if that is one of our own errors.
        """
        while len(self.workers) < self._count:
            self.hire()

    def hire(self) -> None:
        """One more worker; with a new nursery, if the old one is gone."""
        for last in (False, True):
            try:
                self._await_nursery()
                ours, theirs = self._context.Pipe()
                self._control.send("worker")
                send_handle(self._control, theirs.fileno(), self._nursery.pid)
                theirs.close()
                pid = self._control.recv()
            except (EOFError, OSError) as error:
                self._control.close()
                self._nursery.join()
                if last or not self._ready:
                    raise WorkerDied(
                        "worker processes do not start, the reason is printed above; a script "
                        "that uses more than one worker must be guarded by: if __name__ == "
                        "'__main__'"
                    ) from error
                self._open_nursery()
            else:
                self.workers.append(Worker(ours, pid))
                self._selector.register(ours, selectors.EVENT_READ, self.workers[-1])
                return

    def post(
        self, worker: Worker, key: int, segment: Segment | None, filling: int, body: bytes
    ) -> None:
        """Hand a job over. That the worker is dead shows in the next ``events``."""
        worker.jobs.append(key)
        try:
            if segment is not None and segment.key not in worker.segments:
                worker.connection.send_bytes(pickle.dumps((SEGMENT, segment.key)))
                send_handle(worker.connection, segment.fd, worker.pid)
                worker.segments.add(segment.key)
            where = 0 if segment is None else segment.key
            worker.connection.send_bytes(pickle.dumps((JOB, key, where, filling, body), 5))
        except OSError:
            return

    def drop(self, segment: Segment) -> None:
        """Tell everyone that this segment is used no more."""
        for worker in self.workers:
            if segment.key in worker.segments:
                worker.segments.discard(segment.key)
                try:
                    worker.connection.send_bytes(pickle.dumps((DROP, segment.key)))
                except OSError:
                    continue
        segment.close()

    def events(self, timeout_s: float | None) -> tuple[list[Event], list[Worker]]:
        """Answers that have come, waiting for the first one, and workers found dead.

        The dead are no longer among ``workers``.
        """
        answers: list[Event] = []
        dead: list[Worker] = []
        for ready, _ in self._selector.select(timeout_s):
            worker: Worker = ready.data
            try:
                key, (is_well, outcome) = pickle.loads(worker.connection.recv_bytes())
                worker.jobs.remove(key)
                answers.append((worker, key, is_well, outcome))
            except (EOFError, OSError, pickle.UnpicklingError):
                self._selector.unregister(worker.connection)
                worker.connection.close()
                self.workers.remove(worker)
                dead.append(worker)
        return answers, dead

    def close(self) -> None:
        """End all processes; what is still being computed is lost."""
        for worker in self.workers:
            if worker.jobs:
                os.kill(worker.pid, signal.SIGKILL)
        for worker in self.workers:
            _hang_up(worker.connection)
            worker.connection.close()
        self.workers.clear()
        self._selector.close()
        self._control.close()
        self._nursery.join()

    def _open_nursery(self) -> None:
        self._control, theirs = self._context.Pipe()
        self._ready = False
        self._nursery = self._context.Process(
            target=run_nursery, args=(theirs, self._service), daemon=True
        )
        with _without_interrupts(), _forkable():
            self._nursery.start()
        theirs.close()

    def _await_nursery(self) -> None:
        if not self._ready:
            answer = self._control.recv()
            if isinstance(answer, FedsysError):
                raise answer
            if answer != READY:
                raise EOFError
            self._ready = True


def _hang_up(connection: Connection) -> None:
    """Say that no more will come, and wait until the process at the other end is gone."""
    with socket.socket(fileno=os.dup(connection.fileno())) as end, suppress(OSError):
        end.shutdown(socket.SHUT_WR)
    with suppress(EOFError, OSError):
        while True:
            connection.recv_bytes()


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Processes started inside never see Ctrl-C.

    It reaches every process of the terminal; what it means is for the parent to say. A signal
    mask is inherited, so they have it from their first moment on.
    """
    resource_tracker.ensure_running()  # Its start would lift the mask.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _forkable() -> Iterator[None]:
    """Processes started inside have the environment that the nursery needs."""
    before = {name: os.environ.get(name) for name in _ENVIRONMENT}
    os.environ.update(_ENVIRONMENT)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
