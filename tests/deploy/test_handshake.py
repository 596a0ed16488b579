"""The right server, the wrong one, and none, told apart before Flower tries."""

import datetime
import socket
import ssl
import threading

import pytest

from fedsys.deploy.handshake import Meeting, greet, proxy_for
from fedsys.deploy.pki import make_authority, make_server_certificate
from fedsys.deploy.refusals import reason_for

NOW = datetime.datetime.now(datetime.UTC)


@pytest.fixture(scope="module")
def authority():
    return make_authority("test", NOW)


@pytest.fixture
def server(tmp_path):
    """Starts a TLS server with a certificate; its port."""
    listeners = []

    def start(certificate):
        (tmp_path / "c").write_bytes(certificate.certificate)
        (tmp_path / "k").write_bytes(certificate.key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "c", tmp_path / "k")
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def serve():
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                try:
                    context.wrap_socket(client, server_side=True).close()
                except OSError:
                    client.close()

        threading.Thread(target=serve, daemon=True).start()
        return listener.getsockname()[1]

    yield start
    for listener in listeners:
        listener.close()


def test_the_right_server_by_name_and_by_number(server, authority):
    port = server(make_server_certificate(authority, ["localhost", "127.0.0.1"], NOW))

    for host in ("localhost", "127.0.0.1"):
        assert greet(f"{host}:{port}", authority.certificate).meeting is Meeting.OK


def test_another_authority_is_final_and_says_so(server, authority):
    port = server(make_server_certificate(make_authority("x", NOW), ["127.0.0.1"], NOW))

    greeting = greet(f"127.0.0.1:{port}", authority.certificate)

    assert greeting.meeting is Meeting.NOT_TRUSTED
    assert "another CA" in greeting.reason


def test_a_certificate_for_other_names_is_final_and_says_so(server, authority):
    port = server(make_server_certificate(authority, ["other.example.org"], NOW))

    greeting = greet(f"127.0.0.1:{port}", authority.certificate)

    assert greeting.meeting is Meeting.NOT_TRUSTED
    assert "other names" in greeting.reason


@pytest.mark.parametrize("days", [-400, 400])
def test_a_certificate_out_of_its_time_points_at_the_clock(server, authority, days):
    when = NOW + datetime.timedelta(days=days)
    port = server(make_server_certificate(authority, ["127.0.0.1"], when, days=30))

    greeting = greet(f"127.0.0.1:{port}", authority.certificate)

    assert greeting.meeting is Meeting.NOT_TRUSTED
    assert "clock" in greeting.reason


def test_nobody_there_is_worth_another_try(authority):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

    assert greet(f"127.0.0.1:{port}", authority.certificate).meeting is Meeting.UNREACHABLE


def test_a_server_that_hangs_up_is_worth_another_try(authority):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=lambda: listener.accept()[0].close(), daemon=True).start()
        greeting = greet(f"127.0.0.1:{listener.getsockname()[1]}", authority.certificate)

    assert greeting.meeting is Meeting.UNREACHABLE


def test_the_environments_proxy_is_known(monkeypatch):
    monkeypatch.setenv("https_proxy", "http://10.0.0.1:3128")
    monkeypatch.setenv("no_proxy", "127.0.0.1,.example.org")

    assert proxy_for("fl.example.com:443") == "http://10.0.0.1:3128"
    assert proxy_for("127.0.0.1:443") == ""
    assert proxy_for("fl.example.org:443") == ""


@pytest.mark.parametrize(
    ("ahead_s", "words"),
    [(3600, "3600 s ahead"), (-4000, "4000 s behind"), (1, "enrol the device"), (None, "enrol")],
)
def test_a_refusal_tells_a_false_clock_from_a_false_key(ahead_s, words):
    now = datetime.datetime(2026, 5, 1, 12, tzinfo=datetime.UTC)
    date = None
    if ahead_s is not None:
        there = now - datetime.timedelta(seconds=ahead_s)
        date = there.strftime("%a, %d %b %Y %H:%M:%S GMT")

    assert words in reason_for(date, now)
