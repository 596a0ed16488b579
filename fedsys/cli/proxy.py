"""``fedsys proxy``: a port for each node, whose traffic reaches the server as over a weak link."""

import asyncio
import contextlib
import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsys.errors import ConfigError

if TYPE_CHECKING:
    from netem.proxy.plan import ProxyPlan


def proxy_command(
    file: Annotated[Path | None, typer.Argument(help="The proxy as TOML, not as options.")] = None,
    listen: Annotated[
        str | None, typer.Option(help="HOST:PORT of the only node; port 0 takes a free one.")
    ] = None,
    link: Annotated[
        str | None, typer.Option(help="Its link: a name with options, or a file.")
    ] = None,
    node: Annotated[
        list[str] | None, typer.Option(help="[HOST:]PORT=LINK, once for each node.")
    ] = None,
    upstream: Annotated[str | None, typer.Option(help="HOST:PORT of the server.")] = None,
    seed: Annotated[
        int | None, typer.Option(help="Draws links, jitter and loss; that of a run by default, 1.")
    ] = None,
    server_egress_bps: Annotated[
        float | None, typer.Option(help="What all downloads share.")
    ] = None,
    server_ingress_bps: Annotated[
        float | None, typer.Option(help="What all uploads share.")
    ] = None,
    control: Annotated[
        str | None, typer.Option(help="HOST:PORT of the control API; there is none without.")
    ] = None,
    schedule: Annotated[
        Path | None, typer.Option(help="TOML that says what happens when, as event tables.")
    ] = None,
) -> None:
    """Shape TCP between clients and a server, without root, until SIGINT or SIGTERM.

    Prints one line of JSON with all addresses once it listens.
    """
    # Imported here, because it brings Flower, which the other commands start without.
    from netem.proxy.plan import DEFAULT_SEED, load_plan, plan_for

    options = [listen, link, node, upstream, seed, server_egress_bps, server_ingress_bps]
    if file is None:
        plan = plan_for(
            _pairs(listen, link, node or []),
            upstream=upstream,
            seed=DEFAULT_SEED if seed is None else seed,
            server_egress_bps=server_egress_bps,
            server_ingress_bps=server_ingress_bps,
            control=control,
            schedule=schedule,
        )
    elif control or schedule or any(option is not None for option in options):
        raise ConfigError(f"{file}: give a file or options, not both")
    else:
        plan = load_plan(file)
    asyncio.run(_serve(plan))


def _pairs(listen: str | None, link: str | None, nodes: list[str]) -> list[tuple[str, str]]:
    """(address, link) of each node."""
    if (listen is None) != (link is None):
        raise ConfigError("--listen and --link belong together")
    pairs = [] if listen is None or link is None else [(listen, link)]
    for node in nodes:
        address, equals, text = node.partition("=")
        if not equals:
            raise ConfigError(f"--node {node}: expected [HOST:]PORT=LINK")
        pairs.append((address, text))
    if not pairs:
        raise ConfigError("no node: give --listen and --link, --node, or a file")
    return pairs


async def _serve(plan: "ProxyPlan") -> None:
    """Run until a signal, or until an event of the schedule cannot be done."""
    from netem.proxy.control import Control

    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(plan.proxy())
        ready: dict[str, Any] = {
            "nodes": {name: str(address) for name, address in proxy.ports.items()}
        }
        if plan.control is not None:
            control = await stack.enter_async_context(Control(proxy, plan.control))
            ready["control"] = str(control.address)
        print(json.dumps(ready), flush=True)
        stopped = loop.create_task(stop.wait())
        if proxy.schedule is not None:
            await asyncio.wait({stopped, proxy.schedule}, return_when=asyncio.FIRST_COMPLETED)
            if not stopped.done():
                await proxy.schedule
        await stopped
