"""``key=a,b,c`` on a command line: the settings of a sweep, and every combination of them."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from fedsys.cli.cells import Variant
from fedsys.errors import ConfigError

_CLOSERS = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True, slots=True)
class Axis:
    """One setting and its values; ``a+b=1,2`` gives two keys the same value."""

    keys: tuple[str, ...]
    values: tuple[Any, ...]
    whole: bool = False
    """Another setting's keys end in the same words, so that labels need all of them."""

    @classmethod
    def parse(cls, text: str) -> "Axis":
        """``key=a,b,c``; values are TOML where they are, else text."""
        name, equals, values = text.partition("=")
        keys = tuple(key.strip() for key in name.split("+"))
        if not equals or not all(keys):
            raise ConfigError(f"{text}: expected key=value,value, e.g. training.lr=0.03,0.1,0.3")
        found = tuple(_toml_value(value) for value in split_values(values))
        if any(isinstance(value, list | dict) for value in found):
            raise ConfigError(
                f"{text}: a value is a list or a table; write compare entries, which may have them"
            )
        if len(set(found)) < len(found):
            raise ConfigError(f"{text}: a value is given twice")
        if len(found) < 2:
            raise ConfigError(f"{text}: give two values or more, with commas between them")
        return cls(keys, found)

    @property
    def name(self) -> str:
        """What labels call it: the last words of its keys, or the whole of them."""
        return "+".join(key if self.whole else key.rsplit(".", 1)[-1] for key in self.keys)

    @property
    def is_numeric(self) -> bool:
        """Whether all values are numbers in ascending order, so that they may have a knee."""
        numbers = [v for v in self.values if isinstance(v, int | float) and not isinstance(v, bool)]
        return len(numbers) == len(self.values) and numbers == sorted(numbers)


def parse_axes(texts: Sequence[str]) -> list[Axis]:
    """Every ``key=a,b,c``, each with a name of its own."""
    axes = [Axis.parse(text) for text in texts]
    names = [axis.name for axis in axes]
    return [replace(axis, whole=names.count(axis.name) > 1) for axis in axes]


def combinations(axes: Sequence[Axis]) -> dict[tuple[Any, ...], Variant]:
    """Every combination of values, the last axis fastest, with its label and settings."""
    found: dict[tuple[Any, ...], Variant] = {}
    for values in product(*(axis.values for axis in axes)):
        pairs = list(zip(axes, values, strict=True))
        label = ", ".join(f"{axis.name} = {value}" for axis, value in pairs)
        found[values] = (label, {key: value for axis, value in pairs for key in axis.keys})
    return found


def split_values(text: str) -> list[str]:
    """Values between commas that stand in no brackets: ``topk(0.1)|int8,eden(1,x=2)`` is two."""
    values, depth, word = [], list[str](), ""
    for char in text:
        if char == "," and not depth:
            values.append(word.strip())
            word = ""
            continue
        if char in _CLOSERS:
            depth.append(_CLOSERS[char])
        elif depth and char == depth[-1]:
            depth.pop()
        word += char
    values.append(word.strip())
    if not all(values) or depth:
        raise ConfigError(f"'{text}': expected values with commas between them")
    return values


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
