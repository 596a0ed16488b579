"""What runs in the other processes: a nursery that loads everything once, and workers it forks.

The nursery imports the app and its data, starts no thread, and then only forks. So all workers
share one copy of libraries and data, a new one is there in milliseconds, and each begins in the
same state, also the one that replaces a dead one.
"""

import contextlib
import os
import pickle
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle

from threadpoolctl import threadpool_limits

from fedsys.clock import WallClock
from fedsys.engine.garbage import rare_collections
from fedsys.engine.serving import Service
from fedsys.engine.shared import View, load
from fedsys.errors import FedsysError

READY, REFUSED = "ready", "refused"
JOB, SEGMENT, DROP = "job", "segment", "drop"


def run_nursery(control: Connection, service: Service) -> None:
    """Prepare, say so, and fork a worker for each connection that comes, until there are no more.

    What goes wrong in the preparation is reported, and printed here unless it is one of our own
    errors, which whoever asked for the workers is to be told.
    """
    try:
        service.prepare()
    except FedsysError as error:
        control.send(error)
        return
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        control.send(REFUSED)
        return
    # Sums over several threads differ in the last bits from sums over one.
    threadpool_limits(1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no child becomes a zombie
    with rare_collections():  # or the first one in a worker would copy every page
        _fork_workers(control, service)


def _fork_workers(control: Connection, service: Service) -> None:
    control.send(READY)
    while True:
        try:
            control.recv()
            fd = recv_handle(control)
        except (EOFError, OSError):
            return
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            control.close()
            _work(Connection(fd), service)
            os._exit(0)
        os.close(fd)
        control.send(pid)


def _work(connection: Connection, service: Service) -> None:
    """Serve jobs in order until the parent is gone."""
    views: dict[int, View] = {}
    with contextlib.suppress(EOFError, OSError):
        while True:
            kind, *what = pickle.loads(connection.recv_bytes())
            if kind == SEGMENT:
                fd = recv_handle(connection)
                views[what[0]] = View(fd)
                os.close(fd)
            elif kind == DROP:
                views.pop(what[0]).close()
            else:
                connection.send_bytes(_answer(service, views, *what))


def _answer(
    service: Service, views: dict[int, View], key: int, segment: int, filling: int, body: bytes
) -> bytes:
    view = views.get(segment)
    if view is not None:
        view.turn(filling)
    clock = WallClock()
    start_s = clock.now_s()
    try:
        outcome = service.serve(load(body, view))
        return pickle.dumps((key, (True, (clock.now_s() - start_s, outcome))), protocol=5)
    except Exception:
        return pickle.dumps((key, (False, (0.0, traceback.format_exc()))), protocol=5)
