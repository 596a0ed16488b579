"""Replies of a block of clients without Flower's objects, which are made where they are needed.

A reply made of records costs more to pickle, and to check again, than to make. Where the server
needs only the sum of the updates, a reply says how long its packet would have been and where the
sum is that it is part of.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from flwr.app import Array, ArrayRecord, Error, Message

from fedsys._flwr_private import CLIENT_APP_RAISED_EXCEPTION, array_of, records_of, reply_to
from fedsys.middleware.control import PACKET, STYPE
from fedsys.partial import Partial

Figures = dict[str, int | float | list[float]]


@dataclass(frozen=True, slots=True)
class Brief:
    """One reply."""

    packet: bytes | int = 0
    """The packet, or its length where the update is in the block's sum."""
    array_record: str = ""
    """Name of the record that holds it."""
    metrics: dict[str, Figures] = field(default_factory=dict)
    """Metric records by name, in the order of the reply."""
    error: str = ""
    """The traceback of a client that failed; it has nothing else then."""


@dataclass(frozen=True, slots=True)
class Briefs:
    """Replies to a block's messages, in order."""

    replies: Sequence[Brief]
    partial: Partial | None = None
    """The sum of the updates that are not in their packets, in order."""


@dataclass(frozen=True, slots=True)
class BlockSum:
    """The sum that several replies are part of."""

    partial: Partial
    members: int
    """Replies whose updates are in it."""
    only: Callable[[Sequence[int]], Partial]
    """Makes the sum anew from the members at these places alone."""


class Absent(bytes):
    """Stands for ``size_bytes`` that exist nowhere; only their number can be asked for."""

    size_bytes: int

    @classmethod
    def of(cls, size_bytes: int) -> "Absent":
        """As long as that, without taking the memory."""
        made = cls()
        made.size_bytes = size_bytes
        return made

    def __len__(self) -> int:
        return self.size_bytes


class Summed(Array):
    """An Array whose packet was never made, because its update is in a sum."""

    block: BlockSum
    place: int
    """Place of the reply's message in its block."""


def message_of(brief: Brief, request: Message, block: BlockSum | None, place: int) -> Message:
    """The reply to ``request`` that ``brief`` tells of."""
    if brief.error:
        return Message(Error(CLIENT_APP_RAISED_EXCEPTION, brief.error), reply_to=request)
    array: Array
    if isinstance(brief.packet, bytes):
        array = array_of(Array, brief.packet, STYPE)
    else:
        if block is None:
            raise ValueError("a reply without its packet, and without a sum that it is in")
        array = array_of(Summed, Absent.of(brief.packet), STYPE)
        array.block, array.place = block, place
    return reply_to(request, records_of({brief.array_record: {PACKET: array}}, brief.metrics))


def summed(reply: Message) -> Summed | None:
    """The stand-in for a reply's packet; None where the reply carries its update itself."""
    for record in reply.content.values() if reply.has_content() else ():
        for array in record.values() if isinstance(record, ArrayRecord) else ():
            if isinstance(array, Summed):
                return array
    return None
