"""Is the shaping proxy as exact, light and robust as claimed? ``python -m benchmarks.proxy``.

Prints one row for each bar: what was measured and what must be reached; ``--quick`` ends within
a minute. The proxy is a process of its own; time is taken at receipt of the reply. Exit status 1
when a bar is missed. Recorded traces are those in ../shared/traces, where they are.
"""

import asyncio
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks.bars import Bar, finish, parser_for
from benchmarks.provenance import provenance
from benchmarks.proxy_traffic import ProxyProcess, exchange, proxy_for, received_by
from netem.spec import link_from_text
from netem.tcp import PACKET_BYTES, SEGMENT_BYTES

TRACES = Path(__file__).parents[2] / "shared" / "traces"
MIN_PACKETS = 200
"""A recording that lets less pass in the time it is replayed is no measure of a few percent."""
LONG_MBPS = (0.064, 0.25, 1, 4, 10)
FAST_MBPS = ((100, 1.0), (50, 2.0), (100, 2.0))
QUICK_FAST = 1
FAULT_BYTES = 250_000


def even(mbps: float, delay_ms: float = 0) -> str:
    """A link with this rate of packets both ways and nothing else."""
    bps = f"{mbps * 1e6:g}"
    return f"constant(up_bps={bps}, down_bps={bps}, delay_ms={delay_ms:g}, tcp=none)"


def payload_bytes(mbps: float, seconds: float) -> int:
    """What passes such a link in this time, headers left aside."""
    return int(mbps * 1e6 / 8 * seconds * SEGMENT_BYTES / PACKET_BYTES)


async def both_ways(address: tuple[str, int], mbps: float, seconds: float) -> list[float]:
    """Relative errors of an upload and a download that should take ``seconds``.

    The request's head is a packet of its own, and so is the reply of one byte to an upload.
    """
    size, errors = payload_bytes(mbps, seconds), []
    for up_bytes, down_bytes in ((size, 1), (1, size)):
        extra_s = 8 * (16 + 1 + 2 * 52) / (mbps * 1e6)
        took_s = await exchange(address, up_bytes, down_bytes)
        errors.append(took_s / (seconds + extra_s) - 1)
    return errors


async def rate_rows(quick: bool) -> list[Bar]:
    """Time of single transfers from 64 kbit/s to 100 Mbit/s."""
    rows, repeats = [], 1 if quick else 5
    async with proxy_for([even(mbps) for mbps in LONG_MBPS]) as proxy:
        rounds = [
            await asyncio.gather(
                *(both_ways(*one, 4.0) for one in zip(proxy.ports, LONG_MBPS, strict=True))
            )
            for _ in range(repeats)
        ]
    for index, mbps in enumerate(LONG_MBPS):
        worst = max(
            abs(statistics.median_low(one[index][way] for one in rounds)) for way in range(2)
        )
        rows.append(Bar(f"{mbps:g} Mbit/s, 4 s: relative error of the time", 0.01, worst))
    fast = FAST_MBPS[:QUICK_FAST] if quick else FAST_MBPS
    async with proxy_for([even(mbps) for mbps, _ in fast]) as proxy:
        for address, (mbps, seconds) in zip(proxy.ports, fast, strict=True):
            found = [await both_ways(address, mbps, seconds) for _ in range(max(3, repeats))]
            worst = max(abs(statistics.median_low(one[way] for one in found)) for way in range(2))
            name = f"{mbps} Mbit/s, {seconds:g} s: relative error of the time"
            rows.append(Bar(name, 0.03 + 0.045 / seconds, worst))
    return rows


async def crowd_rows(quick: bool) -> list[Bar]:
    """Many nodes at once: the worst of them, and what the proxy costs."""
    rows = []
    for nodes, mbps, bound in ((100, 1, 0.02), (300, 1, None), (3, 100, None)):
        seconds = 10.0 if not quick else 2.5 if bound is None else 4.0
        async with proxy_for([even(mbps, 20)] * nodes) as proxy:
            size = payload_bytes(mbps, seconds)
            begin_s, cpu_s = time.perf_counter(), proxy.cpu_s()
            took_s = await asyncio.gather(*(exchange(port, size, 1) for port in proxy.ports))
            share = (proxy.cpu_s() - cpu_s) / (time.perf_counter() - begin_s)
        # Connecting costs a round trip, the transfer and its reply another.
        errors = [took / (seconds + 0.08) - 1 for took in took_s]
        if bound is not None:
            worst = max(map(abs, errors))
            rows.append(Bar(f"{nodes} x {mbps} Mbit/s at once: worst error", bound, worst))
        else:
            rows.append(Bar(f"{nodes} x {mbps} Mbit/s: share of a core", 0.5, share))
    return rows


async def trace_rows(quick: bool) -> list[Bar]:
    """All recordings at once: bytes received against the recording's own sum."""
    seconds = 12.0 if quick else 60.0
    paths = sorted(path for path in TRACES.glob("*") if path.suffix != ".md")
    links = [link_from_text(f"{path}(tcp=none)", 0, 1) for path in paths]
    rows = []
    async with proxy_for([f"{path}(tcp=none)" for path in paths]) as proxy:
        offset_s = await proxy.clock_offset_s()
        begin_s = time.perf_counter()
        found = await asyncio.gather(
            *(received_by(port, begin_s + seconds) for port in proxy.ports)
        )
    for path, link, got in zip(paths, links, found, strict=True):
        bits = link.down.curve.bits_between(begin_s + offset_s, begin_s + seconds + offset_s)
        size = PACKET_BYTES if link.down.layer == "ip" else SEGMENT_BYTES
        expected = bits / 8 * SEGMENT_BYTES / size
        if expected >= MIN_PACKETS * SEGMENT_BYTES:
            name = f"{path.name}, {seconds:g} s: bytes off the recording"
            rows.append(Bar(name, 0.03, abs(got / expected - 1)))
    return rows


Fault = Callable[[ProxyProcess, int], Awaitable[float]]


async def fault_rows(quick: bool) -> list[Bar]:
    """Each fault in the middle of a transfer; one more node goes on in its own time."""
    rows, seconds = [], 3.0 if quick else 10.0
    async with proxy_for([even(2)] * (len(FAULTS) + 1)) as proxy:
        other = asyncio.create_task(both_ways(proxy.ports[-1], 2, seconds / 2))
        faults = (fault(proxy, node) for node, (_, _, fault) in enumerate(FAULTS, 1))
        for (name, bound, _), measured in zip(FAULTS, await asyncio.gather(*faults), strict=True):
            rows.append(Bar(name, bound, measured))
        worst = max(map(abs, await other))
    bound = 0.03 + 0.045 / (seconds / 2)
    return [*rows, Bar("another node meanwhile: relative error of its time", bound, worst)]


async def _cut(proxy: ProxyProcess, node: int) -> float:
    transfer = asyncio.create_task(exchange(proxy.ports[node - 1], FAULT_BYTES, 1))
    await asyncio.sleep(0.4)
    await proxy.act(node, action="cut")
    begin_s = time.perf_counter()
    before = await proxy.count(node)
    await asyncio.sleep(1.0)
    moved = (await proxy.count(node))["up"]["out_bytes"] - before["up"]["out_bytes"]
    await proxy.act(node, action="heal")
    cut_s = time.perf_counter() - begin_s
    plain_s = 8 * FAULT_BYTES * PACKET_BYTES / SEGMENT_BYTES / 2e6
    return moved + abs(await transfer - cut_s - plain_s)


async def _reset(proxy: ProxyProcess, node: int) -> float:
    await proxy.act(node, action="reset", after_bytes=100_000)
    try:
        await exchange(proxy.ports[node - 1], FAULT_BYTES, 1)
    except ConnectionResetError:
        return abs((await proxy.count(node))["up"]["out_bytes"] - 100_000)
    return float("inf")


async def _half_open(proxy: ProxyProcess, node: int) -> float:
    transfer = asyncio.create_task(exchange(proxy.ports[node - 1], FAULT_BYTES, 1))
    await asyncio.sleep(0.4)
    await proxy.act(node, action="half-open")
    before = await proxy.count(node)
    await asyncio.wait([transfer], timeout=1.5)
    found = await proxy.count(node)
    silent = not transfer.done() and found["half_open"] == 1
    await proxy.act(node, action="reset")
    await asyncio.wait([transfer])
    told = isinstance(transfer.exception(), ConnectionResetError)
    moved = found["up"]["out_bytes"] - before["up"]["out_bytes"]
    return float(moved) if silent and told else float("inf")


async def _refuse(proxy: ProxyProcess, node: int) -> float:
    transfer = asyncio.create_task(exchange(proxy.ports[node - 1], FAULT_BYTES, 1))
    await asyncio.sleep(0.4)
    await proxy.act(node, action="refuse")
    try:
        await exchange(proxy.ports[node - 1], 1, 1)
    except ConnectionRefusedError:
        await transfer
        await proxy.act(node, action="accept")
        await exchange(proxy.ports[node - 1], 1, 1)
        return 0.0
    return float("inf")


FAULTS: tuple[tuple[str, float, Fault], ...] = (
    ("cut of 1 s: bytes that moved, and seconds beside the cut", 0.05, _cut),
    ("reset at byte 100000: bytes off, error seen by the client", 0, _reset),
    ("half-open: bytes that moved, no word to the client", 0, _half_open),
    ("refuse: new ones refused, the old one and later ones served", 0, _refuse),
)


async def drop_rows(quick: bool) -> list[Bar]:
    """What connections leave behind that were opened and dropped."""

    async def drop(address: tuple[str, int], number: int) -> None:
        _, writer = await asyncio.open_connection(*address)
        if number % 4 > 0:
            writer.write(bytes(1000))
        if number % 4 > 1:
            writer.transport.abort()
        writer.close()

    async def drop_all(proxy: ProxyProcess, connections: int) -> None:
        for first in range(0, connections, 50):
            numbers = range(first, first + 50)
            await asyncio.gather(*(drop(proxy.ports[0], number) for number in numbers))
        for _ in range(100):
            await asyncio.sleep(0.1)
            if (await proxy.count(1))["open"] == 0:
                return

    async with proxy_for(["perfect"]) as proxy:
        await drop_all(proxy, 2000)  # its memory has found its level by then
        files, memory_mb = proxy.files(), proxy.memory_mb()
        await drop_all(proxy, 1000)
        found = await proxy.count(1)
        queued = found["up"]["queued_bytes"] + found["down"]["queued_bytes"]
        return [
            Bar("1000 dropped connections: sockets left", 0, proxy.files() - files),
            Bar("1000 dropped connections: MB left", 2, proxy.memory_mb() - memory_mb),
            Bar("1000 dropped connections: bytes queued", 0, queued),
        ]


def main() -> int:
    """Run everything, print the table, and say whether all bars are reached."""
    options = parser_for(__doc__, "shorter, within a minute").parse_args()
    rows: list[Bar] = []
    for part in (rate_rows, crowd_rows, trace_rows, fault_rows, drop_rows):
        for row in asyncio.run(part(options.quick)):
            print(row.line(), flush=True)
            rows.append(row)
    return finish(rows, {"source": provenance(), "load": os.getloadavg()}, options.json)


if __name__ == "__main__":
    sys.exit(main())
