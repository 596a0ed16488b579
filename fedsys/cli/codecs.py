"""``fedsys codecs table``: what each codec would do to an update, and what that costs on a link."""

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.table import Table
from rich.text import Text
from safetensors import SafetensorError
from safetensors.numpy import load_file
from threadpoolctl import threadpool_limits

from fedsys.cli.tables import check_writable, console, write_json
from fedsys.clock import WallClock
from fedsys.codecs._base import Layout, all_finite
from fedsys.codecs._chain import Codec, parse
from fedsys.codecs._measure import measure
from fedsys.errors import ConfigError
from fedsys.rng import rng_for
from fedsys.telemetry.checkpoint import PREVIOUS, unpack_checkpoint
from fedsys.telemetry.figures import number
from fedsys.telemetry.runfolder import RunFolder
from fedsys.types import F32
from fedsys.wire.schema import Array, Schema

SPECS = (
    *("none", "fp16", "bf16", "int8", "int4", "int2", "sign", "ternary"),
    *("topk(0.1)|int8", "topk(0.01)|int8", "topk(0.01)|sign", "topk(0.02,chunk=4096)|int2"),
    *("randk(0.1)|int8", "ecq(4)", "ecq(2)", "ecq(1)", "ecq(0.3)", "ecq(0.1)", "ecq(0.03)"),
    *("eden(1)", "eden(2)", "eden(4)", "lowrank(4)|fp16"),
)
_SIDE = 1024
_REPEATS = 3
_NODES = 25
_MIN_S = 1e-9

codecs_app = typer.Typer(no_args_is_help=True, help="Measure codecs.")


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One codec on one update."""

    codec: str
    bits_per_parameter: float
    nmse: float
    encode_params_per_s: float
    decode_params_per_s: float
    upload_s: float
    """Median over the link's nodes, for the body and Flower's overhead of a message."""


@codecs_app.callback()
def group() -> None:
    """Keep ``table`` a command of its own."""


@codecs_app.command()
def table(
    specs: Annotated[list[str] | None, typer.Argument(help="Further codecs to measure.")] = None,
    update: Annotated[
        Path | None, typer.Option(help="A safetensors file whose floating tensors are an update.")
    ] = None,
    from_run: Annotated[
        Path | None, typer.Option(help="A run folder: the last step of its global model.")
    ] = None,
    link: Annotated[str, typer.Option(help="Link whose upload time is shown.")] = "lte",
    json: Annotated[Path | None, typer.Option(help="Also write the table as JSON.")] = None,
) -> None:
    """Print bits, error, speed and upload time of codecs, on one core of this machine.

    Without --update and --from-run the update is 1,048,576 Laplace values.
    """
    check_writable(json, "--json")
    codecs = {codec.spec: codec for codec in map(parse, [*SPECS, *(specs or [])])}
    upload_s = _upload_s(link)
    if update is not None and from_run is not None:
        raise ConfigError("give --update or --from-run, not both")
    if update is not None:
        what, (x, layout) = str(update), _from_file(update)
    elif from_run is not None:
        what, (x, layout) = f"last step of {from_run}", _from_run(from_run)
    else:
        what = f"{_SIDE * _SIDE} Laplace values"
        x = rng_for(0, "laplace").laplace(size=_SIDE * _SIDE).astype(np.float32)
        layout = ((_SIDE, _SIDE),)
    if not x.size or not all_finite(x):
        raise ConfigError(f"{what}: {x.size} values, some NaN or infinite; nothing to measure")
    with threadpool_limits(1):
        rows = [_row(codec, x, layout, upload_s) for codec in codecs.values()]
    out = console()
    out.print(f"{what}: {x.size} parameters, link {link}", soft_wrap=True)
    out.print(_table(rows))
    shown = [dataclasses.asdict(row) for row in rows]
    write_json(json, {"update": what, "parameters": x.size, "link": link, "codecs": shown})


def _row(codec: Codec, x: F32, layout: Layout, upload_s: Callable[[int], float]) -> Row:
    def encode() -> bytes:
        return codec.encode(x, layout, rng_for(0, "codecs"))

    found, body, out = measure(codec, x, layout, rng_for(0, "codecs")), encode(), np.zeros_like(x)
    decode_s = _best_s(lambda: codec.decode_add(body, x.size, layout, 0.5, out))
    return Row(
        codec=codec.spec,
        bits_per_parameter=8 * found.body_bytes / x.size,
        nmse=found.nmse,
        encode_params_per_s=x.size / _best_s(encode),
        decode_params_per_s=x.size / decode_s,
        upload_s=upload_s(found.body_bytes),
    )


def _best_s(action: Callable[[], object]) -> float:
    """The shortest of a few runs."""
    clock, times_s = WallClock(), []
    for _ in range(_REPEATS):
        start_s = clock.now_s()
        action()
        times_s.append(clock.now_s() - start_s)
    return max(_MIN_S, min(times_s))


def _upload_s(name: str) -> Callable[[int], float]:
    """Median seconds up the named link of a body of so many bytes; ConfigError for a bad name."""
    # Imported here, because they bring Flower, which the other commands start without.
    from netem.profiles import link_for
    from netem.sizes import packet_upload
    from netem.transfer import plan_transfer

    links = [link_for(name, {}, 0, node) for node in range(1, _NODES + 1)]

    def seconds(body_bytes: int) -> float:
        traffic = packet_upload(body_bytes)
        trips = traffic.round_trips
        plans = (
            plan_transfer(
                *(link, "up", traffic.size_bytes, 0.0),
                seed=0,
                flow=("codecs", node),
                round_trips=trips,
            )
            for node, link in enumerate(links)
        )
        return float(np.median([plan.finish_s() for plan in plans]))

    return seconds


def _from_file(path: Path) -> tuple[F32, Layout]:
    """The floating tensors of a safetensors file, in its order."""
    try:
        tensors = [t for t in load_file(path).values() if t.dtype.kind == "f"]
    except (OSError, SafetensorError, KeyError, TypeError) as error:
        raise ConfigError(f"--update {path}: cannot be read: {error}") from error
    return _flat(tensors), tuple(t.shape for t in tensors)


def _flat(tensors: Iterable[Array]) -> F32:
    with np.errstate(over="ignore"):
        parts = [np.zeros(0, np.float32), *(t.astype(np.float32).reshape(-1) for t in tensors)]
    return np.concatenate(parts)


def _from_run(path: Path) -> tuple[F32, Layout]:
    """The difference of the run's last two checkpoints; of the only one to the initial model."""
    folder = RunFolder.open(path)
    newest = folder.load_checkpoint()
    if newest is None:
        raise ConfigError(f"--from-run {path}: has no checkpoint; let it run for a round")
    from clients.server_side import ServerTask

    initial = ServerTask(folder.experiment).initial_arrays()
    schema = Schema.of(initial, folder.experiment.codec.raw)
    try:
        before = unpack_checkpoint((path / "checkpoint" / PREVIOUS).read_bytes()).tensors["flat"]
    except (OSError, ValueError):
        before, _ = schema.split(initial)
    return newest.tensors["flat"] - before, schema.layout


def _table(rows: Iterable[Row]) -> Table:
    shown = Table("codec")
    for name in ("bits / parameter", "NMSE", "encode M/s", "decode M/s", "upload s"):
        shown.add_column(name, justify="right")
    for row in rows:
        speeds = [f"{v / 1e6:.0f}" for v in (row.encode_params_per_s, row.decode_params_per_s)]
        cells = [f"{row.bits_per_parameter:.3g}", f"{row.nmse:.2g}", *speeds, number(row.upload_s)]
        shown.add_row(Text(row.codec), *cells)
    return shown
