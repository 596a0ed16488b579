"""What messages become, in whichever process: the app's replies, one by one or many at once."""

import importlib
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import Context, Error, Message, RecordDict

from fedsys._flwr_private import (
    CLIENT_APP_RAISED_EXCEPTION,
    copy_message,
    message_with,
    set_task_identity,
)
from fedsys.engine.memory import give_back_freed_memory, keep_freed_memory
from fedsys.middleware.brief import Briefs
from fedsys.types import NodeConfig, RunConfig

Handler = Callable[[Message, Context], object]
CohortHandler = Callable[[Sequence[Message], Sequence[Context], bool | None], Briefs | None]
"""Serves several messages of one app together, as ``Pool`` describes."""
Answer = tuple[Message, RecordDict | None]
"""A reply and the node's state to keep; None keeps what there was."""


@dataclass(frozen=True, slots=True)
class Order:
    """One message to one node, and what the node knows."""

    message: Message
    node_config: NodeConfig
    state: RecordDict | None
    """None where the node has kept nothing so far."""


@dataclass(frozen=True, slots=True)
class Block:
    """Orders that one worker serves in one go, in order."""

    orders: Sequence[Order]
    together: bool
    """Whether the app's way of serving several at once may be used."""
    sums: bool | None = None
    """Whether the updates of a sum are divided by local steps first; None asks for no sum."""

    def __reduce__(self) -> Any:
        """Pickled by columns: messages of a round differ in little more than their node."""
        messages = [order.message for order in self.orders]
        if not all(message.has_content() for message in messages):
            return Block, (list(self.orders), self.together, self.sums)
        return _block_of, (
            _columns([message.metadata.__dict__ for message in messages]),
            [message.content for message in messages],
            _columns([order.node_config for order in self.orders]),
            [order.state for order in self.orders],
            self.together,
            self.sums,
        )


_told: set[str] = set()
"""Cohort handlers whose failure has been told of in this process."""


@dataclass(frozen=True, slots=True)
class Call:
    """Any other work: ``module:function`` with arguments that can be pickled."""

    name: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """An app by its name, with the settings that all its nodes share."""

    app: str
    run_id: int
    run_config: RunConfig
    warm_up: str | None = None
    cohort: str | None = None

    def prepare(self) -> None:
        """Import the app and call its ``warm_up``, once in a process; raises what they raise."""
        keep_freed_memory()
        set_task_identity(self.run_id)
        named(self.app)
        if self.cohort is not None:
            named(self.cohort)
        if self.warm_up is not None:
            named(self.warm_up)(self.run_config)
        give_back_freed_memory()

    def serve(self, task: Block | Call) -> Any:
        """A block gives Briefs or a list of Answers, a call what the function returns."""
        if isinstance(task, Call):
            return named(task.name)(*task.arguments)
        if task.together and self.cohort is not None:
            briefs = self._together(named(self.cohort), task)
            if briefs is not None:
                return briefs
        return [self._alone(order) for order in task.orders]

    def _together(self, handler: CohortHandler, block: Block) -> Briefs | None:
        """None where the app cannot, or fails: each client then has its own reply, or its own
        error.
        """
        messages = [order.message for order in block.orders]
        contexts = [self._context(order) for order in block.orders]
        try:
            return handler(messages, contexts, block.sums)
        except Exception as error:
            if self.cohort is not None and self.cohort not in _told:
                _told.add(self.cohort)
                text = f"fedsys: {self.cohort} failed, clients train one by one: {error!r}"
                print(text, file=sys.stderr, flush=True)
            return None

    def _alone(self, order: Order) -> Answer:
        """The app's reply; an error reply where it raised.

        The text of the exception is made here, since not every exception can be pickled.
        """
        handler: Handler = named(self.app)
        context = self._context(order)
        try:
            # Its own copy: a cohort's messages share their records.
            reply = handler(copy_message(order.message, own=True), context)
            if not isinstance(reply, Message):
                raise TypeError(f"the app returned a {type(reply).__name__}, not a Message")
            return reply, context.state
        except (Exception, SystemExit):
            error = Error(CLIENT_APP_RAISED_EXCEPTION, traceback.format_exc())
            return Message(error, reply_to=order.message), None

    def _context(self, order: Order) -> Context:
        return Context(
            run_id=self.run_id,
            node_id=order.message.metadata.dst_node_id,
            node_config=dict(order.node_config),
            state=RecordDict() if order.state is None else order.state,
            run_config=dict(self.run_config),
        )


def _block_of(
    metadata: "_Columns",
    contents: list[RecordDict],
    node_configs: "_Columns",
    states: list[RecordDict | None],
    together: bool,
    sums: bool | None,
) -> Block:
    messages = map(message_with, _rows(metadata), contents)
    orders = map(Order, messages, _rows(node_configs), states)
    return Block(list(orders), together, sums)


_Columns = tuple[int, dict[str, Any], dict[str, list[Any]], list[dict[str, Any]]]
"""Number of rows, what all have in common, the values of the rest; or the rows as they are."""


def _columns(rows: Sequence[dict[str, Any]]) -> _Columns:
    first = rows[0]
    if any(row.keys() != first.keys() for row in rows):
        return 0, {}, {}, list(rows)
    common: dict[str, Any] = {}
    own: dict[str, list[Any]] = {}
    for key, value in first.items():
        values = [row[key] for row in rows]
        if all(one is value or (one == value and type(one) is type(value)) for one in values):
            common[key] = value
        else:
            own[key] = values
    return len(rows), common, own, []


def _rows(columns: _Columns) -> list[dict[str, Any]]:
    count, common, own, rows = columns
    return rows or [common | {key: own[key][at] for key in own} for at in range(count)]


def named(name: str) -> Callable[..., Any]:
    """The object at ``module:attribute``, imported if need be."""
    module, _, attribute = name.partition(":")
    loaded: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return loaded
