"""Cells of a comparison on all cores: one process a core, one thread a process.

A cell that fails does not stop the others, and a process that dies takes only its own cell along.
"""

import multiprocessing
import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path

from fedsys.cli.cells import Cell
from fedsys.cli.execution import Stop, execute
from fedsys.errors import FedsysError

Work = Callable[[Cell], str]
"""Runs a cell; returns what went wrong, empty when nothing did."""

_POLL_S = 0.25
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

_stop_event: Event | None = None
"""In a worker process: set by the parent when the comparison is to stop."""


def run_cells(
    cells: Sequence[Cell],
    work: Work,
    start_pool: Callable[[], Executor],
    *,
    workers: int,
    on_tick: Callable[[list[Cell]], None],
    on_done: Callable[[Cell, str], None],
    stop: Stop,
) -> dict[Path, str]:
    """Run all cells, the longest first, ``workers`` at a time; returns the faults by folder.

    After ``stop()`` no further cell starts, and running ones are waited for; KeyboardInterrupt
    ends them where they are.
    """
    faults: dict[Path, str] = {}

    def finish(cell: Cell, fault: str) -> None:
        if fault:
            faults[cell.path] = fault
        on_done(cell, fault)

    def drain(queue: deque[Cell], width: int) -> list[Cell]:
        with start_pool() as pool:
            try:
                return _drain(pool, work, queue, width, finish, on_tick, stop)
            except KeyboardInterrupt:
                # The end of the block waits for all that runs, which may take minutes.
                for process in multiprocessing.active_children():
                    process.terminate()
                raise

    queue = deque(sorted(cells, key=lambda cell: cell.expected_cost, reverse=True))
    suspects: list[Cell] = []
    while queue and not stop():
        suspects += drain(queue, workers)
    for suspect in suspects:
        # All that ran beside the one that died are suspects; alone, it is known who is to blame.
        if not stop() and drain(deque([suspect]), 1):
            finish(suspect, "its process died (killed, or out of memory)")
    return faults


def _drain(
    pool: Executor,
    work: Work,
    queue: deque[Cell],
    width: int,
    finish: Callable[[Cell, str], None],
    on_tick: Callable[[list[Cell]], None],
    stop: Stop,
) -> list[Cell]:
    """Work the queue off; when a process dies, stop and return the cells that were running."""
    running: dict[Future[str], Cell] = {}
    while True:
        while queue and len(running) < width and not stop():
            cell = queue.popleft()
            try:
                running[pool.submit(work, cell)] = cell
            except BrokenProcessPool:
                return [cell, *running.values()]
        if not running:
            return []
        for future in wait(running, _POLL_S, FIRST_COMPLETED).done:
            error = future.exception()
            if isinstance(error, BrokenProcessPool):
                return list(running.values())
            finish(running.pop(future), future.result() if error is None else _first_line(error))
        on_tick(list(running.values()))


def run_cell(cell: Cell) -> str:
    """Run ``cell`` in this process; a fault's traceback goes into its folder."""
    from fedsys.cli.run import run_experiment

    try:
        execute(cell.experiment, cell.path, run_experiment, resume=True, stop=_asked_to_stop)
    except Exception as error:
        if not isinstance(error, FedsysError) and cell.path.is_dir():
            (cell.path / "error.txt").write_text(traceback.format_exc(), encoding="utf-8")
            return f"{_first_line(error)} (see {cell.path / 'error.txt'})"
        return _first_line(error)
    (cell.path / "error.txt").unlink(missing_ok=True)
    return ""


@contextmanager
def process_pools(workers: int, stop: Event) -> Iterator[Callable[[], Executor]]:
    """How to start a pool of single-threaded processes that heed ``stop``.

    The numerical libraries read their number of threads when a process imports them, so it is set
    in the environment that the processes inherit.
    """
    before = {name: os.environ.get(name) for name in _THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
    context = multiprocessing.get_context("spawn")
    try:
        yield lambda: ProcessPoolExecutor(workers, context, _enter_worker, (stop,))
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _enter_worker(stop: Event) -> None:
    """Leave Ctrl-C, which a terminal sends to every process, to the parent, and end with it."""
    global _stop_event
    _stop_event = stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def end_with_parent() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)  # else it would train on, beside whoever is started again

    threading.Thread(target=end_with_parent, daemon=True).start()


def _asked_to_stop() -> bool:
    return _stop_event is not None and _stop_event.is_set()


def _first_line(error: BaseException) -> str:
    text = str(error).strip().partition("\n")[0]
    return text if isinstance(error, FedsysError) else f"{type(error).__name__}: {text}"
