"""Questions of Flower's own processes are kept until there is an answer."""

import asyncio
import threading
import time

import pytest
from flwr.proto.message_pb2 import PullObjectResponse

from fedsys.deploy import runtime
from fedsys.deploy.bell import Bell
from fedsys.deploy.runtime import DeviceTasks, News, ServerTasks
from fedsys.deploy.work import Work

ABSENT = PullObjectResponse(object_found=True).SerializeToString()
THERE = PullObjectResponse(
    object_found=True, object_available=True, object_content=b"piece"
).SerializeToString()
UNKNOWN = PullObjectResponse(object_found=False).SerializeToString()


class Flower:
    """Answers what it is told."""

    def __init__(self):
        self.body = b""
        self.asked = []

    async def __call__(self, scope, receive, send):
        self.asked.append((scope["path"], (await receive())["body"]))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": self.body})


async def asked(app, path, query=b""):
    """One request; (body of the answer, seconds)."""
    loop = asyncio.get_running_loop()
    begin_s, events = loop.time(), []

    async def receive():
        return {"type": "http.request", "body": b"which?", "more_body": False}

    async def send(event):
        events.append(event)

    scope = {"type": "http", "path": path, "query_string": query, "headers": []}
    await app(scope, receive, send)
    return events[-1]["body"], loop.time() - begin_s


@pytest.fixture
def flower():
    return Flower()


@pytest.fixture
def news():
    return News(Bell(), Bell(), Bell())


@pytest.fixture
def device(flower):
    bells = {name: Bell() for name in ("tasks", "pieces", "replies")}
    return DeviceTasks(flower, **bells), bells


def test_a_question_for_a_task_is_passed_on_when_there_may_be_one(flower, device, monkeypatch):
    monkeypatch.setattr(runtime, "TASK_HOLD_S", 30.0)
    app, bells = device

    async def all_of_it():
        _, first_s = await asked(app, runtime.ACQUIRE)
        threading.Timer(0.2, bells["tasks"].ring).start()
        _, second_s = await asked(app, runtime.ACQUIRE)
        bells["tasks"].ring()  # between two questions
        _, third_s = await asked(app, runtime.ACQUIRE)
        return first_s, second_s, third_s

    first_s, second_s, third_s = asyncio.run(all_of_it())

    assert first_s < 5
    assert 0.15 < second_s < 5
    assert third_s < 5
    assert len(flower.asked) == 3  # Flower takes the signature of each but once


def test_a_question_for_a_task_is_not_kept_for_ever(device, monkeypatch):
    monkeypatch.setattr(runtime, "TASK_HOLD_S", 0.2)
    app, _ = device

    async def twice():
        return [await asked(app, runtime.ACQUIRE) for _ in range(2)]

    assert 0.15 < asyncio.run(twice())[1][1] < 5


def test_a_piece_that_is_under_way_is_given_when_it_is_there(flower, device):
    app, bells = device
    flower.body = ABSENT

    def arrive():
        flower.body = THERE
        bells["pieces"].ring()

    threading.Timer(0.2, arrive).start()
    body, seconds = asyncio.run(asked(app, runtime.PULL))

    assert body == THERE
    assert 0.15 < seconds < runtime.HOLD_S
    assert flower.asked == [(runtime.PULL, b"which?")] * 2


def test_a_piece_that_does_not_come_or_is_not_known_is_said_so(flower, device, monkeypatch):
    monkeypatch.setattr(runtime, "HOLD_S", 0.2)
    app, _ = device
    flower.body = ABSENT
    assert asyncio.run(asked(app, runtime.PULL))[0] == ABSENT
    monkeypatch.setattr(runtime, "HOLD_S", 30.0)
    flower.body = UNKNOWN
    assert asyncio.run(asked(app, runtime.PULL))[0] == UNKNOWN


def test_the_supernode_is_told_of_a_tasks_reply(device):
    app, bells = device

    for path in (*runtime.PUSHES, "/v1/runtime/pull-messages"):
        asyncio.run(asked(app, path))

    assert bells["replies"].rung == len(runtime.PUSHES)


def test_what_the_serverapp_sends_is_news_and_an_order_may_be_a_task(flower, news):
    app = ServerTasks(flower, news)

    for path in (*runtime.PUSHES, "/v1/control/start-run", "/v1/runtime/get-nodes"):
        asyncio.run(asked(app, path))

    assert (news.work.rung, news.tasks.rung, news.replies.rung) == (2, 1, 0)


def test_the_serverapp_waits_for_replies_and_misses_none(flower, news):
    app = ServerTasks(flower, news)

    async def all_of_it():
        first = await asked(app, runtime.REPLIES, b"seen=-1&hold_ms=30000")
        threading.Timer(0.2, news.replies.ring).start()
        second = await asked(app, runtime.REPLIES, b"seen=0&hold_ms=30000")
        news.replies.ring()
        third = await asked(app, runtime.REPLIES, b"seen=1&hold_ms=30000")
        last = await asked(app, runtime.REPLIES, b"seen=2&hold_ms=200")
        return first, second, third, last

    first, second, third, last = asyncio.run(all_of_it())

    assert [body for body, _ in (first, second, third, last)] == [b"0", b"1", b"2", b"2"]
    assert 0.15 < second[1] < runtime.HOLD_S
    assert max(first[1], third[1]) < 1
    assert flower.asked == []


@pytest.mark.parametrize("query", [b"", b"seen=x&hold_ms=1", b"seen=1"])
def test_a_question_for_replies_that_makes_no_sense_is_refused(flower, news, query):
    app = ServerTasks(flower, news)

    assert asyncio.run(asked(app, runtime.REPLIES, query))[0] == b""


def test_one_look_is_for_all_who_wait_and_for_those_who_come_later():
    bell, there, looks = Bell(), set(), []

    def look():
        looks.append(time.monotonic())
        return set(there)

    async def all_of_it():
        work = Work(look, bell)
        waiting = [asyncio.create_task(work.wait(node, 20)) for node in range(100)]
        await asyncio.sleep(0.1)
        there.update(range(50))
        bell.ring()
        await asyncio.sleep(0.3)
        first = [one.done() and one.result() for one in waiting]
        there.update(range(101))
        late = asyncio.create_task(work.wait(100, 20))
        bell.ring()
        await asyncio.wait([*waiting, late])
        return first, late.result(), await work.wait(-1, 0.05)

    first, late, never = asyncio.run(all_of_it())

    assert first == [True] * 50 + [False] * 50
    assert late
    assert not never
    assert len(looks) < 20


def test_a_bell_wakes_threads_and_coroutines_of_any_loop():
    bell = Bell()
    woken = []
    threads = [
        threading.Thread(target=lambda: woken.append(bell.wait(0, 20))),
        threading.Thread(target=lambda: woken.append(asyncio.run(bell.heard(0, 20)))),
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    assert woken == []
    bell.ring()
    for thread in threads:
        thread.join(5)

    assert len(woken) == 2
