"""Real sockets through the proxy: every byte, its time, its ends, TLS and HTTP inside."""

import asyncio
import contextlib
import datetime
import http.server
import os
import ssl
import threading
import urllib.request

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedsys.codecs._chain import parse
from fedsys.rng import rng_for
from fedsys.wire.packet import Kind, Packet, pack
from netem.link import Direction, Link
from netem.proxy.address import Address
from netem.proxy.server import NodePort, ShapingProxy
from netem.proxy.thread import ProxyThread
from netem.rate import RateCurve

pytestmark = pytest.mark.net

LATE_S = 0.35
"""How late a busy machine may make an exchange; the tight bars are in benchmarks.proxy."""


def test_both_directions_take_what_rate_and_delay_say_and_a_connection_a_round_trip(net, even):
    link = even(2e6, delay_ms=50)

    async def scenario():
        async with net.serve() as server, net.proxy(server.address, link) as proxy:
            up_s = await net.exchange(proxy.ports["1"], 125_000)
            down_s = await net.exchange(proxy.ports["1"], 1, 125_000)
            return up_s, down_s

    for took_s in asyncio.run(scenario()):
        assert 0.5 + 0.2 <= took_s <= 0.7 + LATE_S


def test_counters_say_what_the_sockets_carried(net, even):
    async def scenario():
        async with net.serve() as server, net.proxy(server.address, even(), even()) as proxy:
            await asyncio.gather(
                *(net.exchange(proxy.ports["1"], 10_000 * n, 30_000 + n) for n in range(1, 6))
            )
            await asyncio.sleep(0.1)
            return server.received_bytes, server.ends, proxy.count("1"), proxy.count("2")

    received_bytes, ends, found, idle = asyncio.run(scenario())
    assert found.up.in_bytes == found.up.out_bytes == received_bytes == 150_000 + 5 * 16
    assert found.down.in_bytes == found.down.out_bytes == 5 * 30_000 + 15
    assert (found.up.queued_bytes, found.up.dropped_bytes) == (0, 0)
    assert (found.total, found.open, found.refused, found.reset, ends) == (5, 0, 0, 0, 5)
    assert (idle.total, idle.up.in_bytes) == (0, 0)


def test_a_half_closed_connection_still_gets_its_answer(even, net):
    async def upper(reader, writer):
        writer.write((await reader.read()).upper())
        writer.write_eof()
        await reader.read()
        writer.close()

    async def scenario():
        async with await asyncio.start_server(upper, "127.0.0.1", 0) as server:
            address = Address(*server.sockets[0].getsockname())
            async with net.proxy(address, even(1e6, delay_ms=20)) as proxy:
                reader, writer = await asyncio.open_connection(*proxy.ports["1"])
                writer.write(b"weak " * 2000)
                writer.write_eof()
                answer = await reader.read()
                writer.close()
                await asyncio.sleep(0.1)
                return answer, proxy.count("1").open

    assert asyncio.run(scenario()) == (b"WEAK " * 2000, 0)


def test_connections_of_a_node_share_its_link_and_nodes_do_not(net, even):
    async def scenario():
        async with net.serve() as server, net.proxy(server.address, even(4e6), even(4e6)) as proxy:
            same, other = proxy.ports["1"], proxy.ports["2"]
            return await asyncio.gather(
                *(net.exchange(port, 125_000) for port in (same, same, same, other))
            )

    first_s, second_s, third_s, alone_s = asyncio.run(scenario())
    assert 0.25 <= alone_s <= 0.25 + LATE_S
    for took_s in (first_s, second_s, third_s):
        assert 0.55 <= took_s <= 0.75 + LATE_S


def test_the_servers_link_is_shared_by_nodes(net, even):
    async def scenario():
        async with (
            net.serve() as server,
            net.proxy(server.address, even(), even(), server_ingress_bps=4e6) as proxy,
        ):
            up = [net.exchange(proxy.ports[name], 125_000) for name in "12"]
            down = [net.exchange(proxy.ports[name], 1, 1_000_000) for name in "12"]
            return await asyncio.gather(*up), await asyncio.gather(*down)

    up_s, down_s = asyncio.run(scenario())
    assert all(0.45 <= took_s <= 0.5 + LATE_S for took_s in up_s)
    assert all(took_s <= LATE_S for took_s in down_s)


def test_a_sender_is_slowed_down_and_not_told_early(net, even):
    async def scenario():
        async with net.serve() as server, net.proxy(server.address, even(1e6)) as proxy:
            await net.exchange(proxy.ports["1"], 1)
            _, writer = await asyncio.open_connection(*proxy.ports["1"])
            writer.write(bytes(4_000_000))
            await asyncio.sleep(0.5)
            found = proxy.count("1").up
            writer.transport.abort()
            return found

    found = asyncio.run(scenario())
    assert found.in_bytes <= 0.5 * (1 + LATE_S) * 1e6 / 8 + 2 * 32_768
    assert found.queued_bytes <= 2 * 32_768


def test_tls_goes_through_untouched_and_pays_its_round_trips(tmp_path, net, even):
    server_tls, client_tls = contexts(tmp_path)

    async def echo(reader, writer):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            writer.write(await reader.readexactly(5000))
            await writer.drain()
            await reader.read()
        writer.close()

    async def scenario():
        listener = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=server_tls)
        async with listener:
            address = Address(*listener.sockets[0].getsockname())
            async with net.proxy(address, even(50e6, delay_ms=40)) as proxy:
                loop = asyncio.get_running_loop()
                start_s = loop.time()
                reader, writer = await asyncio.open_connection(
                    *proxy.ports["1"], ssl=client_tls, server_hostname="localhost"
                )
                shaken_s = loop.time() - start_s
                data = os.urandom(5000)
                writer.write(data)
                answer = await reader.readexactly(5000)
                writer.close()
                return data, answer, shaken_s

    data, answer, shaken_s = asyncio.run(scenario())
    assert answer == data
    assert 0.16 <= shaken_s <= 0.16 + LATE_S  # TCP one round trip, TLS 1.3 another


@pytest.mark.parametrize("spec", ["none", "int8", "topk(0.01)|int8"])
def test_a_codec_payload_over_http_costs_its_size_and_a_few_hundred_bytes(spec):
    n = 50_000
    x = rng_for(1, "payload").standard_normal(n, np.float32)
    packet = Packet(
        kind=Kind.UPDATE,
        spec=parse(spec).spec,
        schema_digest=b"8 bytes.",
        base_version=1,
        version=1,
        n=n,
        body=parse(spec).encode(x, ((n,),), rng_for(1)),
        raw=b"",
    )
    payload = pack(packet)
    with posts() as (upstream, received):
        link = Link(up=Direction(curve=RateCurve.constant(20e6)), down=fast(), tcp="none")
        nodes = [NodePort(name="device", link=link)]
        with ProxyThread(ShapingProxy(upstream, nodes)) as thread:
            url = f"http://{thread.call(lambda proxy: proxy.ports)['device']}/update"
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(urllib.request.Request(url, data=payload), timeout=20) as answer:
                assert answer.status == 200
            found = thread.call(lambda proxy: proxy.count("device"))

    assert received == [payload]
    assert len(payload) <= found.up.out_bytes <= len(payload) + 400
    assert found.down.out_bytes <= 400


def fast():
    return Direction(curve=RateCurve.constant(float("inf")))


@contextlib.contextmanager
def posts():
    """An HTTP server in a thread: its address, and the bodies that were posted to it."""
    received = []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            received.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield Address(*server.server_address), received
        finally:
            server.shutdown()
            thread.join()


def contexts(folder):
    """TLS for a server named localhost, and for a client that trusts it alone."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, key_pem = folder / "server.pem", folder / "server.key"
    pem.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_pem.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pem, key_pem)
    return server, ssl.create_default_context(cafile=str(pem))
