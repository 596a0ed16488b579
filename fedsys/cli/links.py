"""``fedsys links``: what a link looks like, and how long messages take on it."""

import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedsys.cli.listing import Kind, list_command
from fedsys.cli.tables import check_writable, console, write_json
from fedsys.errors import ConfigError
from fedsys.telemetry.figures import number, percent
from fedsys.types import F64
from netem.describe import NODES, SIZES_BYTES, WAYS, Description, WayFigures, Window, describe
from netem.spec import LinkSpec, parse_link

_BLOCKS, _SHADES = " ▁▂▃▄▅▆▇█", " ░▒▓█"
_ASCII_BLOCKS, _ASCII_SHADES = " ....:::#", " .:=#"
_ROWS = 5
_LABEL = 14
_MAX_COLUMNS = 110

links_app = typer.Typer(no_args_is_help=True, help="Look at links.")


@links_app.command("list")
def list_links(
    json: Annotated[Path | None, typer.Option(help="Also write the list as JSON.")] = None,
) -> None:
    """List profiles and models with their options; the same as ``fedsys list links``."""
    list_command(Kind.LINKS, json)


@links_app.command()
def show(
    link: Annotated[
        str,
        typer.Argument(
            help="A name such as lte, a name with options such as 'lte(spread=0)', a TOML file, "
            "an experiment file, or a recorded trace."
        ),
    ],
    seed: Annotated[int, typer.Option(min=0, help="Where chance starts.")] = 1,
    node: Annotated[int, typer.Option(min=0, help="Which node's link.")] = 1,
    seconds: Annotated[
        float | None, typer.Option(help="How much of it; one lap of its pattern if not given.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Also draw it into a .png or .svg file.")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Also write the figures as JSON.")] = None,
) -> None:
    """Draw a link's rate over time and print its figures and the time that messages take."""
    check_writable(json, "--json")
    check_writable(plot, "--plot")
    if plot is not None and plot.suffix not in (".png", ".svg"):
        raise ConfigError(f"--plot {plot}: must end in .png or .svg")
    spec = parse_link(link)
    found = describe(spec, seed, node, seconds)
    windows = _windows(spec, found)
    out = console()
    out.print(Text(link.strip(), "bold"), soft_wrap=True)
    if found.text != link.strip():
        out.print(f"link: {found.text}", soft_wrap=True)
    out.print(f"what: {found.what}", soft_wrap=True)
    out.print(f"numbers: {found.source}", soft_wrap=True)
    for way, window in windows.items():
        out.print()
        for line in _picture(out, f"{way}link", window):
            out.print(line, no_wrap=True, overflow="crop")
    out.print()
    out.print(_rate_table(found))
    for note in _notes(found):
        out.print(note, soft_wrap=True)
    out.print()
    out.print(_duration_table(found))
    if plot is not None:
        from fedsys.telemetry.rateplot import write_rate_plot

        ways = {f"{way}link": (one.edge_s, one.rate_bps) for way, one in windows.items()}
        write_rate_plot(plot, f"node {node}, seed {seed}, {link.strip()}", ways)
    write_json(json, links_json(found))


def links_json(found: Description) -> dict[str, Any]:
    """The figures as JSON; null is a rate without limit, or a time that never comes."""
    return {key: _finite(value) for key, value in asdict(found).items()}


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _windows(spec: LinkSpec, found: Description) -> dict[str, Window]:
    link = spec.link(found.seed, found.node)
    return {way: Window.of(link.way(way).curve, found.seconds) for way in WAYS}


def _picture(out: Console, title: str, window: Window) -> Iterator[Text]:
    """Bars of the mean rate, a row of marks where nothing moved, and an axis."""
    columns = max(20, min(_MAX_COLUMNS, out.width - _LABEL - 1))
    mean_bps, zero_fraction = window.binned(columns)
    seconds = float(window.edge_s[-1])
    plain = out.options.ascii_only
    blocks, shades = (_ASCII_BLOCKS, _ASCII_SHADES) if plain else (_BLOCKS, _SHADES)
    top_bps = float(mean_bps.max())
    yield Text(f"{title}, each column the mean of {_duration(seconds / columns)}", "bold")
    for row, bar in enumerate(bars(mean_bps, top_bps, _ROWS, blocks)):
        label = _rate(top_bps) if row == 0 else ""
        yield Text.assemble(f"{label:>{_LABEL - 1}} ", (bar, "cyan"))
    if zero_fraction.any():
        marks = "".join(shades[math.ceil(share * (len(shades) - 1))] for share in zero_fraction)
        yield Text.assemble(f"{'no traffic':>{_LABEL - 1}} ", (marks, "bold red"))
    end = _duration(seconds)
    yield Text(" " * _LABEL + "0 s" + f"{end:>{columns - 3}}", "dim")


def bars(values: F64, top: float, rows: int, blocks: str) -> list[str]:
    """``values`` as columns of ``rows`` characters, the topmost row first.

    ``blocks`` goes from empty to full; what is above 0 shows at least the lowest of them.
    """
    full = len(blocks) - 1
    heights = [_height(float(value), top, rows * full) for value in values]
    return [
        "".join(blocks[min(full, max(0, height - full * row))] for height in heights)
        for row in reversed(range(rows))
    ]


def _height(value: float, top: float, full: int) -> int:
    if value <= 0 or top <= 0:
        return 0
    return full if value >= top else max(1, round(value / top * full))


def _rate_table(found: Description) -> Table:
    table = Table("rate")
    for name in ("mean", "p1", "p10", "p50", "p90", "p99", "time at 0", "longest gap"):
        table.add_column(name, justify="right")
    for way, one in found.ways.items():
        table.add_row(
            f"{way}link",
            _rate(one.mean_bps),
            *map(_rate, one.percentiles_bps.values()),
            f"{percent(one.zero_fraction)} %",
            _duration(one.longest_gap_s),
        )
    return table


def _notes(found: Description) -> Iterator[str]:
    up, down = found.ways["up"], found.ways["down"]
    if up.node_median_bps[0] < up.node_median_bps[2]:
        spread = (" / ".join(map(_rate, one.node_median_bps)) for one in (up, down))
        yield f"p50 of {NODES} nodes, their p10 / p50 / p90: up {', down '.join(spread)}"
    else:
        yield f"{NODES} nodes have the same p50"
    jitter = _both(up, down, "jitter_ms", lambda value: f"{number(value)} ms")
    loss = _both(up, down, "loss_fraction", lambda value: f"{100 * value:.3g} %")
    burst = max(up.loss_burst_packets, down.loss_burst_packets)
    bursts = f" in bursts of {number(burst)} packets" if burst > 1 else ""
    yield f"round trip {number(found.rtt_ms)} ms, jitter up to {jitter}; loss {loss}{bursts}"
    connection = "kept open" if found.reuse_connection else "new for every message"
    yield (
        f"tcp {found.tcp}, connection {connection}, {'with' if found.tls else 'without'} TLS; "
        f"rates count {_both(up, down, 'layer', _LAYERS.__getitem__)}"
    )
    for way, one in found.ways.items():
        if one.dead_from_s < math.inf:
            yield f"{way}link: nothing moves any more from {_duration(one.dead_from_s)} on"


_LAYERS = {"ip": "packets with headers", "goodput": "payload only"}


def _both(up: WayFigures, down: WayFigures, name: str, write: Any) -> str:
    """A property of both directions, said once where it is the same."""
    values = [write(getattr(one, name)) for one in (up, down)]
    return values[0] if values[0] == values[1] else f"{values[0]} up, {values[1]} down"


def _duration_table(found: Description) -> Table:
    table = Table("message")
    for name in ("up, median", "up, p90", "down, median", "down, p90"):
        table.add_column(name, justify="right")
    for size_bytes in SIZES_BYTES:
        cells = [
            _duration(value)
            for one in found.durations
            if one.size_bytes == size_bytes
            for value in (one.median_s, one.p90_s)
        ]
        size = f"{size_bytes // 1000} kB" if size_bytes < 1e6 else f"{size_bytes // 10**6} MB"
        table.add_row(size, *cells)
    return table


def _rate(bps: float) -> str:
    if bps == math.inf:
        return "no limit"
    for unit, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if bps >= 0.9995 * size:
            return f"{number(bps / size)} {unit}"
    return f"{number(bps)} bit/s"


def _duration(seconds: float) -> str:
    if seconds == math.inf:
        return "never"
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{number(seconds / size)} {unit}"
    return (
        f"{number(seconds)} s"
        if seconds >= 0.9995 or seconds == 0
        else f"{number(1000 * seconds)} ms"
    )
