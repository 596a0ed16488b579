"""Every name of Flower that is not public API, in one place; checked against flwr 1.42.

A Flower process gets its identity and message ids from the SuperLink. An engine that runs
messages inside this process has to set them itself, and there is no public way to.
"""

import copy
from collections.abc import Mapping
from typing import Any, TypeVar

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.app.metadata import Metadata
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

__all__ = [
    "CLIENT_APP_RAISED_EXCEPTION",
    "NODE_UNAVAILABLE",
    "SERVER_NODE_ID",
    "CommonContent",
    "Run",
    "array_of",
    "copy_message",
    "error_instead",
    "message_bytes",
    "message_from_bytes",
    "message_with",
    "records_of",
    "reply_to",
    "same_to",
    "set_task_identity",
    "stamp",
    "with_content",
]

# Not exported by flwr.app, though every reply to a ServerApp may carry them; nor is Run, which
# the signature of Grid names.
SERVER_NODE_ID: int = SUPERLINK_NODE_ID
NODE_UNAVAILABLE: int = ErrorCode.NODE_UNAVAILABLE
CLIENT_APP_RAISED_EXCEPTION: int = ErrorCode.CLIENT_APP_RAISED_EXCEPTION


_Record = TypeVar("_Record", ArrayRecord, ConfigRecord, MetricRecord, RecordDict)
_Array = TypeVar("_Array", bound=Array)


def set_task_identity(run_id: int) -> None:
    """Say that this process is the server of run ``run_id``.

    ``Message(content, dst, type)`` reads these class attributes and raises RuntimeError outside a
    Flower process while they are unset. They belong to the whole process, and one that Flower has
    started as this run's server keeps the number of its task.
    """
    if TaskIdentity._run_id != run_id or TaskIdentity._task_id is None:
        TaskIdentity.task_id = 1
    TaskIdentity.run_id = run_id
    TaskIdentity.node_id = SERVER_NODE_ID


def stamp(message: Message, *, run_id: int, src_node_id: int, message_id: str) -> None:
    """Set what the SuperLink would set; ``Metadata`` has no setters for these three."""
    message.metadata.__dict__.update(
        _run_id=run_id, _src_node_id=src_node_id, _message_id=message_id
    )


class CommonContent(RecordDict):
    """Records that the messages of a cohort share, and that nobody may change.

    Whoever hands such a message to an app gives it a copy of its own.
    """

    sums: bool | None = None
    """Whether the sum of the updates is all that is wanted of the replies: None says no, and
    True that each is to be divided by its local steps."""
    size_bytes: int | None = None
    """What the records take on the wire, for whoever has counted once."""


def copy_message(message: Message, *, own: bool = False) -> Message:
    """A message whose records a client may change without another client seeing it.

    FedAvg puts one ``RecordDict`` into the messages of all clients, and ``copy.copy`` of a record
    shares its entries. The arrays themselves are shared: they are immutable bytes. So is
    ``CommonContent`` unless the copy is to be the receiver's ``own``. ``metadata=`` is the
    internal form of the constructor.
    """
    if not message.has_error() and isinstance(message.content, CommonContent) and not own:
        return message_with(dict(message.metadata.__dict__), message.content)
    metadata = copy.copy(message.metadata)
    if message.has_error():
        return Message(error=message.error, metadata=metadata)  # type: ignore[call-overload,no-any-return]
    records = {name: record.copy() for name, record in message.content.items()}
    return Message(content=_unchecked(RecordDict, records), metadata=metadata)  # type: ignore[call-overload,no-any-return]


def records_of(
    arrays: Mapping[str, dict[str, Array]], metrics: Mapping[str, dict[str, Any]]
) -> RecordDict:
    """Content of array and metric records, whose values are known to be of the right types.

    Flower looks at every key and value; for replies made in this package that takes longer than
    all else that is done with them.
    """
    content = _unchecked(RecordDict, {})
    records = content.__dict__["_data"]
    for name, values in arrays.items():
        records[name] = _unchecked(ArrayRecord, values)
    for name, figures in metrics.items():
        records[name] = _unchecked(MetricRecord, figures)
    return content


def same_to(message: Message, node_id: int, content: RecordDict) -> Message:
    """What ``Message`` would make for another node and content, without its checks."""
    return message_with(message.metadata.__dict__ | {"_dst_node_id": node_id}, content)


def array_of(kind: type[_Array], data: bytes, stype: str) -> _Array:
    """A one-dimensional uint8 Array of ``data``, as its constructor would make it."""
    array = kind.__new__(kind)
    array.__dict__.update(dtype="uint8", shape=(len(data),), stype=stype, data=data)
    return array


def reply_to(request: Message, content: RecordDict) -> Message:
    """A reply to ``request`` as its receiver would make it, created when the request was."""
    asked = request.metadata.__dict__
    return message_with(
        asked
        | {
            "_message_id": "",
            "_src_node_id": asked["_dst_node_id"],
            "_dst_node_id": asked["_src_node_id"],
            "_src_task_id": asked["_dst_task_id"],
            "_dst_task_id": asked["_src_task_id"],
            "_reply_to_message_id": asked["_message_id"],
        },
        content,
    )


def _unchecked(kind: type[_Record], values: dict[str, Any]) -> _Record:
    made = kind.__new__(kind)
    made.__dict__.update(_CHECKS[kind])
    made.__dict__["_data"] = values
    return made


_CHECKS = {
    kind: {name: check for name, check in kind().__dict__.items() if name != "_data"}
    for kind in (ArrayRecord, ConfigRecord, MetricRecord, RecordDict)
}


def message_with(metadata: dict[str, Any], content: RecordDict) -> Message:
    """A message of these parts; ``metadata`` as its ``__dict__`` has it."""
    message, about = Message.__new__(Message), Metadata.__new__(Metadata)
    about.__dict__.update(metadata)
    message.__dict__.update(_metadata=about, _content=content, _error=None)
    return message


def with_content(message: Message, content: RecordDict) -> Message:
    """``message`` with other records; its metadata is shared, so ids set on one are on both."""
    return Message(content=content, metadata=message.metadata)  # type: ignore[call-overload,no-any-return]


def error_instead(reply: Message, reason: str) -> Message:
    """An error in place of ``reply``, from the same node and to the same message."""
    error = Error(CLIENT_APP_RAISED_EXCEPTION, reason)
    return Message(error=error, metadata=reply.metadata)  # type: ignore[call-overload,no-any-return]


def message_bytes(message: Message) -> bytes:
    """The whole message, for a checkpoint."""
    data: bytes = message_to_proto(message).SerializeToString(deterministic=True)
    return data


def message_from_bytes(data: bytes) -> Message:
    """What ``message_bytes`` was given; ValueError for what it did not make."""
    try:
        return message_from_proto(ProtoMessage.FromString(data))
    except Exception as error:  # protobuf's own, and whatever Flower makes of odd fields
        raise ValueError(f"not a message: {error}") from error
