"""Where simulated clients compute: in this process, or in persistent worker processes.

Each worker serves any client, and what a client does depends on its message and its state alone,
so results do not depend on how many workers there are. A client's ``context.state`` travels with
its message, as it does in a real SuperNode.
"""

import copy
import importlib
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import resource_tracker
from types import TracebackType
from typing import Any, Self, TypeVar

from flwr.app import Context, Error, Message, RecordDict
from threadpoolctl import threadpool_limits

from fedsys._flwr_private import CLIENT_APP_RAISED_EXCEPTION, set_task_identity
from fedsys.errors import FedsysError
from fedsys.types import NodeConfig, RunConfig

Handler = Callable[[Message, Context], object]
T = TypeVar("T")
Answer = tuple[Message, RecordDict | None]

ATTEMPTS = 3
"""Times that a message is given to a worker process before it is blamed for their deaths."""


class WorkerDied(FedsysError):
    """Worker processes do not start, or died again and again while they served one message."""


class Pool:
    """Runs a ClientApp, named ``module:attribute``, for messages to simulated nodes."""

    def __init__(
        self,
        app: str,
        *,
        workers: int,
        run_config: RunConfig,
        node_configs: Mapping[int, NodeConfig],
        run_id: int = 1,
        warm_up: str | None = None,
    ) -> None:
        """``workers`` = 1 computes in this process. ``warm_up`` is a ``module:function`` that
        each worker calls once with the run config, e.g. to load the data.

        Raises what the import of the app raises, and WorkerDied when no worker comes up.
        """
        _load(app)
        self._app = app
        self._workers = workers
        self._run_config = run_config
        self._node_configs = node_configs
        self._run_id = run_id
        self._warm_up = warm_up
        self._states: dict[int, RecordDict] = {}
        self._latest: dict[int, _Reply] = {}
        self._executor = self._start() if workers > 1 else None
        if self._executor is not None:
            self._check_start(self._executor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._executor is not None:
            # Private, and gone after shutdown; Python 3.14 has terminate_workers for this.
            processes = list(self._executor._processes.values())
            self._executor.shutdown(wait=kind is None, cancel_futures=True)
            for process in processes if kind is not None else []:
                process.kill()
                process.join()

    def submit(self, messages: Sequence[Message]) -> list[Future[Message]]:
        """Start computing; the futures of the replies, in order.

        A future's ``result`` is an error reply where the client raised. It is to be asked for in
        this thread: that is when a message whose worker died is given to another one. A node's
        previous message is waited for first, because its state is needed.
        """
        if self._executor is None:
            return [self._inline(message) for message in messages]
        return [self._hand_over(message) for message in messages]

    def start_job(self, message: Message, context: Context) -> Future[Answer]:
        """Hand one message to a worker, replacing all workers if one of them has died."""
        if self._executor is None:
            raise ValueError("this pool has no worker processes")
        try:
            return _submit(self._executor, _serve, self._app, message, context)
        except BrokenProcessPool:
            self._executor.shutdown(wait=False)
            self._executor = self._start()
            return _submit(self._executor, _serve, self._app, message, context)

    def keep(self, node_id: int, answer: Answer) -> Message:
        """Store the node's state for its next message; the reply."""
        reply, state = answer
        if state is not None:
            self._states[node_id] = state
        return reply

    def _inline(self, message: Message) -> Future[Message]:
        context = self._context(message)
        future: Future[Message] = Future()
        future.set_result(self.keep(context.node_id, _serve(self._app, message, context)))
        return future

    def _hand_over(self, message: Message) -> Future[Message]:
        previous = self._latest.get(message.metadata.dst_node_id)
        if previous is not None:
            previous.exception()
        reply = _Reply(self, message, self._context(message))
        self._latest[message.metadata.dst_node_id] = reply
        return reply

    def _context(self, message: Message) -> Context:
        node_id = message.metadata.dst_node_id
        return Context(
            run_id=self._run_id,
            node_id=node_id,
            node_config=dict(self._node_configs[node_id]),
            # A copy also in this process: what a client changes before it raises is not kept.
            state=copy.deepcopy(self._states.get(node_id, RecordDict())),
            run_config=dict(self._run_config),
        )

    def _start(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            self._workers,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_prepare,
            initargs=(self._app, self._run_id, self._warm_up, dict(self._run_config)),
        )

    @staticmethod
    def _check_start(executor: ProcessPoolExecutor) -> None:
        """Find out now, not at every client's message, that workers cannot start."""
        try:
            _submit(executor, os.getpid).result()
        except BrokenProcessPool as error:
            raise WorkerDied(
                "worker processes do not start, the reason is printed above; a script that uses "
                "more than one worker must be guarded by: if __name__ == '__main__'"
            ) from error


class _Reply(Future[Message]):
    """The reply to one message, computed anew when the worker that had it dies.

    One at a time, as results are asked for: a message that kills its workers then takes no
    other message down with it more than once.
    """

    def __init__(self, pool: Pool, message: Message, context: Context) -> None:
        super().__init__()
        self._pool, self._message, self._context = pool, message, context
        self._job: Future[Answer] | None = pool.start_job(message, context)

    def result(self, timeout: float | None = None) -> Message:
        """The reply; WorkerDied after three dead workers."""
        self._settle(timeout)
        return super().result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What ``result`` would raise, or None."""
        self._settle(timeout)
        return super().exception()

    def _settle(self, timeout: float | None) -> None:
        node_id = self._context.node_id
        for attempt in range(ATTEMPTS):
            if self._job is None:
                return
            try:
                self.set_result(self._pool.keep(node_id, self._job.result(timeout)))
                self._job = None
            except BrokenProcessPool:
                if attempt + 1 < ATTEMPTS:
                    self._job = self._pool.start_job(self._message, self._context)
        if self._job is not None:
            self._job = None
            reason = f"worker processes died {ATTEMPTS} times at a message to node {node_id}"
            self.set_exception(WorkerDied(reason))


def _submit(executor: ProcessPoolExecutor, work: Callable[..., T], *arguments: object) -> Future[T]:
    """Submit, so that a worker started for it never sees Ctrl-C.

    Ctrl-C reaches every process of the terminal; what it means is for the parent to say. A signal
    mask is inherited, so workers have it from their first moment on.
    """
    resource_tracker.ensure_running()  # Its start would lift the mask.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return executor.submit(work, *arguments)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _prepare(app: str, run_id: int, warm_up: str | None, run_config: RunConfig) -> None:
    set_task_identity(run_id)
    _load(app)
    # Sums over several threads differ in the last bits from sums over one.
    threadpool_limits(1)
    if warm_up is not None:
        _load(warm_up)(run_config)


def _serve(app: str, message: Message, context: Context) -> Answer:
    """The reply and the state to keep; an error reply, and none, where the client raised.

    The text of the exception is made here, since not every exception can be pickled.
    """
    handler: Handler = _load(app)
    try:
        reply = handler(message, context)
        if not isinstance(reply, Message):
            raise TypeError(f"the app returned a {type(reply).__name__}, not a Message")
        return reply, context.state
    except (Exception, SystemExit):
        error = Error(CLIENT_APP_RAISED_EXCEPTION, traceback.format_exc())
        return Message(error, reply_to=message), None


def _load(name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    loaded: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return loaded
