"""What clients see when the link breaks in the middle of a transfer, while others go on."""

import asyncio
import gc
import os

import pytest

from netem.link import Direction, Link
from netem.proxy.address import Address
from netem.proxy.connection import Connection
from netem.rate import RateCurve

pytestmark = pytest.mark.net

SIZE_BYTES = 62_500
BPS = 1e6
LATE_S = 0.35


async def faulty(net, links, during, size_bytes=SIZE_BYTES):
    """A transfer for each node; ``during(proxy)`` runs 0.15 s after they began.

    Returns (seconds or exception) of each, what ``during`` returned, the counts, and what the
    server got.
    """
    async with net.serve() as server, net.proxy(server.address, *links) as proxy:
        transfers = [
            asyncio.create_task(net.exchange(address, size_bytes))
            for address in proxy.ports.values()
        ]
        await asyncio.sleep(0.15)
        seen = await during(proxy)
        done = await asyncio.gather(*transfers, return_exceptions=True)
        await asyncio.sleep(0.05)
        return done, seen, [proxy.count(name) for name in proxy.ports], server


def test_a_cut_holds_a_transfer_and_healing_lets_it_go_on(net, even):
    async def during(proxy):
        proxy.cut("1")
        await asyncio.sleep(0.05)
        before = proxy.count("1")
        await asyncio.sleep(0.3)
        after = proxy.count("1")
        proxy.heal("1")
        return before, after

    done, (before, after), counts, _ = asyncio.run(faulty(net, [even(BPS), even(BPS)], during))
    assert before.cut
    assert before.up.rate_bps == 0
    assert before.up.out_bytes == after.up.out_bytes
    assert 0.8 <= done[0] <= 0.85 + LATE_S
    assert 0.5 <= done[1] <= 0.5 + LATE_S
    assert not counts[0].cut


def test_a_connection_made_during_a_cut_reaches_the_server_after_it(net, even):
    async def scenario():
        async with net.serve() as server, net.proxy(server.address, even()) as proxy:
            proxy.cut("1")
            waiting = asyncio.create_task(net.exchange(proxy.ports["1"], 10))
            await asyncio.sleep(0.2)
            assert server.received_bytes == 0
            assert not waiting.done()
            proxy.heal("1")
            return await waiting

    assert asyncio.run(scenario()) >= 0.2


def test_a_reset_breaks_both_sides_and_no_other_node(net, even):
    async def during(proxy):
        proxy.reset("1")

    done, _, counts, server = asyncio.run(faulty(net, [even(BPS), even(BPS)], during))
    assert isinstance(done[0], ConnectionResetError)
    assert 0.5 <= done[1] <= 0.5 + LATE_S
    assert (counts[0].reset, counts[0].open, counts[1].reset) == (1, 0, 0)
    assert server.resets == 1
    up = counts[0].up
    assert up.in_bytes == up.out_bytes + up.dropped_bytes
    assert up.dropped_bytes > 0


@pytest.mark.parametrize("way", ["up", "down"])
def test_a_reset_strikes_at_the_byte_once(net, even, way):
    async def scenario():
        async with net.serve() as server, net.proxy(server.address, even()) as proxy:
            proxy.reset("1", after_bytes=50_000, way=way)
            sizes = (100_000, 1) if way == "up" else (1, 100_000)
            with pytest.raises(
                (ConnectionResetError, BrokenPipeError, asyncio.IncompleteReadError)
            ):
                await net.exchange(proxy.ports["1"], *sizes)
            broken = proxy.count("1")
            await net.exchange(proxy.ports["1"], *sizes)
            return broken, proxy.count("1")

    broken, after = asyncio.run(scenario())
    assert getattr(broken, way).out_bytes == 50_000
    assert (broken.reset, after.reset) == (1, 1)


def test_a_half_open_connection_is_silent_and_new_ones_work(net, even):
    async def during(proxy):
        proxy.half_open("1")
        before = proxy.count("1")
        took_s = await net.exchange(proxy.ports["1"], 1000)
        return before, took_s

    async def scenario():
        async with net.serve() as server, net.proxy(server.address, even(BPS)) as proxy:
            silent = asyncio.create_task(net.exchange(proxy.ports["1"], SIZE_BYTES))
            await asyncio.sleep(0.15)
            before, took_s = await during(proxy)
            await asyncio.sleep(0.4)
            stuck, found = not silent.done(), proxy.count("1")
            proxy.reset("1")
            with pytest.raises(ConnectionError):
                await silent
            return before, took_s, stuck, found, proxy.count("1")

    before, took_s, stuck, found, after = asyncio.run(scenario())
    assert stuck
    assert took_s <= LATE_S
    assert (before.half_open, before.open) == (1, 1)
    assert found.half_open == 1
    assert found.up.out_bytes - before.up.out_bytes == 1016
    assert after.half_open == 0


def test_a_closed_listener_refuses_new_connections_and_keeps_old_ones(net, even):
    async def during(proxy):
        proxy.refuse("1")
        with pytest.raises(ConnectionRefusedError):
            await net.exchange(proxy.ports["1"], 1)
        refusing = proxy.count("1")
        await proxy.accept("1")
        return refusing, await net.exchange(proxy.ports["1"], 1)

    done, (refusing, _), _, _ = asyncio.run(faulty(net, [even(BPS)], during))
    assert not refusing.listening
    assert 0.5 <= done[0] <= 0.5 + LATE_S


def test_a_server_that_is_down_shows_as_a_reset_and_not_as_an_end(net, even):
    async def scenario():
        upstream = Address("127.0.0.1", net.free_port())
        async with net.proxy(upstream, even(delay_ms=20)) as proxy:
            with pytest.raises(ConnectionResetError):
                await net.exchange(proxy.ports["1"], 10)
            return proxy.count("1")

    found = asyncio.run(scenario())
    assert (found.refused, found.open, found.total) == (1, 0, 1)


def test_a_server_that_resets_shows_as_a_reset_after_the_delay(net, even):
    async def slam(reader, writer):
        await reader.read(10)
        writer.transport.get_extra_info("socket").setsockopt(1, 13, b"\1\0\0\0\0\0\0\0")
        writer.transport.abort()

    async def scenario():
        async with await asyncio.start_server(slam, "127.0.0.1", 0) as server:
            address = Address(*server.sockets[0].getsockname())
            async with net.proxy(address, even(delay_ms=50)) as proxy:
                loop = asyncio.get_running_loop()
                start_s = loop.time()
                with pytest.raises(ConnectionResetError):
                    await net.exchange(proxy.ports["1"], 10)
                return loop.time() - start_s

    assert 0.2 <= asyncio.run(scenario()) <= 0.2 + LATE_S


def test_an_outage_breaks_connections_where_the_link_says_so(net):
    def link(on_outage, idle_timeout_s):
        one = Direction(curve=RateCurve.constant(BPS).cut([(0.2, 0.6)]), layer="goodput")
        return Link(
            up=one, down=one, tcp="none", on_outage=on_outage, idle_timeout_s=idle_timeout_s
        )

    async def during(proxy):
        pass

    links = [link("resume", 0.1), link("restart", 0.1), link("restart", 5.0)]
    done, _, counts, _ = asyncio.run(faulty(net, links, during))
    assert isinstance(done[1], ConnectionResetError)
    for index in (0, 2):
        assert 0.9 <= done[index] <= 0.9 + LATE_S
    assert [count.reset for count in counts] == [0, 1, 0]


def test_a_new_link_takes_over_in_the_middle_of_a_transfer(net, even):
    async def during(proxy):
        proxy.set_link("1", even(100e6))

    done, _, _, _ = asyncio.run(faulty(net, [even(0.2e6), even(BPS)], during))
    assert done[0] <= 0.2 + LATE_S
    assert 0.5 <= done[1] <= 0.5 + LATE_S


def test_many_connections_leave_nothing_behind(net, even):
    async def scenario():
        async with net.serve() as server, net.proxy(server.address, even()) as proxy:
            await net.exchange(proxy.ports["1"], 10)
            await asyncio.sleep(0.05)
            files, tasks = len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks())
            for _ in range(5):
                await asyncio.gather(*(drop(proxy.ports["1"], n) for n in range(40)))
            for _ in range(100):
                if proxy.count("1").open == 0:
                    break
                await asyncio.sleep(0.02)
            await asyncio.sleep(0.05)
            found = proxy.count("1")
            return (
                (files, tasks),
                (len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks())),
                found,
            )

    async def drop(address, number):
        """Connect, and end in one of the ways in which clients do."""
        _, writer = await asyncio.open_connection(*address)
        if number % 4 > 0:
            writer.write(bytes(1000))
        if number % 4 > 1:
            writer.transport.abort()
        writer.close()

    before, after, found = asyncio.run(scenario())
    gc.collect()
    assert after == before
    assert not [one for one in gc.get_objects() if type(one) is Connection]
    assert (found.open, found.total) == (0, 201)
    assert found.up.queued_bytes == found.down.queued_bytes == 0


def test_leaving_the_block_ends_everything_at_once(net, even):
    async def scenario():
        async with net.serve() as server:
            tasks = asyncio.all_tasks()
            async with net.proxy(server.address, even(1e3)) as proxy:
                address = proxy.ports["1"]
                transfer = asyncio.create_task(net.exchange(address, SIZE_BYTES))
                await asyncio.sleep(0.1)
            with pytest.raises(ConnectionError):
                await transfer
            with pytest.raises(ConnectionRefusedError):
                await net.exchange(address, 1)
            await asyncio.sleep(0.05)
            return asyncio.all_tasks() - tasks, proxy.count("1").open

    assert asyncio.run(scenario()) == (set(), 0)
