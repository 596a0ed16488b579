"""What strangers get from a SuperLink's ports, asked with plain HTTP."""

import asyncio
import base64
import threading
import time

import httpx
import pytest
import uvicorn

from fedsys.deploy import gate
from fedsys.deploy.bell import Bell
from fedsys.deploy.children import free_port, listens
from fedsys.deploy.room import Room
from fedsys.deploy.runtime import News


class Flower:
    """Stands for Flower's app: answers what it is told, and notes who asked."""

    def __init__(self):
        self.asked = []
        self.status = 200
        self.bodies = {}
        self.alive, self.gone = [], []
        self.nodes = {b"enrolled": 7}

    def with_news(self):
        revoked = set() if self.nodes else {7}
        return revoked | ({7} if self.bodies.get(gate.PULL) else set())

    async def __call__(self, scope, receive, send):
        body = (await receive())["body"]
        self.asked.append((scope["path"], body))
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": self.bodies.get(scope["path"], b"")})


@pytest.fixture
def flower():
    return Flower()


@pytest.fixture
def serving():
    """Runs an ASGI app; the URL to reach it by."""
    servers = []

    def start(app):
        port = free_port()
        server = uvicorn.Server(
            uvicorn.Config(app, port=port, lifespan="off", log_level="error", ws="none")
        )
        thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
        thread.start()
        servers.append((server, thread))
        while not listens(port):
            time.sleep(0.01)
        return f"http://127.0.0.1:{port}"

    yield start
    for server, thread in servers:
        server.should_exit = server.force_exit = True
        thread.join()


@pytest.fixture
def said():
    return []


@pytest.fixture
def news():
    return News(Bell(), Bell(), Bell())


@pytest.fixture
def outside(flower, serving, said, news):
    devices = gate.Devices(
        lambda: dict(flower.nodes), flower.alive.append, flower.gone.append, flower.with_news
    )
    return serving(gate.FleetOnly(flower, devices, said.append, news))


ENROLLED = {"flwr-public-key": base64.b64encode(b"enrolled").decode()}


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/start-run",
        "/v1/control/register-node",
        "/v1/runtime/acquire-task",
        "/v1/fleet/register-node",
        "/v1/fleet/unregister-node",
        "/docs",
        "/",
        "/v1/fleet/../control/start-run",
        "//v1/fleet/pull-messages",
    ],
)
def test_the_devices_port_serves_devices_and_nothing_else(path, flower, outside, said):
    answer = httpx.post(httpx.URL(outside).copy_with(raw_path=path.encode()), headers=ENROLLED)

    assert answer.status_code == 404
    assert flower.asked == []
    assert len(said) == 1
    assert "refused: 127.0.0.1" in said[0]


def test_a_device_gets_through_with_its_body(flower, outside):
    flower.bodies["/v1/fleet/get-run"] = b"the run"

    answer = httpx.post(f"{outside}/v1/fleet/get-run", headers=ENROLLED, content=b"which run?")

    assert (answer.status_code, answer.content) == (200, b"the run")
    assert flower.asked == [("/v1/fleet/get-run", b"which run?")]


def test_a_stranger_is_refused_before_its_body_is_read_and_logged(flower, outside, said):
    url = f"{outside}/v1/fleet/activate-node"

    answers = [
        httpx.post(url, headers={"flwr-public-key": "QUJD"}, content=bytes(1000)),
        httpx.post(url, headers={"flwr-public-key": "?"}),
        httpx.post(url),
    ]

    assert [answer.status_code for answer in answers] == [401] * 3
    assert flower.asked == []
    # SHA-256 of ABC.
    assert said[0] == "refused: 127.0.0.1, key b5d4045c3f466fa9: unknown or revoked key"
    assert said[1:] == ["refused: 127.0.0.1, no key: no key"] * 2


def test_a_request_is_a_sign_of_life_and_a_goodbye_is_none(flower, outside):
    httpx.post(f"{outside}/v1/fleet/deactivate-node", headers=ENROLLED)
    assert flower.alive == []

    for _ in range(2):  # once is enough for a while
        httpx.post(f"{outside}/v1/fleet/push-object", headers=ENROLLED)
    assert flower.alive == [7]


def test_a_request_that_is_sent_again_is_refused_and_logged(flower, outside, said, monkeypatch):
    signed = ENROLLED | {"flwr-signature": "c2lnbmVk"}
    url = f"{outside}/v1/fleet/push-object"

    answers = [httpx.post(url, headers=signed, content=text) for text in (b"once", b"twice")]

    assert [answer.status_code for answer in answers] == [200, 401]
    assert [body for _, body in flower.asked] == [b"once"]
    assert "a request that was sent before" in said[0]
    monkeypatch.setattr(gate, "SEEN_S", 0.0)  # by now Flower refuses it for its age
    assert httpx.post(url, headers=signed).status_code == 200


def test_a_device_that_was_killed_may_come_back_when_it_has_been_silent(
    flower, outside, monkeypatch
):
    httpx.post(f"{outside}/v1/fleet/push-object", headers=ENROLLED)
    flower.status = 403  # Flower believes that it is there

    assert httpx.post(outside + gate.ACTIVATE, headers=ENROLLED).status_code == 403
    assert flower.gone == []
    monkeypatch.setattr(gate, "SILENT_S", 0.0)
    httpx.post(outside + gate.ACTIVATE, headers=ENROLLED)
    assert flower.gone == [7]
    flower.status = 401  # one who only claims to be that device
    httpx.post(outside + gate.ACTIVATE, headers=ENROLLED)
    assert flower.gone == [7]


def test_what_flower_refuses_is_logged_as_well(flower, outside, said):
    flower.status = 401

    httpx.post(f"{outside}/v1/fleet/get-run", headers=ENROLLED)

    assert flower.alive == []
    assert "a false signature, or a clock that is off" in said[0]


def test_a_question_for_work_is_kept_until_there_is_some(flower, outside, news):
    def give():
        time.sleep(0.6)
        flower.bodies[gate.PULL] = b"work"
        news.work.ring()

    threading.Thread(target=give).start()
    begin_s = time.monotonic()
    answer = httpx.post(outside + gate.PULL, headers=ENROLLED, content=b"me", timeout=30)

    assert answer.content == b"work"
    assert 0.5 < time.monotonic() - begin_s < gate.HOLD_S - 1
    assert len(flower.asked) == 2  # at once, and when there was some
    assert {body for _, body in flower.asked} == {b"me"}


def test_a_device_that_is_revoked_while_its_question_is_kept_is_told_at_once(flower, outside, said):
    def revoke():
        time.sleep(0.3)
        flower.nodes.clear()
        flower.status = 401

    threading.Thread(target=revoke).start()
    answer = httpx.post(outside + gate.PULL, headers=ENROLLED, timeout=10)

    assert answer.status_code == 401
    assert "refused" in said[0]


def test_work_that_nobody_told_of_is_found_as_well(flower, outside):
    threading.Timer(0.3, flower.bodies.update, [{gate.PULL: b"work"}]).start()

    assert httpx.post(outside + gate.PULL, headers=ENROLLED, timeout=10).content == b"work"


def test_a_device_that_is_enrolled_is_soon_none_that_is_unknown(flower, outside, monkeypatch):
    headers = {"flwr-public-key": base64.b64encode(b"new").decode()}
    url = f"{outside}/v1/fleet/get-run"

    assert httpx.post(url, headers=headers).status_code == 401
    flower.nodes[b"new"] = 8
    time.sleep(gate.UNKNOWN_S)
    assert httpx.post(url, headers=headers).status_code == 200


def test_what_a_device_has_sent_is_news_for_the_server(outside, news):
    for path in (*gate.PUSHES, "/v1/fleet/pull-object"):
        httpx.post(outside + path, headers=ENROLLED)

    assert (news.replies.rung, news.work.rung) == (2, 0)


def test_a_question_is_not_kept_longer_than_its_asker_waits(flower, outside, monkeypatch):
    monkeypatch.setattr(gate, "HOLD_S", 0.5)

    answer = httpx.post(outside + gate.PULL, headers=ENROLLED, timeout=10)

    assert (answer.status_code, answer.content) == (200, b"")


def test_work_is_not_fetched_for_a_device_that_has_gone(flower, outside):
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(outside + gate.PULL, headers=ENROLLED, timeout=0.3)
    time.sleep(0.5)
    flower.bodies[gate.PULL] = b"work"
    time.sleep(0.6)

    assert len(flower.asked) == 1


def test_work_that_got_lost_on_its_way_is_given_again_and_only_once_it_arrived(flower, outside):
    flower.bodies[gate.PULL] = b"work"
    with httpx.stream("POST", outside + gate.PULL, headers=ENROLLED):
        pass  # the answer is on its way, and nobody reads it
    flower.bodies[gate.PULL] = b""

    again = httpx.post(outside + gate.PULL, headers=ENROLLED, timeout=10)
    httpx.post(f"{outside}/v1/fleet/pull-object", headers=ENROLLED)
    with pytest.raises(httpx.ReadTimeout):  # there is no more, so the question is kept
        httpx.post(outside + gate.PULL, headers=ENROLLED, timeout=1)

    assert again.content == b"work"


def test_what_was_given_to_a_device_is_for_those_whom_flower_lets_in(flower, outside):
    flower.bodies[gate.PULL] = b"work"
    httpx.post(outside + gate.PULL, headers=ENROLLED)
    flower.status, flower.bodies[gate.PULL] = 401, b""

    assert httpx.post(outside + gate.PULL, headers=ENROLLED).content == b""


def test_a_body_without_end_is_cut_off(flower, outside, monkeypatch):
    monkeypatch.setattr(gate, "MAX_BODY_BYTES", 1000)

    answer = httpx.post(f"{outside}/v1/fleet/push-object", headers=ENROLLED, content=bytes(5000))

    assert answer.status_code == 413
    assert flower.asked == []


def test_what_is_read_at_once_is_limited_and_nobody_is_forgotten(flower, serving, said, news):
    devices = gate.Devices(lambda: dict(flower.nodes), print, print, set)
    app = gate.FleetOnly(flower, devices, said.append, news)
    app._memory = Room(1000)
    url = f"{serving(app)}/v1/fleet/push-object"

    def slowly():
        for _ in range(9):
            time.sleep(0.05)
            yield bytes(100)

    headers = ENROLLED | {"content-length": "900"}
    slow = threading.Thread(target=lambda: httpx.post(url, headers=headers, content=slowly()))
    slow.start()
    time.sleep(0.2)
    others = [
        threading.Thread(target=lambda: httpx.post(url, headers=ENROLLED, content=bytes(300)))
        for _ in range(10)
    ]
    for one in others:
        one.start()
    small = httpx.post(url, headers=ENROLLED, content=b"", timeout=10)
    for one in (slow, *others):
        one.join(10)

    sizes = [len(body) for _, body in flower.asked]
    assert sizes[0] == 900  # it came first
    assert sorted(sizes) == [0, *[300] * 10, 900]
    assert small.status_code == 200


def test_a_request_that_does_not_arrive_is_given_up(flower, outside, monkeypatch):
    monkeypatch.setattr(gate, "BODY_S", 0.2)

    def never():
        yield bytes(10)
        time.sleep(1)
        yield bytes(10)

    answer = httpx.post(
        f"{outside}/v1/fleet/push-object",
        headers=ENROLLED | {"content-length": "20"},
        content=never(),
    )

    assert answer.status_code == 408
    assert flower.asked == []


def test_orders_need_the_token_and_tasks_do_not(flower, serving, said):
    inside = serving(gate.AdminOnly(flower, "open sesame", said.append))
    url = f"{inside}/v1/control/start-run"

    given = [None, "Bearer open", "open sesame", "Bearer open sesame"]
    headers = [{} if text is None else {"authorization": text} for text in given]
    answers = [httpx.post(url, headers=one, content=b"").status_code for one in headers]

    assert answers == [401, 401, 401, 200]
    assert len(said) == 3
    assert httpx.post(f"{inside}/v1/runtime/acquire-task", content=b"").status_code == 200
