"""``fedsys links``: what a link looks like, and how long messages take on it."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from fedsys.cli.listing import Kind, list_command
from fedsys.cli.tables import check_writable, console, write_json
from fedsys.errors import ConfigError

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
    from fedsys.cli.link_screen import duration_table, notes, picture, rate_table
    from netem.describe import WAYS, Window, describe
    from netem.spec import parse_link

    check_writable(json, "--json")
    check_writable(plot, "--plot")
    if plot is not None and plot.suffix not in (".png", ".svg"):
        raise ConfigError(f"--plot {plot}: must end in .png or .svg")
    spec = parse_link(link)
    found = describe(spec, seed, node, seconds)
    shown = spec.link(seed, node)
    windows = {way: Window.of(shown.way(way).curve, found.seconds) for way in WAYS}
    out = console()
    out.print(Text(link.strip(), "bold"), soft_wrap=True)
    if found.text != link.strip():
        out.print(f"link: {found.text}", soft_wrap=True)
    out.print(f"what: {found.what}", soft_wrap=True)
    out.print(f"numbers: {found.source}", soft_wrap=True)
    for way, window in windows.items():
        out.print()
        for line in picture(out, f"{way}link", window):
            out.print(line, no_wrap=True, overflow="crop")
    out.print()
    out.print(rate_table(found))
    for note in notes(found):
        out.print(note, soft_wrap=True)
    out.print()
    out.print(duration_table(found))
    if plot is not None:
        from fedsys.telemetry.rateplot import write_rate_plot

        ways = {f"{way}link": (one.edge_s, one.rate_bps) for way, one in windows.items()}
        write_rate_plot(plot, f"node {node}, seed {seed}, {link.strip()}", ways)
    write_json(json, _finite(asdict(found)))


def _finite(value: Any) -> Any:
    """``value`` for JSON: null is a rate without limit, or a time that never comes."""
    if isinstance(value, dict):
        return {str(key): _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
