"""Which client a node of Flower's simulation plays: the message says so, not the node.

Flower numbers its simulated nodes at random and tells the server nothing about them, while draws,
parts of the data and what clients keep go by a client's number.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from threadpoolctl import threadpool_limits

from fedsys.errors import WireError
from fedsys.middleware.exchange import DURABLE_KEY, STATE_KEY

OUT = "out"
"""Run config key: the run folder, where the simulated clients keep what they need."""
_RECORD, _NODE = "fedsys.place", "node"
_SCRATCH = "clients"
_RUN_ID = 1
"""As in ``fedsys simulate``: a run that goes on has another number each time in Flower."""

CallNext = Callable[[Message, Context], Message]


def placed(content: RecordDict, node: int) -> RecordDict:
    """``content`` for client ``node``, counted from 1; the records themselves are shared."""
    return RecordDict({**dict(content.items()), _RECORD: ConfigRecord({_NODE: node})})


def place_mod(message: Message, context: Context, call_next: CallNext) -> Message:
    """Be the client that the message names; messages that name none pass through.

    A device has its own number and folder, and takes neither from a server.
    """
    if not message.has_content() or _RECORD not in message.content:
        return call_next(message, context)
    record, out = message.content[_RECORD], str(context.run_config.get(OUT, ""))
    node = record.get(_NODE) if isinstance(record, ConfigRecord) else None
    if STATE_KEY in context.node_config or not out or not isinstance(node, int) or node < 1:
        raise WireError("the message names a client to play, which only simulated nodes do")
    _one_thread()
    del message.content[_RECORD]
    config = {
        **context.node_config,
        "partition-id": node - 1,
        STATE_KEY: str(Path(out) / _SCRATCH),
        DURABLE_KEY: False,
        "threads": 1,
    }
    played = Context(_RUN_ID, node, config, context.state, context.run_config)
    return call_next(message, played)


@cache
def _one_thread() -> None:
    """Sums over several threads differ in the last bits from sums over one."""
    threadpool_limits(1)
