"""An asynchronous strategy on the virtual-time grid: no round to wait for, no worker idle."""

import sys
import textwrap

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from fedsys.engine.pool import Pool
from tests.netem._grid import grid_of, plain_link

NODES = tuple(range(1, 9))
IN_FLIGHT, REPLIES, WORKERS, JOB_S = 6, 40, 2, 0.02
APP = f"""
    import os, time
    from flwr.app import Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def train(message, context):
        begin_s = time.monotonic()
        time.sleep({JOB_S})
        figures = {{"pid": os.getpid(), "begin_s": begin_s, "end_s": time.monotonic()}}
        return Message(RecordDict({{"metrics": MetricRecord(figures)}}), reply_to=message)
"""


@pytest.fixture
def pool(tmp_path, monkeypatch):
    """Workers that note when they were at work."""
    (tmp_path / "timed_app.py").write_text(textwrap.dedent(APP))
    monkeypatch.syspath_prepend(str(tmp_path))
    path = "timed_app:app"
    with Pool(path, workers=WORKERS, run_config={}, node_config_of=lambda node: {}) as pool:
        yield pool
    sys.modules.pop("timed_app", None)


def ask(node: int) -> Message:
    content = RecordDict({"arrays": ArrayRecord(), "config": ConfigRecord()})
    return Message(content, node, "train")


def replies_one_by_one(submit):
    """As FedBuff has it: whoever has answered is asked anew, and nobody waits for the others."""
    grid = grid_of(NODES, submit=submit, link_of=plain_link)
    grid.push_messages([ask(node) for node in NODES[:IN_FLIGHT]])
    found = []
    while len(found) < REPLIES:
        for reply in grid.receive_next():
            found.append((grid.now_s, reply.metadata.src_node_id, reply))
            grid.push_messages([ask(reply.metadata.src_node_id)])
    return found


def test_all_workers_are_busy_though_replies_come_one_by_one(pool):
    figures = [dict(reply.content["metrics"]) for _, _, reply in replies_one_by_one(pool.submit)]

    busy_s = sum(one["end_s"] - one["begin_s"] for one in figures)
    span_s = max(one["end_s"] for one in figures) - min(one["begin_s"] for one in figures)
    assert len({one["pid"] for one in figures}) == WORKERS
    # One worker at a time would be 0.5 of it.
    assert busy_s / (WORKERS * span_s) > 0.6


def test_the_order_of_replies_is_that_of_the_links_and_not_of_the_workers(pool):
    def order(submit):
        return [(now_s, node) for now_s, node, _ in replies_one_by_one(submit)]

    assert order(pool.submit) == order(pool.submit)
