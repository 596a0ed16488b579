"""Every name of Flower that is not public API, in one place; checked against flwr 1.42.

A Flower process gets its identity and message ids from the SuperLink. An engine that runs
messages inside this process has to set them itself, and there is no public way to.
"""

import copy
from typing import Any

from flwr.app import Error, Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

__all__ = [
    "CLIENT_APP_RAISED_EXCEPTION",
    "NODE_UNAVAILABLE",
    "SERVER_NODE_ID",
    "Run",
    "copy_message",
    "error_instead",
    "set_task_identity",
    "stamp",
    "with_content",
]

# Not exported by flwr.app, though every reply to a ServerApp may carry them; nor is Run, which
# the signature of Grid names.
SERVER_NODE_ID: int = SUPERLINK_NODE_ID
NODE_UNAVAILABLE: int = ErrorCode.NODE_UNAVAILABLE
CLIENT_APP_RAISED_EXCEPTION: int = ErrorCode.CLIENT_APP_RAISED_EXCEPTION


def set_task_identity(run_id: int) -> None:
    """Say that this process is the server of run ``run_id``.

    ``Message(content, dst, type)`` reads these class attributes and raises RuntimeError outside a
    Flower process while they are unset. They belong to the whole process.
    """
    TaskIdentity.run_id = run_id
    TaskIdentity.node_id = SERVER_NODE_ID
    TaskIdentity.task_id = 1


def stamp(message: Message, *, run_id: int, src_node_id: int, message_id: str) -> None:
    """Set what the SuperLink would set; ``Metadata`` has no setters for these three."""
    message.metadata.__dict__.update(
        _run_id=run_id, _src_node_id=src_node_id, _message_id=message_id
    )


def copy_message(message: Message) -> Message:
    """A message whose records a client may change without another client seeing it.

    FedAvg puts one ``RecordDict`` into the messages of all clients, and ``copy.copy`` of a record
    shares its entries. The arrays themselves are shared: they are immutable bytes. ``metadata=``
    is the internal form of the constructor.
    """
    metadata = copy.copy(message.metadata)
    if message.has_error():
        return Message(error=message.error, metadata=metadata)  # type: ignore[call-overload,no-any-return]
    records: dict[str, Any] = {}
    for name, record in message.content.items():
        records[name] = type(record)()
        records[name].update(record)
    return Message(content=RecordDict(records), metadata=metadata)  # type: ignore[call-overload,no-any-return]


def with_content(message: Message, content: RecordDict) -> Message:
    """``message`` with other records; its metadata is shared, so ids set on one are on both."""
    return Message(content=content, metadata=message.metadata)  # type: ignore[call-overload,no-any-return]


def error_instead(reply: Message, reason: str) -> Message:
    """An error in place of ``reply``, from the same node and to the same message."""
    error = Error(CLIENT_APP_RAISED_EXCEPTION, reason)
    return Message(error=error, metadata=reply.metadata)  # type: ignore[call-overload,no-any-return]
