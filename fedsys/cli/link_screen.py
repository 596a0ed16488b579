"""A link as a terminal shows it: bars of its rate, tables of its figures."""

import math
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedsys.telemetry.figures import number, percent
from fedsys.types import F64
from netem.describe import NODES, SIZES_BYTES, Description, WayFigures, Window

_BLOCKS, _SHADES = " ▁▂▃▄▅▆▇█", " ░▒▓█"
_ASCII_BLOCKS, _ASCII_SHADES = " ....:::#", " .:=#"
_ROWS = 5
_LABEL = 14
_MAX_COLUMNS = 110


def picture(out: Console, title: str, window: Window) -> Iterator[Text]:
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


def rate_table(found: Description) -> Table:
    """Percentiles of the rate over time, and the gaps in it, one row a direction."""
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


def notes(found: Description) -> Iterator[str]:
    """What the tables leave out, in lines."""
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
    if found.on_outage == "restart":
        yield f"an outage of more than {_duration(found.idle_timeout_s)} breaks the connection"
    extras = {
        f"polls every {_duration(found.poll_s)}": found.poll_s > 0,
        f"takes part {percent(found.available_fraction)} % of the time": (
            found.available_fraction < 1
        ),
        f"queues hold {_both(up, down, 'queue_bytes', _queue)}": (
            (up.queue_bytes, down.queue_bytes) != (None, None)
        ),
    }
    if any(extras.values()):
        yield "; ".join(text for text, holds in extras.items() if holds)
    for way, one in found.ways.items():
        if one.dead_from_s < math.inf:
            yield f"{way}link: nothing moves any more from {_duration(one.dead_from_s)} on"


_LAYERS = {"ip": "packets with headers", "goodput": "payload only"}


def _both(up: WayFigures, down: WayFigures, name: str, write: Callable[..., str]) -> str:
    """A property of both directions, said once where it is the same."""
    values = [write(getattr(one, name)) for one in (up, down)]
    return values[0] if values[0] == values[1] else f"{values[0]} up, {values[1]} down"


def _queue(size_bytes: int | None) -> str:
    return "any number of bytes" if size_bytes is None else f"{number(size_bytes / 1000)} kB"


def duration_table(found: Description) -> Table:
    """How long messages take, one row a size."""
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
