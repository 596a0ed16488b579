"""What the SuperLink's database says of devices, asked for many of them at once."""

import datetime
from collections.abc import Mapping
from typing import Any

from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL

from fedsys.deploy.gate import Devices

ENROLLED = "SELECT public_key, node_id FROM node WHERE status != 'unregistered'"
REVOKED = "SELECT node_id FROM node WHERE status = 'unregistered'"
WAITING = """
WITH RECURSIVE
waiting AS (
    SELECT message_id, dst_node_id FROM message_ins
    WHERE delivered_at = '' AND created_at + ttl > :now_s
),
tree(root, id) AS (
    SELECT root_object_id, root_object_id FROM object_push_session_roots
    WHERE root_object_id IN (SELECT message_id FROM waiting)
    UNION
    SELECT tree.root, child_id FROM tree JOIN object_children ON parent_id = tree.id
)
SELECT DISTINCT dst_node_id FROM waiting WHERE message_id NOT IN (
    SELECT root FROM tree JOIN objects ON object_id = tree.id WHERE is_available = 0
)
"""
"""Devices with a message of which all pieces are there: one that is told of it sooner asks for
those that are not, again and again. Flower's own way to ask also marks it as delivered."""


def devices_of(factory: Any) -> Devices:
    """Of a SuperLink, by Flower's factory of its state."""

    def enrolled() -> Mapping[bytes, int]:
        rows = factory.state().query(ENROLLED)
        return {bytes(row["public_key"]): _unsigned(row["node_id"]) for row in rows}

    def alive(node: int) -> None:
        factory.state().acknowledge_node_heartbeat(node, HEARTBEAT_DEFAULT_INTERVAL)

    def gone(node: int) -> None:
        factory.state().deactivate_node(node)

    def with_news() -> set[int]:
        state = factory.state()
        now_s = datetime.datetime.now(datetime.UTC).timestamp()
        found = [row["dst_node_id"] for row in state.query(WAITING, {"now_s": now_s})]
        return {_unsigned(node) for node in (*found, *_column(state.query(REVOKED)))}

    return Devices(enrolled, alive, gone, with_news)


def _column(rows: Any) -> list[int]:
    return [row["node_id"] for row in rows]


def _unsigned(number: int) -> int:
    """The database has signed numbers."""
    return int(number) % (1 << 64)
