"""Heartbeats are sent when nothing else tells the server that a device is there, and only then."""

from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from fedsys.deploy.quiet import HEARD_S, QUESTION_S, TRANSFER_S, quiet

URL = "https://localhost/v1/fleet/x"


class Clock:
    now = 0.0

    def now_s(self):
        return self.now


@dataclass
class Context:
    rpc_method: str
    request: Any = field(default_factory=lambda: httpx.Client().build_request("POST", URL))


class Signing:
    """Stands for Flower's interceptor."""

    def __init__(self, key):
        self.key = key

    def intercept(self, context, call_next):
        return call_next(context)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def send(clock):
    """Sends a request; whether it went out."""
    interceptor = quiet(Signing, lambda request: httpx.Response(200), clock)("key")

    def send(method, status=200, meanwhile=lambda: None):
        went = []

        def network(context):
            went.append(context)
            meanwhile()
            return httpx.Response(status)

        interceptor.intercept(Context(f"/flwr.proto.Fleet/{method}"), network)
        return bool(went)

    return send


def test_the_first_heartbeat_is_sent_and_others_after_a_while_of_silence(send, clock):
    assert send("SendNodeHeartbeat")
    assert not send("SendNodeHeartbeat")
    clock.now += HEARD_S
    assert send("SendNodeHeartbeat")


def test_no_heartbeat_beside_an_upload(send, clock):
    for _ in range(10):
        clock.now += 15
        assert send("PushObject")
        assert not send("SendNodeHeartbeat")


def test_no_heartbeat_while_the_server_keeps_a_question(send, clock):
    sent = []

    def wait():
        clock.now += 24
        sent.append(send("SendNodeHeartbeat"))

    send("PullMessages", meanwhile=wait)

    assert sent == [False]


def test_what_the_server_refused_does_not_count(send):
    send("PushObject", status=503)

    assert send("SendNodeHeartbeat")


def test_a_question_is_waited_for_longer_than_the_server_keeps_it(send):
    from fedsys.deploy.gate import HOLD_S

    assert waited_for("PullMessages") == QUESTION_S > HOLD_S


def test_a_piece_is_waited_for_as_long_as_a_link_may_fade():
    from fedsys.deploy.pace import CHUNK_S

    assert waited_for("PushObject") == waited_for("PullObject") == TRANSFER_S > 8 * CHUNK_S
    assert waited_for("ActivateNode") == 5.0  # the client's own


def waited_for(method):
    context = Context(f"/flwr.proto.Fleet/{method}")
    interceptor = quiet(Signing, None, Clock())("key")
    interceptor.intercept(context, lambda context: httpx.Response(200))
    return context.request.extensions["timeout"]["read"]
