"""A clock that stands until it is told to go on, streams that remember, and a server to talk to."""

import asyncio
import contextlib
import heapq
import itertools
import socket

import numpy as np
import pytest

from netem.link import Direction, Link
from netem.proxy.address import Address
from netem.proxy.server import NodePort, ShapingProxy
from netem.proxy.terms import Terms
from netem.proxy.way import Way
from netem.rate import RateCurve

HEAD_BYTES = 16


class VirtualTiming:
    """Timing whose time passes only in ``run_until``."""

    def __init__(self):
        self.time_s = 0.0
        self._calls = []
        self._numbers = itertools.count()

    def now_s(self):
        return self.time_s

    def call_at(self, when_s, call):
        entry = [when_s, next(self._numbers), call]
        heapq.heappush(self._calls, entry)
        return Cancelling(entry)

    def run_until(self, end_s, late_s=0.0):
        """Make all calls until ``end_s``, each ``late_s`` after it was due."""
        while self._calls and self._calls[0][0] + late_s <= end_s:
            when_s, _, call = heapq.heappop(self._calls)
            self.time_s = max(self.time_s, when_s + late_s)
            if call is not None:
                call()
        self.time_s = end_s


class Cancelling:
    def __init__(self, entry):
        self._entry = entry

    def cancel(self):
        self._entry[2] = None


class Recorder:
    """A stream that notes what arrives when, and what waits."""

    def __init__(self, timing):
        self.timing = timing
        self.dead = False
        self.waiting_bytes = 0
        self.dropped_bytes = 0
        self.got = bytearray()
        self.arrivals = []

    def left(self, size_bytes):
        self.waiting_bytes -= size_bytes

    def drop(self, size_bytes):
        self.dropped_bytes += size_bytes

    def deliver(self, data):
        self.got += data
        self.arrivals.append((self.timing.now_s(), len(data)))

    def mark(self):
        """An event that notes when it happened."""
        self.arrivals.append((self.timing.now_s(), 0))

    @property
    def end_s(self):
        return self.arrivals[-1][0]

    def send(self, way, data):
        self.left(-len(data))
        way.send(self, data, self.timing.now_s())


@pytest.fixture
def timing():
    return VirtualTiming()


@pytest.fixture
def record(timing):
    return lambda: Recorder(timing)


@pytest.fixture
def way_for(timing):
    def build(curve, *, bottleneck=None, seed=0, header_bytes=0, **terms):
        return Way(
            timing,
            Terms(curve=curve, header_bytes=header_bytes, **terms),
            np.random.default_rng(seed),
            bottleneck,
        )

    return build


@pytest.fixture
def fresh():
    """A timing, a way and a stream of their own at each call, as hypothesis needs them."""

    def build(curve, **terms):
        timing = VirtualTiming()
        terms = Terms(curve=curve, header_bytes=0, **terms)
        return timing, Way(timing, terms, np.random.default_rng(0)), Recorder(timing)

    return build


@pytest.fixture
def even():
    """A link with the same constant rate both ways; goodput, so that bytes are bits / 8."""

    def build(bps=float("inf"), **direction):
        one = Direction(curve=RateCurve.constant(bps), layer="goodput", **direction)
        return Link(up=one, down=one, tcp="none")

    return build


@contextlib.asynccontextmanager
async def exchange_server():
    """Takes requests (up bytes, down bytes), any number a connection; answers after the last byte.

    Yields an object with its address and what it has received.
    """

    class Server:
        received_bytes = 0
        ends = 0
        resets = 0

        async def handle(self, reader, writer):
            try:
                while head := await reader.read(HEAD_BYTES):
                    head += await reader.readexactly(HEAD_BYTES - len(head))
                    self.received_bytes += HEAD_BYTES
                    left = int.from_bytes(head[:8], "big")
                    while left:
                        data = await reader.read(min(left, 1 << 16))
                        if not data:
                            return
                        left -= len(data)
                        self.received_bytes += len(data)
                    writer.write(bytes(int.from_bytes(head[8:], "big")))
                    await writer.drain()
                self.ends += 1
            except (ConnectionError, asyncio.IncompleteReadError):
                self.resets += 1
            except asyncio.CancelledError:
                pass
            finally:
                writer.close()

    one = Server()
    async with await asyncio.start_server(one.handle, "127.0.0.1", 0) as listener:
        one.address = Address(*listener.sockets[0].getsockname()[:2])
        yield one


async def exchange(address, up_bytes, down_bytes=1):
    """Send and receive so much over a connection of its own; seconds from connect to last byte."""
    loop = asyncio.get_running_loop()
    start_s = loop.time()
    reader, writer = await asyncio.open_connection(*address)
    try:
        await request(reader, writer, up_bytes, down_bytes)
        return loop.time() - start_s
    finally:
        writer.close()


async def request(reader, writer, up_bytes, down_bytes=1):
    """One exchange over an open connection."""
    writer.write(up_bytes.to_bytes(8, "big") + down_bytes.to_bytes(8, "big"))
    writer.write(bytes(up_bytes))
    await writer.drain()
    await reader.readexactly(down_bytes)


@pytest.fixture
def net():
    """What a test over real sockets needs: ``serve``, ``exchange``, ``request``, ``proxy``."""

    class Net:
        serve = staticmethod(exchange_server)
        exchange = staticmethod(exchange)
        request = staticmethod(request)

        @staticmethod
        def proxy(upstream, *links, **options):
            nodes = [NodePort(name=str(n), link=link) for n, link in enumerate(links, 1)]
            return ShapingProxy(upstream, nodes, **options)

        @staticmethod
        def free_port():
            with socket.create_server(("127.0.0.1", 0)) as sock:
                return sock.getsockname()[1]

    return Net
