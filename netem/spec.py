"""One text for any link: a name with options, a TOML file, or a recorded trace.

What a command line takes where an experiment file has its ``[network]`` section.
"""

import csv
import os.path
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from fedsys.config.load import experiment_from
from fedsys.config.schema import Experiment, Network
from fedsys.errors import ConfigError, LinkError
from fedsys.registry import available, load, nearest
from netem.link import Link
from netem.profiles import MODELS, PROFILES, link_for
from netem.traces import guess_format

_WITH_OPTIONS = re.compile(r"([^()]*)\((.*)\)", re.DOTALL)
_OUTSIDER = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", re.ASCII)
_KEY = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_CLOSERS = {"[": "]", "{": "}", "(": ")"}
_MAX_WHOLE = 2**63

_UNITS_BPS = {"bps": 1.0, "kbps": 1e3, "mbps": 1e6, "bitrate": 1e3}
"""Unit by the last word of a CSV column; ``UL_bitrate`` is kbit/s in the logs of G-NetTrack."""
_WAYS = {"up": ("up", "ul", "uplink", "upload"), "down": ("down", "dl", "downlink", "download")}
_STAMPS = ("time_s", "t", "seconds")


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """A link by name, with the options that differ from what the name stands for."""

    name: str
    """A profile, a model, or ``package.module:Class``."""
    options: dict[str, Any] = field(default_factory=dict)

    def link(self, seed: int, node: int) -> Link:
        """The link of ``node``; ConfigError for an option or a file that cannot be used."""
        try:
            return link_for(self.name, self.options, seed, node)
        except (csv.Error, OverflowError, MemoryError) as error:
            raise ConfigError(f"link '{self.name}': {error or 'too large'}") from error

    def __str__(self) -> str:
        """The text that reads back as an equal spec."""
        if not self.options:
            return self.name
        return f"{self.name}({', '.join(f'{k}={_written(v)}' for k, v in self.options.items())})"


def link_from_text(text: str, seed: int, node: int) -> Link:
    """The link of ``node`` that ``text`` describes; see ``parse_link``."""
    return parse_link(text).link(seed, node)


def parse_link(text: str) -> LinkSpec:
    """What ``text`` names, checked as far as the name; options are checked by building a link.

    ``lte`` or ``constant(up_bps=1e6, down_bps=1e6, tcp=bbr)``: a profile or a model, values as in
    TOML with quotes optional. A path: a TOML file with ``link`` and ``options`` as in the section
    ``[network]`` of an experiment file, an experiment file, or a recorded trace, which is replayed
    from its beginning in both directions. Options in brackets after a path replace single numbers,
    as in ``log.csv(up_column=sent, down_column=received)``. A name comes before a file of that
    name; ``./lte`` is always the file. Raises ConfigError, with the nearest name where there is
    one.
    """
    text = text.strip()
    if not text:
        raise ConfigError("a link is a name such as 'lte', or a file; got no text")
    name, inside = text, ""
    match = _WITH_OPTIONS.fullmatch(text)
    if match is not None and not os.path.isfile(text):
        name, inside = match[1].strip(), match[2]
    options = _options(inside, name)
    if name in PROFILES or name in available(MODELS):
        return LinkSpec(name, options)
    if os.path.isfile(name):
        found = _from_file(name, options)
        return LinkSpec(found.name, {**found.options, **options})
    if _OUTSIDER.fullmatch(name):
        if not hasattr(load(MODELS, name), "build"):
            raise ConfigError(f"link '{name}': no link model, which has build(seed, node)")
        return LinkSpec(name, options)
    if "(" in name:
        raise ConfigError(f"link '{_short(name)}': write name(option=value, ...)")
    if "/" in name or name.endswith((".toml", ".csv", ".txt", ".up", ".down")):
        raise ConfigError(f"link '{_short(name)}': no such file")
    names = [*PROFILES, *available(MODELS)]
    raise ConfigError(f"no link '{_short(name)}', and no file of that name; {nearest(name, names)}")


def _options(inside: str, name: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    where = f"link '{_short(name)}'"
    for item in _split(inside, where):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not _KEY.fullmatch(key):
            raise ConfigError(f"{where}: write '{_short(item)}' as option=value")
        if key in options:
            raise ConfigError(f"{where}: {key} is given twice")
        options[key] = _value(value, f"{where}: {key}")
    return options


def _split(inside: str, where: str) -> list[str]:
    """Items between commas that stand in no brackets and no quotes."""
    items, begin, quote, open_brackets = [], 0, "", ""
    escaped = False
    for at, char in enumerate(inside):
        if escaped:
            escaped = False
        elif quote:
            escaped = char == "\\" and quote == '"'
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char in _CLOSERS:
            open_brackets += _CLOSERS[char]
        elif open_brackets and char == open_brackets[-1]:
            open_brackets = open_brackets[:-1]
        elif char == "," and not open_brackets:
            items.append(inside[begin:at])
            begin = at + 1
    if quote or open_brackets:
        missing = quote or open_brackets[-1]
        raise ConfigError(f"{where}: a {missing} is missing in '{_short(inside)}'")
    items.append(inside[begin:])
    return [item for item in items if item.strip()]


def _value(text: str, where: str) -> Any:
    """``text`` as TOML where it is a TOML value, else as text."""
    try:
        read = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError) as error:
        if text[:1] in ('"', "'", "[", "{", ""):
            raise ConfigError(f"{where}: cannot read the value '{_short(text)}'") from error
        return text
    value = read["value"]
    if len(read) > 1 or not isinstance(value, bool | int | float | str | list | dict):
        return text  # a date, or lines that happen to be TOML
    if isinstance(value, int) and abs(value) >= _MAX_WHOLE:
        raise ConfigError(f"{where} must be below 2^63 in magnitude, got '{_short(text)}'")
    return value


def _written(value: Any) -> str:
    """``value`` as TOML on one line."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_written(k)} = {_written(v)}' for k, v in value.items())}}}"
    return tomli_w.dumps({"v": value}).removeprefix("v = ").rstrip("\n")


def _from_file(path: str, options: dict[str, Any]) -> LinkSpec:
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    try:
        tree = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        if path.endswith(".toml"):
            raise ConfigError(f"{path}: not valid TOML: {error}") from error
        tree = {}
    return _from_tree(tree, path) if tree or path.endswith(".toml") else _from_trace(path, options)


def _from_tree(tree: dict[str, Any], path: str) -> LinkSpec:
    """The link of an experiment, or of a file that is a ``[network]`` section by itself."""
    if not tree.keys() & Experiment.model_fields.keys():
        if "link" not in tree:
            known = nearest(next(iter(tree), "link"), list(Network.model_fields))
            raise ConfigError(f'{path}: needs link = "...", or the keys of an experiment; {known}')
        tree = {"network": tree}
    network = experiment_from(tree, path).network
    return LinkSpec(network.link, network.options)


def _from_trace(path: str, options: dict[str, Any]) -> LinkSpec:
    try:
        form = options.get("format", "auto")
        form = guess_format(path) if form == "auto" else form
    except LinkError as error:
        raise ConfigError(f"{error}; nor is it a TOML file that describes a link") from error
    found = {f"{way}_file": path for way in _WAYS if f"{way}_bps" not in options}
    columns = _csv_columns(path, options) if form == "csv" else {}
    return LinkSpec("trace", {**found, "random_start": False, **columns})


def _csv_columns(path: str, options: dict[str, Any]) -> dict[str, Any]:
    """Options for a CSV file whose header names rates in a way that we know."""
    try:
        header = next(csv.reader(Path(path).read_text("utf-8").splitlines()), [])
    except csv.Error as error:
        raise ConfigError(f"{path}: cannot read its header: {error}") from error
    found: dict[str, Any] = {}
    for name in header:
        words = re.split(r"[\s_.-]+", name.strip().lower())
        for way, prefixes in _WAYS.items():
            if words[0] in prefixes and words[-1] in _UNITS_BPS:
                found.setdefault(f"{way}_column", name)
                found.setdefault("unit_bps", _UNITS_BPS[words[-1]])
    missing = [f"{way}_column" for way in _WAYS if f"{way}_bps" not in options]
    missing = [key for key in missing if key not in found and key not in options]
    if missing:
        given = ", ".join(f"{key}=..." for key in missing)
        raise ConfigError(
            f"{path}: which columns are rates? Write {path}({given}); "
            f"there are {', '.join(header)[:200]}"
        )
    stamps = [name for name in header if name.strip().lower() in _STAMPS]
    found |= {"time_column": stamps[0]} if stamps else {}
    return found | ({"keep": "State=D"} if "State" in header else {})


def _short(text: str) -> str:
    """``text`` on one line of a message."""
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:57]}..."
