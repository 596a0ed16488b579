"""``fedsys list``: every name an experiment file may use, explained by its own docstring."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from fedsys.cli.tables import check_writable, console, help_table, write_json
from fedsys.options import options_text
from fedsys.registry import available, load


class Kind(StrEnum):
    """What can be listed."""

    CODECS = "codecs"
    STRATEGIES = "strategies"
    LINKS = "links"
    TASKS = "tasks"
    DEVICES = "devices"


def list_command(
    kind: Annotated[Kind, typer.Argument(help="What to list.")],
    json: Annotated[Path | None, typer.Option(help="Also write the list as JSON.")] = None,
) -> None:
    """List the names that an experiment file may use, with their options."""
    check_writable(json, "--json")
    entries = _LISTS[kind]()
    console().print(help_table(entries))
    write_json(json, {kind.value: [{"name": name, "help": text} for name, text in entries]})


def _registered(package: str) -> Callable[[], list[tuple[str, str]]]:
    """Names and help of the classes in a registry folder."""
    return lambda: [(name, _help(load(package, name))) for name in available(package)]


def _links() -> list[tuple[str, str]]:
    from netem.profiles import available_links

    return available_links()


def _devices() -> list[tuple[str, str]]:
    from netem.devices import available_devices

    return available_devices()


_LISTS: dict[Kind, Callable[[], list[tuple[str, str]]]] = {
    Kind.CODECS: _registered("fedsys.codecs"),
    Kind.STRATEGIES: _registered("strategies"),
    Kind.LINKS: _links,
    Kind.TASKS: _registered("clients.tasks"),
    Kind.DEVICES: _devices,
}


def _help(kind: Any) -> str:
    """The docstring in one paragraph, then the options with their defaults."""
    text = " ".join((kind.__doc__ or "").split())
    options = options_text(kind)
    return f"{text} Options: {options}" if options else text
