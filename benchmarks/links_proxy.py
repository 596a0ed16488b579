"""Virtual time without TCP, and recorded traces, against real traffic through the shaping proxy."""

import asyncio
import contextlib
import statistics
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial

from benchmarks.links_cells import Cell, Row, compared
from benchmarks.links_recorded import SECTION as RECORDED
from benchmarks.links_recorded import Recording, recordings
from netem.link import Link, Way
from netem.proxy.address import Address
from netem.proxy.server import NodePort, ShapingProxy
from netem.spec import link_from_text
from netem.transfer import plan_transfer

SECTION = "proxy"
WORKERS = 3
BOUND = 0.02
REPLAY_BOUND = 0.03
REPEATS = 3
_REPLAY_S, _QUICK_REPLAY_S = 30.0, 6.0
_QUICK_REPLAYS = ("mahimahi-Verizon-LTE-short.up", "mit-cooked_3gp-norway_bus_1.txt")
_MIN_REPLAY_BYTES = 200 * 1448
"""A recording that lets less pass in this time is no measure of a few percent."""
_CHUNK_BYTES = 1 << 16
_HEAD_BYTES = 9
"""What every request begins with: its direction and its size."""


@dataclass(frozen=True, slots=True)
class Case:
    """Transfers of one size over one link, without TCP's own behaviour."""

    link_text: str
    way: Way
    size_bytes: int
    seconds: float
    """How long one takes, about."""
    quick: bool = False

    @property
    def name(self) -> str:
        """For people, and the key under which its figures are kept."""
        return f"{self.link_text}, {self.size_bytes // 1000} kB {self.way}"

    def link(self) -> Link:
        """The link at both levels: no TCP, no TLS, and no jitter, which they draw differently."""
        inside = self.link_text.removesuffix(")")
        more = "tcp=none, tls=false, jitter_ms=0)"
        return link_from_text(f"{inside}{', ' if '(' in inside else '('}{more}", 1, 1)


def _even(mbps: float, delay_ms: float, more: str = "") -> str:
    return f"constant(up_bps={mbps * 1e6:g}, down_bps={mbps * 1e6:g}, delay_ms={delay_ms:g}{more})"


CASES = (
    Case(_even(0.064, 0), "up", 40_000, 5.2),
    Case(_even(1, 50), "up", 100_000, 1.0, quick=True),
    Case(_even(1, 50), "down", 500_000, 4.3),
    Case(_even(5, 25), "up", 1_000_000, 1.8, quick=True),
    Case(_even(5, 25), "down", 1_000_000, 1.8, quick=True),
    Case(_even(10, 100), "up", 1_000_000, 1.1),
    Case(_even(10, 100), "down", 5_000_000, 4.4),
    Case(_even(50, 10), "up", 12_500_000, 2.1),
    Case(_even(50, 10), "down", 12_500_000, 2.1),
    Case(_even(2, 20, ", outages=[[1, 3], [4.5, 5]]"), "up", 800_000, 6.0),
    Case("duty_cycle(up_bps=2e5, down_bps=2e5, duty_fraction=0.2, period_s=2)", "up", 30_000, 7.0),
    Case("2g", "up", 100_000, 5.0),
    Case("3g", "up", 500_000, 5.0),
    Case("3g", "down", 1_000_000, 5.0),
    Case("lte", "up", 1_500_000, 2.0, quick=True),
    Case("lte-driving", "up", 1_000_000, 5.0),
    Case("lte-driving", "down", 3_000_000, 6.0),
    Case("wifi-weak", "up", 1_000_000, 3.0),
    Case("adsl", "down", 2_000_000, 3.0),
    Case("satellite-geo", "down", 5_000_000, 3.0),
    Case("satellite-leo", "up", 5_000_000, 4.0),
)


def cells() -> list[Cell]:
    """One cell a case, and one a recording."""
    found = [
        Cell(
            row=Row(section=SECTION, name=case.name, bound=BOUND, measured=None, unit="s"),
            measure=partial(_measure, case),
            seconds=REPEATS * case.seconds,
            quick=case.quick,
        )
        for case in CASES
    ]
    return found


def replay_cells(quick: bool) -> tuple[list[Cell], list[str]]:
    """Recordings that the proxy replays, and names of those that are too slow for it."""
    seconds = _QUICK_REPLAY_S if quick else _REPLAY_S
    found, slow = [], []
    for recording in recordings():
        if quick and recording.path.name not in _QUICK_REPLAYS:
            continue
        if recording.bytes_by(seconds) < _MIN_REPLAY_BYTES:
            slow.append(recording.name)
            continue
        name = f"proxy, {recording.name}, {seconds:g} s"
        row = Row(section=RECORDED, name=name, bound=REPLAY_BOUND, measured=None, unit="bytes")
        measure = partial(_measure_replay, recording, seconds)
        found.append(Cell(row=row, measure=measure, seconds=seconds, quick=True))
    return found, slow


def _measure(case: Case, row: Row) -> Row:
    """The transfer whose error is the median; the link's rate is another for each of them."""
    pairs = asyncio.run(_transfers(case))
    error = statistics.median_low([found_s / expected_s for expected_s, found_s in pairs])
    expected_s, found_s = next(one for one in pairs if one[1] / one[0] == error)
    return compared(row, expected_s, found_s, REPEATS)


async def _transfers(case: Case) -> list[tuple[float, float]]:
    """Virtual and real seconds of some transfers in a row."""
    link = case.link()
    pairs = []
    async with _path(link) as (proxy, reader, writer):
        await _request(reader, writer, "up", 1)  # the way to the server is there by now
        for _ in range(REPEATS):
            begin_s = proxy.now_s
            await _request(reader, writer, case.way, case.size_bytes)
            pairs.append((_virtual_s(case, link, begin_s), proxy.now_s - begin_s))
    return pairs


def _virtual_s(case: Case, link: Link, begin_s: float) -> float:
    """Request up, then the answer down: the second begins when the first has arrived."""
    up_bytes, down_bytes = _HEAD_BYTES, 1
    if case.way == "up":
        up_bytes += case.size_bytes
    else:
        down_bytes = case.size_bytes
    now_s = plan_transfer(link, "up", up_bytes, begin_s, seed=1, flow=()).finish_s()
    return plan_transfer(link, "down", down_bytes, now_s, seed=1, flow=()).finish_s() - begin_s


@contextlib.asynccontextmanager
async def _path(
    link: Link,
) -> AsyncIterator[tuple[ShapingProxy, asyncio.StreamReader, asyncio.StreamWriter]]:
    """A client's connection to the server below, through a proxy with ``link``."""
    async with await asyncio.start_server(_serve, "127.0.0.1", 0) as server:
        upstream = Address("127.0.0.1", server.sockets[0].getsockname()[1])
        async with ShapingProxy(upstream, [NodePort(name="node", link=link)], seed=1) as proxy:
            reader, writer = await asyncio.open_connection(*proxy.ports["node"])
            try:
                yield proxy, reader, writer
            finally:
                writer.close()


async def _request(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way, size_bytes: int
) -> None:
    """Send or fetch so many bytes, to the last byte of the answer."""
    writer.write(way[:1].encode() + size_bytes.to_bytes(_HEAD_BYTES - 1, "big"))
    if way == "up":
        await _send(writer, size_bytes)
    await _receive(reader, size_bytes if way == "down" else 1)


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Take or give what each request asks for, until the client or the loop ends."""
    left = (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError)
    with contextlib.suppress(*left):
        while True:
            head = await reader.readexactly(_HEAD_BYTES)
            size_bytes = int.from_bytes(head[1:], "big")
            if head[:1] == b"u":
                await _receive(reader, size_bytes)
            await _send(writer, size_bytes if head[:1] == b"d" else 1)
    writer.close()


async def _send(writer: asyncio.StreamWriter, size_bytes: int) -> None:
    for at in range(0, size_bytes, _CHUNK_BYTES):
        writer.write(bytes(min(_CHUNK_BYTES, size_bytes - at)))
        await writer.drain()


async def _receive(reader: asyncio.StreamReader, size_bytes: int) -> None:
    while size_bytes > 0:
        got = await reader.read(min(size_bytes, _CHUNK_BYTES))
        if not got:
            raise ConnectionError("the other end is gone")
        size_bytes -= len(got)


def _measure_replay(recording: Recording, seconds: float, row: Row) -> Row:
    """Bytes through the proxy in so many seconds against the recording's own."""
    begin_s, end_s, got_bytes = asyncio.run(_replay(recording, seconds))
    expected_bytes = recording.bytes_by(end_s) - recording.bytes_by(begin_s)
    return compared(row, expected_bytes, float(got_bytes))


async def _replay(recording: Recording, seconds: float) -> tuple[float, float, int]:
    """Begin and end on the link's clock, and bytes that came out at the far end by then."""
    got_bytes = 0
    done: asyncio.Future[tuple[float, float]] = asyncio.get_running_loop().create_future()
    times = [0.0]

    async def far(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if recording.way == "down":
            await flood(writer)
        else:
            await count(reader)

    async def flood(writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while not done.done():
                writer.write(bytes(_CHUNK_BYTES))
                await writer.drain()

    async def count(reader: asyncio.StreamReader) -> None:
        nonlocal got_bytes
        while proxy.now_s < seconds:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, seconds - proxy.now_s)):
                    got_bytes += len(await reader.read(_CHUNK_BYTES))
        done.set_result((times[0], proxy.now_s))

    async with await asyncio.start_server(far, "127.0.0.1", 0) as server:
        upstream = Address("127.0.0.1", server.sockets[0].getsockname()[1])
        node = NodePort(name="node", link=recording.link())
        async with ShapingProxy(upstream, [node], seed=1) as proxy:
            reader, writer = await asyncio.open_connection(*proxy.ports["node"])
            times[0] = proxy.now_s
            near = asyncio.create_task(count(reader) if recording.way == "down" else flood(writer))
            begin_s, end_s = await done
            near.cancel()
            writer.close()
    return begin_s, end_s, got_bytes
