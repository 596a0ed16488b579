"""A proxy in a process of its own, and the clients and the server that talk through it."""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

HEAD_BYTES = 16
CHUNK = bytes(1 << 16)


@dataclass
class ProxyProcess:
    """``fedsys proxy`` under way."""

    pid: int
    ports: list[tuple[str, int]]
    http: httpx.AsyncClient

    async def act(self, node: int, **action: Any) -> None:
        """Do something to the node with this number, from 1."""
        answer = await self.http.post(f"/nodes/{node}", json=action)
        answer.raise_for_status()

    async def count(self, node: int) -> dict[str, Any]:
        """Its counters."""
        found: dict[str, Any] = (await self.http.get(f"/nodes/{node}")).json()
        return found

    async def clock_offset_s(self) -> float:
        """The proxy's time less ``time.perf_counter``."""
        begin_s = time.perf_counter()
        now_s = (await self.http.get("/nodes")).json()["now_s"]
        return float(now_s) - (begin_s + time.perf_counter()) / 2

    def cpu_s(self) -> float:
        """Seconds of a core that it has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def files(self) -> int:
        """Files and sockets that it has open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def memory_mb(self) -> float:
        """Its resident memory."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@contextlib.asynccontextmanager
async def proxy_for(links: Sequence[str], *options: str) -> AsyncIterator[ProxyProcess]:
    """A proxy before a server of this process, with a node for each link."""
    async with await asyncio.start_server(_serve, "127.0.0.1", 0, backlog=1024) as server:
        upstream = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        command = [sys.executable, "-m", "fedsys.cli.main", "proxy", "--upstream", upstream]
        command += ["--control", "127.0.0.1:0", *options]
        for link in links:
            command += ["--node", f"0={link}"]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        try:
            ready = json.loads(await process.stdout.readline())
            hosts = [address.rsplit(":", 1) for address in ready["nodes"].values()]
            ports = [(host, int(port)) for host, port in hosts]
            url = f"http://{ready['control']}"
            async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
                yield ProxyProcess(process.pid, ports, http)
        finally:
            process.terminate()
            await process.wait()


async def exchange(address: tuple[str, int], up_bytes: int, down_bytes: int) -> float:
    """Seconds to send and receive so much over a new connection, to the last byte received."""
    reader, writer = await asyncio.open_connection(*address, limit=1 << 20)
    try:
        writer.write(up_bytes.to_bytes(8, "big") + down_bytes.to_bytes(8, "big"))
        begin_s = time.perf_counter()
        await send(writer, up_bytes)
        await receive(reader, down_bytes)
        return time.perf_counter() - begin_s
    finally:
        writer.close()


async def received_by(address: tuple[str, int], end_s: float) -> int:
    """Bytes that a download without an end has brought by ``end_s`` of ``time.perf_counter``."""
    got = 0
    reader, writer = await asyncio.open_connection(*address, limit=1 << 20)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(end_s - time.perf_counter()):
            writer.write(bytes(8) + (1 << 62).to_bytes(8, "big"))
            while data := await reader.read(1 << 20):
                got += len(data)
    writer.transport.abort()
    return got


async def send(writer: asyncio.StreamWriter, size_bytes: int) -> None:
    """Write so many bytes, no faster than they leave."""
    while size_bytes > 0:
        writer.write(CHUNK[: min(size_bytes, len(CHUNK))])
        size_bytes -= len(CHUNK)
        await writer.drain()


async def receive(reader: asyncio.StreamReader, size_bytes: int) -> None:
    """Read so many bytes; ConnectionError where they end before."""
    while size_bytes > 0:
        data = await reader.read(min(size_bytes, 1 << 20))
        if not data:
            raise ConnectionError("ended")
        size_bytes -= len(data)


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Take and give what each request asks for."""
    over = (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError)
    with contextlib.suppress(*over):
        while True:
            head = await reader.readexactly(HEAD_BYTES)
            await receive(reader, int.from_bytes(head[:8], "big"))
            await send(writer, int.from_bytes(head[8:], "big"))
    writer.close()
