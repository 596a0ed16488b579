"""The control API, the schedule, and the proxy in a thread."""

import asyncio
import time
from pathlib import Path

import httpx
import pytest

from fedsys.errors import ConfigError, LinkError
from netem.proxy.actions import ACTIONS, Cut, parse_action
from netem.proxy.address import Address, parse_address
from netem.proxy.control import MAX_BODY_BYTES, Control
from netem.proxy.schedule import load_schedule
from netem.proxy.server import NodePort, ShapingProxy
from netem.proxy.thread import ProxyThread

pytestmark = pytest.mark.net


def over_http(net, links, scenario):
    """What ``scenario(client, proxy, server)`` returns, with the control API at hand."""

    async def run():
        async with (
            net.serve() as server,
            net.proxy(server.address, *links) as proxy,
            Control(proxy, Address("127.0.0.1", 0)) as control,
            httpx.AsyncClient(base_url=f"http://{control.address}", trust_env=False) as client,
        ):
            return await scenario(client, proxy, server)

    return asyncio.run(run())


def test_nodes_are_described_with_what_passed_them(net, even):
    async def scenario(client, proxy, server):
        await net.exchange(proxy.ports["2"], 1000, 50)
        return (await client.get("/nodes")).json(), (await client.get("/nodes/2")).json(), proxy

    found, second, proxy = over_http(net, [even(1e6), even()], scenario)
    assert found["nodes"].keys() == {"1", "2"}
    assert found["now_s"] > 0
    assert second["up"]["out_bytes"] == 1016
    assert second["down"]["out_bytes"] == 50
    assert second["address"] == str(proxy.ports["2"])
    assert second["total"] == 1
    assert (found["nodes"]["1"]["up"]["rate_bps"], second["up"]["rate_bps"]) == (1e6, None)


def test_every_action_can_be_asked_for(net, even):
    async def scenario(client, proxy, server):
        async def post(name, **table):
            answer = await client.post(f"/nodes/{name}", json=table)
            assert answer.status_code == 200, answer.text
            return answer.json()["nodes"]

        assert (await post("1", action="cut"))["1"]["cut"]
        assert not (await post("1", action="heal"))["1"]["cut"]
        assert not (await post("1", action="refuse"))["1"]["listening"]
        assert (await post("1", action="accept"))["1"]["listening"]
        changed = await post("1", action="link", link="constant(up_bps=5e5, down_bps=7e5)")
        assert (changed["1"]["up"]["rate_bps"], changed["1"]["down"]["rate_bps"]) == (5e5, 7e5)
        assert (await post("*", action="cut")).keys() == {"1", "2"}
        assert proxy.count("1").cut
        assert proxy.count("2").cut
        await post("*", action="heal")
        await post("2", action="reset", after_bytes=100, way="up")
        with pytest.raises(ConnectionError):
            await net.exchange(proxy.ports["2"], 1000)
        assert (await post("2", action="reset"))["2"]["reset"] == 1
        assert (await post("2", action="half-open"))["2"]["half_open"] == 0

    over_http(net, [even(), even()], scenario)


def test_a_bad_request_is_refused_with_the_reason_and_changes_nothing(net, even):
    async def scenario(client, proxy, server):
        async def post(name="1", **request):
            answer = await client.post(f"/nodes/{name}", **request)
            return answer.status_code, answer.json()["error"]

        kind = {"content-type": "application/json"}
        before = (await client.get("/nodes/1")).json()
        assert await post("x", json={"action": "cut"}) == (404, "no node 'x'; there are 1")
        assert (await client.get("/nodes/*")).status_code == 404
        assert (await client.get("/elsewhere")).status_code == 404
        assert (await client.delete("/nodes/1")).status_code == 405
        assert (await post(data={"action": "cut"}))[0] == 415
        assert (await post(content=b"{", headers=kind))[0] == 400
        assert (await post(content=b"[" * 60_000, headers=kind))[0] == 400
        assert (await post(content=b"[1]", headers=kind))[0] == 400
        large = {"action": "cut", "x": "y" * MAX_BODY_BYTES}
        assert (await post(json=large))[0] == 413
        for table, words in BAD_ACTIONS:
            code, error = await post(json=table)
            assert code == 400
            assert words in error
        rebound = await client.get("/nodes", headers={"host": "evil.example"})
        assert rebound.status_code == 400
        assert (await client.get("/nodes/1")).json() == before

    over_http(net, [even()], scenario)


BAD_ACTIONS = [
    ({}, "no action None; choose from cut, heal"),
    ({"action": "cutt"}, "did you mean 'cut'?"),
    ({"action": ["cut"]}, "no action"),
    ({"action": "cut", "way": "up"}, "cut: no option 'way'; it has none"),
    ({"action": "reset", "after_bytes": 0}, "after_bytes must be 1 or more, got 0"),
    ({"action": "reset", "after_bytes": 1.5}, "after_bytes"),
    ({"action": "reset", "after_bytes": 5, "way": "sideways"}, "way"),
    ({"action": "reset", "way": "up"}, "way needs after_bytes"),
    ({"action": "link"}, "needs link"),
    ({"action": "link", "link": "4g"}, "no link '4g'"),
    ({"action": "link", "link": "constant(up_bps=-1, down_bps=1)"}, "above 0"),
]


@pytest.mark.parametrize(("table", "words"), BAD_ACTIONS)
def test_an_action_says_what_is_wrong_with_it(table, words):
    with pytest.raises(ConfigError, match="here: ") as error:
        parse_action("here", table)
    assert words in str(error.value)


def test_a_control_port_in_use_is_an_error(net, even):
    async def run():
        async with net.proxy(Address("127.0.0.1", 9), even()) as proxy:
            await Control(proxy, proxy.ports["1"]).__aenter__()

    with pytest.raises(LinkError, match="control: cannot listen on"):
        asyncio.run(run())


def test_a_schedule_does_what_it_says_when_it_says_so(net, even, tmp_path):
    path = tmp_path / "faults.toml"
    path.write_text(
        """
        [[event]]
        at_s = 0.5
        node = "*"
        action = "heal"
        [[event]]
        at_s = 0.1
        node = "1"
        action = "cut"
        """
    )
    events = load_schedule(path, ["1", "2"])
    assert [event.at_s for event in events] == [0.1, 0.5]

    async def run():
        async with (
            net.serve() as server,
            net.proxy(server.address, even(1e6), even(1e6), events=events) as proxy,
        ):
            took_s = await asyncio.gather(
                *(net.exchange(address, 25_000) for address in proxy.ports.values())
            )
            await proxy.schedule
            return took_s

    cut_s, other_s = asyncio.run(run())
    assert 0.6 - 0.05 <= cut_s <= 0.6 + 0.3
    assert 0.2 <= other_s <= 0.2 + 0.3


def test_an_event_that_cannot_be_done_is_seen_by_who_waits(net, even, tmp_path):
    path = tmp_path / "faults.toml"
    path.write_text(
        "[[event]]\nat_s = 0\nnode = '1'\naction = 'refuse'\n"
        "[[event]]\nat_s = 0.3\nnode = '1'\naction = 'accept'\n"
    )

    async def run():
        events = load_schedule(path, ["1"])
        async with net.proxy(Address("127.0.0.1", 9), even(), events=events) as proxy:
            await asyncio.sleep(0.1)
            async with await asyncio.start_server(lambda *_: None, *proxy.ports["1"]):
                await proxy.schedule

    with pytest.raises(LinkError, match="node '1': cannot listen on"):
        asyncio.run(run())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[event]]\nnode = '1'\naction = 'cut'", "event 1: at_s must be 0 or more"),
        ("[[event]]\nat_s = -1\nnode = '1'\naction = 'cut'", "at_s must be 0 or more"),
        ("[[event]]\nat_s = true\nnode = '1'\naction = 'cut'", "at_s must be 0 or more"),
        ("[[event]]\nat_s = inf\nnode = '1'\naction = 'cut'", "at_s must be 0 or more"),
        ("[[event]]\nat_s = 1\nnode = '7'\naction = 'cut'", "no node '7'; choose from 1, 2, *"),
        ("[[event]]\nat_s = 1\naction = 'cut'", "no node None"),
        ("[[event]]\nat_s = 1\nnode = '1'\naction = 'burn'", "event 1: no action 'burn'"),
        ("[[event]]\nat_s = 1\nnode = '1'", "event 1: no action None"),
        ("[[events]]\nat_s = 1", "unknown key 'events'"),
        ("event = 3", "events are [[event]] tables"),
        ("[[event", "cannot be read"),
    ],
)
def test_a_schedule_is_checked_before_anything_starts(tmp_path, text, words):
    path = tmp_path / "faults.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        load_schedule(path, ["1", "2"])
    assert words in str(error.value)
    assert str(path) in str(error.value)


def test_a_proxy_runs_in_a_thread_beside_other_code(even):
    nodes = [NodePort(name="a", link=even(1e6))]
    with ProxyThread(ShapingProxy(Address("127.0.0.1", 9), nodes)) as thread:
        address = thread.call(lambda proxy: proxy.ports)["a"]
        thread.call(lambda proxy: proxy.apply("a", Cut()))
        assert thread.call(lambda proxy: proxy.count("a")).cut
        with pytest.raises(ConfigError, match="no node 'b'"):
            thread.call(lambda proxy: proxy.cut("b"))
        before_s = thread.call(lambda proxy: proxy.now_s)
        time.sleep(0.02)
        assert thread.call(lambda proxy: proxy.now_s) > before_s + 0.01
        taken = NodePort(name="a", link=even(), listen=address)
        with pytest.raises(LinkError), ProxyThread(ShapingProxy(address, [taken])):
            pass
    with pytest.raises(RuntimeError, match="not running"):
        thread.call(lambda proxy: proxy.now_s)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost:80", ("localhost", 80)),
        ("[::1]:9", ("::1", 9)),
        ("9001", ("127.0.0.1", 9001)),
    ],
)
def test_an_address_reads_back_as_it_is_written(text, address):
    found = parse_address("x", text, default_host="127.0.0.1")
    assert found == address
    assert parse_address("x", str(found)) == found


@pytest.mark.parametrize(
    "text", ["", ":", "host", "host:", "h:x", "h:65536", "h:0", "::1:80", ":5"]
)
def test_a_bad_address_is_named(text):
    with pytest.raises(ConfigError, match="--listen: expected HOST:PORT"):
        parse_address("--listen", text)


def test_the_page_names_every_action():
    page = (Path(__file__).parents[3] / "docs" / "proxy.md").read_text()
    for name in ACTIONS:
        assert f"| `{name}`" in page
