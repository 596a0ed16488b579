"""Where simulated clients compute: in this process, or in persistent worker processes.

Each worker has one thread and serves any client, so results do not depend on how many there are.
A client's ``context.state`` travels with its message, as it does in a real SuperNode.
"""

import importlib
import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from types import TracebackType
from typing import Self

from flwr.app import Context, Message, RecordDict
from threadpoolctl import threadpool_limits

from fedsys._flwr_private import set_task_identity
from fedsys.errors import FedsysError
from fedsys.types import NodeConfig, RunConfig

Handler = Callable[[Message, Context], Message]
Answer = tuple[Message, RecordDict]

RETRIES = 3
"""Times that a message is tried again after its worker process died."""


class WorkerDied(FedsysError):
    """A worker process was killed again and again while it served one message."""


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
        """
        self._app = app
        self._workers = workers
        self._run_config = run_config
        self._node_configs = node_configs
        self._run_id = run_id
        self._warm_up = warm_up
        self._states: dict[int, RecordDict] = {}
        self._executor = self._start() if workers > 1 else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=kind is None, cancel_futures=True)

    def submit(self, messages: Sequence[Message]) -> list[Future[Message]]:
        """Start computing; the futures of the replies, in order.

        A future whose worker process died is tried again by whoever asks for its result.
        """
        jobs = [(message, self._context(message)) for message in messages]
        if self._executor is None:
            return [self._inline(message, context) for message, context in jobs]
        return [_Retried(self, message, context) for message, context in jobs]

    def start_job(self, message: Message, context: Context) -> Future[Answer]:
        """Hand one message to a worker, replacing the workers if they are broken."""
        if self._executor is None:
            raise ValueError("this pool has no worker processes")
        try:
            return self._executor.submit(_serve, self._app, message, context)
        except BrokenProcessPool:
            self._executor.shutdown(wait=False)
            self._executor = self._start()
            return self._executor.submit(_serve, self._app, message, context)

    def keep(self, node_id: int, answer: Answer) -> Message:
        """Store the node's state for its next message; the reply."""
        reply, state = answer
        if state:
            self._states[node_id] = state
        return reply

    def _context(self, message: Message) -> Context:
        node_id = message.metadata.dst_node_id
        return Context(
            run_id=self._run_id,
            node_id=node_id,
            node_config=dict(self._node_configs[node_id]),
            state=self._states.get(node_id, RecordDict()),
            run_config=dict(self._run_config),
        )

    def _inline(self, message: Message, context: Context) -> Future[Message]:
        future: Future[Message] = Future()
        try:
            answer = _serve(self._app, message, context)
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(self.keep(context.node_id, answer))
        return future

    def _start(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            self._workers,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_prepare,
            initargs=(self._app, self._run_id, self._warm_up, dict(self._run_config)),
        )


class _Retried(Future[Message]):
    """The reply to one message; computed anew when the worker that had it dies."""

    def __init__(self, pool: Pool, message: Message, context: Context) -> None:
        super().__init__()
        self._pool, self._message, self._context = pool, message, context
        self._job = pool.start_job(message, context)

    def result(self, timeout: float | None = None) -> Message:
        """The reply, or whatever the client raised; WorkerDied after three dead workers."""
        for _ in range(RETRIES):
            try:
                return self._pool.keep(self._context.node_id, self._job.result(timeout))
            except BrokenProcessPool:
                self._job = self._pool.start_job(self._message, self._context)
        raise WorkerDied(f"worker processes died {RETRIES} times at node {self._context.node_id}")


def _prepare(app: str, run_id: int, warm_up: str | None, run_config: RunConfig) -> None:
    threadpool_limits(1)
    set_task_identity(run_id)
    _load(app)
    if warm_up is not None:
        _load(warm_up)(run_config)


def _serve(app: str, message: Message, context: Context) -> Answer:
    handler: Handler = _load(app)
    return handler(message, context), context.state


def _load(name: str) -> Callable[..., Message]:
    module, _, attribute = name.partition(":")
    loaded: Callable[..., Message] = getattr(importlib.import_module(module), attribute)
    return loaded
