"""Cells of a comparison on all cores: one process a core, one thread a process.

A cell that fails does not stop the others, and a process that dies takes only its own cell along.
"""

import multiprocessing
import os
import signal
import traceback
from collections import Counter
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
_ATTEMPTS = 2
"""How often a cell may have been running when a process died; after that it is to blame."""
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

_stop_event: Event | None = None
"""In a worker process: set by the parent when the comparison is to stop."""


def run_cells(
    cells: Sequence[Cell],
    work: Work,
    start_pool: Callable[[], Executor],
    *,
    on_tick: Callable[[list[Cell]], None],
    on_done: Callable[[Cell, str], None],
    stop: Stop,
) -> dict[Path, str]:
    """Run all cells, the longest first; returns the faults by folder.

    After ``stop()`` no further cell starts, and running ones are waited for.
    """
    left = sorted(cells, key=lambda cell: cell.expected_cost, reverse=True)
    faults: dict[Path, str] = {}
    deaths: Counter[Path] = Counter()

    def finish(cell: Cell, fault: str) -> None:
        if fault:
            faults[cell.path] = fault
        on_done(cell, fault)

    while left and not stop():
        with start_pool() as pool:
            futures = {pool.submit(work, cell): cell for cell in left}
            left = _drain(futures, finish, on_tick, stop, deaths)
        for cell in [cell for cell in left if deaths[cell.path] >= _ATTEMPTS]:
            left.remove(cell)
            finish(cell, "its process died twice (killed, or out of memory)")
    return faults


def _drain(
    futures: dict[Future[str], Cell],
    finish: Callable[[Cell, str], None],
    on_tick: Callable[[list[Cell]], None],
    stop: Stop,
    deaths: Counter[Path],
) -> list[Cell]:
    """Wait for every future; returns the cells that a broken pool left undone."""
    pending, undone, running = set(futures), [], set[Path]()
    while pending:
        done, pending = wait(pending, _POLL_S, FIRST_COMPLETED)
        for future in done:
            cell = futures[future]
            if future.cancelled():
                continue
            if isinstance(error := future.exception(), BrokenProcessPool):
                deaths[cell.path] += cell.path in running
                undone.append(cell)
            else:
                finish(cell, future.result() if error is None else _first_line(error))
        running = {futures[future].path for future in pending if future.running()}
        on_tick([cell for cell in futures.values() if cell.path in running])
        if stop():
            for future in pending:
                future.cancel()
    return undone


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
    except KeyboardInterrupt:
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _enter_worker(stop: Event) -> None:
    """Leave Ctrl-C, which a terminal sends to every process, to the parent."""
    global _stop_event
    _stop_event = stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _asked_to_stop() -> bool:
    return _stop_event is not None and _stop_event.is_set()


def _first_line(error: BaseException) -> str:
    text = str(error).strip().partition("\n")[0]
    return text if isinstance(error, FedsysError) else f"{type(error).__name__}: {text}"
