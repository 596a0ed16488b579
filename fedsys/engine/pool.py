"""Where simulated clients compute: in this process, or in persistent worker processes.

Each worker serves any client, and what a client does depends on its message and its state alone,
so results do not depend on how many workers there are. A client's ``context.state`` travels with
its message, as it does in a real SuperNode.
"""

import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

from flwr.app import Message

from fedsys.engine.crew import Crew
from fedsys.engine.serving import Answer, Call, Order, Service
from fedsys.engine.shared import Parts, Segments, dump
from fedsys.engine.states import NodeStates
from fedsys.engine.tasks import Pumped, Reply, Task
from fedsys.engine.workforce import Hand, Hiring, Workforce
from fedsys.errors import FedsysError
from fedsys.middleware.brief import BlockSum, Briefs, message_of, summed
from fedsys.partial import Partial, blocks_of
from fedsys.types import NodeConfig, RunConfig

ATTEMPTS = 3
"""Times that a message is given to a worker process before it is blamed for their deaths."""
_SHORT_S = 0.02
"""A worker that needs no longer for a job is given the next one before it is done."""


class CallFailed(FedsysError):
    """A function called in a worker process raised; the message is its traceback."""


class Pool:
    """Runs a ClientApp, named ``module:attribute``, for messages to simulated nodes."""

    def __init__(
        self,
        app: str,
        *,
        workers: int,
        run_config: RunConfig,
        node_config_of: Callable[[int], NodeConfig],
        run_id: int = 1,
        warm_up: str | None = None,
        cohort: str | None = None,
        hiring: Hiring | None = None,
    ) -> None:
        """``workers`` = 1 computes in this process; more begin to start here, and are there after
        ``wait_ready``. ``hiring`` starts others than worker processes of this machine.

        ``warm_up`` is a ``module:function`` that is called with the run config before the first
        message, e.g. to load the data. ``cohort`` is one that serves several messages of one app
        together, called with messages, contexts, and whether and how their updates are to be
        summed; it gives what the app would have replied to each, or None to leave it to the app.

        """
        self._service = Service(
            app=app, run_id=run_id, run_config=dict(run_config), warm_up=warm_up, cohort=cohort
        )
        self._node_config_of = node_config_of
        self._states = NodeStates()
        self._latest: dict[int, Reply] = {}
        """Node to the reply that it still owes."""
        self._tasks: dict[int, Task] = {}
        self._queue: deque[int] = deque()
        self._made = 0
        self._segments = Segments()
        self._crew: Workforce | None = None
        if hiring is not None:
            self._crew = hiring(self._service)
        elif workers > 1:
            self._crew = Crew(self._service, workers)

    def __enter__(self) -> Self:
        self.wait_ready()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def wait_ready(self) -> None:
        """Return once every worker can be given messages; WorkerDied if they do not start.

        Raises also what ``warm_up`` raises; in worker processes, if it is one of our own errors.
        """
        if self._crew is not None:
            self._crew.wait_ready()
        else:
            self._service.prepare()

    def close(self) -> None:
        """End the workers; what nobody has asked for yet is lost."""
        if self._crew is not None:
            self._crew.close()
        self._segments.close()
        self._states.close()

    def submit(self, messages: Sequence[Message]) -> list[Future[Message]]:
        """Start computing; the futures of the replies, in order.

        A future's ``result`` is an error reply where the client raised. It is to be asked for in
        this thread: that is when messages are handed on, and given to another worker when theirs
        has died. A node's previous message is waited for first, because its state is needed.
        """
        replies: list[Reply] = []
        for part in _without_repetition(messages):
            for message in part:
                previous = self._latest.get(message.metadata.dst_node_id)
                if previous is not None:
                    previous.exception()
            asked = [Reply(self.pump, message) for message in part]
            self._latest |= {reply.node_id: reply for reply in asked}
            self._begin(
                [Task(replies=asked[block], together=True) for block in blocks_of(len(asked))]
            )
            replies += asked
        return [*replies]

    def call(self, name: str, *arguments: Any) -> Future[Any]:
        """Run ``module:function`` in a worker, before messages that wait; its result.

        It too is to be asked for in this thread; CallFailed where the function raised.
        """
        outcome: Pumped[Any] = Pumped(self.pump)
        self._begin([Task(call=Call(name, arguments), outcome=outcome)], first=True)
        return outcome

    def pump(self, timeout_s: float | None = None) -> None:
        """Take the answers that have come, waiting for one, and hand on what waits."""
        if self._crew is None:
            raise RuntimeError("nothing is being computed that could be waited for")
        answers, dead = self._crew.events(timeout_s)
        for worker, key, is_well, (elapsed_s, outcome) in answers:
            task = self._tasks.pop(key)
            self._release(task)
            worker.depth = 2 if elapsed_s < _SHORT_S else 1
            self._take(task, is_well, outcome)
        for worker in dead:
            self._crew.hire()
            self._again(worker)
        self._hand_out()

    def _begin(self, tasks: Sequence[Task], *, first: bool = False) -> None:
        for task in tasks:
            self._made += 1
            task.key = self._made
            self._tasks[task.key] = task
        if self._crew is None:
            for task in tasks:
                self._serve_here(self._tasks.pop(task.key))
            return
        parts = Parts()
        for task in tasks:
            task.body = dump(task.work(self._order), parts)
        segment, needless = self._segments.holding(parts.found, len(tasks))
        for one in needless:
            self._crew.drop(one)
        for task in tasks:
            task.segment, task.filling = segment, 0 if segment is None else segment.filling
        keys = [task.key for task in tasks]
        if first:
            self._queue.extendleft(reversed(keys))
        else:
            self._queue.extend(keys)
        self._hand_out()

    def _order(self, message: Message) -> Order:
        node_id = message.metadata.dst_node_id
        return Order(message, self._node_config_of(node_id), self._states.load(node_id))

    def _serve_here(self, task: Task) -> None:
        work = task.work(self._order)
        if task.call is None:
            self._take(task, True, self._service.serve(work))
            return
        try:
            self._take(task, True, self._service.serve(work))
        except Exception:
            self._take(task, False, traceback.format_exc())

    def _hand_out(self) -> None:
        """Give each worker a job, and those with short ones a second to go on with."""
        if self._crew is None:
            return
        for depth in (1, 2):
            for worker in self._crew.workers:
                if self._queue and len(worker.jobs) < min(depth, worker.depth):
                    task = self._tasks[self._queue.popleft()]
                    self._crew.post(worker, task.key, task.segment, task.filling, task.body)

    def _take(self, task: Task, is_well: bool, outcome: Any) -> None:
        if task.outcome is not None:
            if is_well:
                task.outcome.set_result(outcome)
            else:
                task.outcome.set_exception(CallFailed(outcome))
        elif not is_well:
            self._forget(task)
            for reply in task.replies:
                reply.set_exception(CallFailed(outcome))
        elif isinstance(outcome, Briefs):
            self._take_briefs(task, outcome)
        else:
            for reply, answer in zip(task.replies, outcome, strict=True):
                self._keep(reply, answer)

    def _take_briefs(self, task: Task, briefs: Briefs) -> None:
        block = None
        if briefs.partial is not None:
            members = sum(isinstance(brief.packet, int) for brief in briefs.replies)
            asked = [reply.message for reply in task.replies]
            block = BlockSum(briefs.partial, members, lambda places: self._sum_of(asked, places))
        for place, (reply, brief) in enumerate(zip(task.replies, briefs.replies, strict=True)):
            self._keep(reply, (message_of(brief, reply.message, block, place), None))

    def _sum_of(self, messages: Sequence[Message], places: Sequence[int]) -> Partial:
        """The sum of those of a block's messages; each client does again what it did before."""
        for _ in range(ATTEMPTS):  # a worker that dies of it leaves single messages, no sum
            replies = [Reply(self.pump, messages[place]) for place in places]
            self._begin([Task(replies=replies, together=True)])
            stand_in = summed(replies[0].result())
            if stand_in is not None:
                return stand_in.block.partial
        raise CallFailed("clients that were summed before cannot be summed again")

    def _again(self, worker: Hand) -> None:
        """Give a dead worker's jobs to others: the one it was at in single messages.

        So a message that kills its workers takes no other down with it more than once.
        """
        self._queue.extendleft(reversed(worker.jobs[1:]))
        for key in worker.jobs[:1]:
            task = self._tasks.pop(key)
            self._release(task)
            task.attempts += 1
            if task.attempts < ATTEMPTS:
                self._begin(task.singles(), first=True)
            else:
                task.give_up(f"worker processes died {ATTEMPTS} times")
                self._forget(task)

    def _release(self, task: Task) -> None:
        if task.segment is not None and self._crew is not None:
            needless = self._segments.done(task.segment)
            if needless is not None:
                self._crew.drop(needless)
            task.segment = None

    def _forget(self, task: Task) -> None:
        for reply in task.replies:
            if self._latest.get(reply.node_id) is reply:
                del self._latest[reply.node_id]

    def _keep(self, reply: Reply, answer: Answer) -> None:
        """Store the node's state for its next message, and hand the reply over."""
        message, state = answer
        if self._latest.get(reply.node_id) is reply:
            del self._latest[reply.node_id]
        if state is not None:
            self._states.save(reply.node_id, state)
        reply.set_result(message)


def _without_repetition(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """Runs of messages in which no node has two."""
    run: dict[int, Message] = {}
    for message in messages:
        node_id = message.metadata.dst_node_id
        if node_id in run:
            yield list(run.values())
            run = {}
        run[node_id] = message
    if run:
        yield list(run.values())
