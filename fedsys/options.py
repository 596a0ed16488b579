"""How options from an experiment file become a checked dataclass, or a one-line ConfigError."""

import dataclasses
import functools
from dataclasses import MISSING
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fedsys.errors import ConfigError
from fedsys.registry import nearest


def configured(what: str, kind: Any, options: dict[str, Any]) -> Any:
    """``kind(**options)`` with names, types and ranges checked; ``what`` begins every message.

    Lists become tuples. A ``kind`` that is no dataclass checks its own options.
    """
    if dataclasses.is_dataclass(kind):
        _check(what, kind, options)
    try:
        return kind(**{key: _frozen(value) for key, value in options.items()})
    except (TypeError, ConfigError) as error:
        raise ConfigError(f"{what}: {error}") from error


def defaults(kind: Any) -> dict[str, Any]:
    """Option names of a dataclass with their defaults; MISSING where there is none."""
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    return {field.name: _default(field) for field in fields if field.init}


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def options_text(kind: Any) -> str:
    """The options as ``name = default, ...``; empty when there are none."""
    return ", ".join(
        key if default is MISSING else f"{key} = {default!r}"
        for key, default in defaults(kind).items()
    )


def _check(what: str, kind: Any, options: dict[str, Any]) -> None:
    known, hints = defaults(kind), _hints(kind)
    for key, value in options.items():
        if key not in known:
            hint = nearest(key, sorted(known)) if known else "it has none"
            raise ConfigError(f"{what}: no option '{key}'; {hint}")
        if not _fits(value, hints[key]):
            raise ConfigError(f"{what}: {key} must be {_words(hints[key])}, got {value!r}")
    missing = [key for key in known if known[key] is MISSING and key not in options]
    if missing:
        raise ConfigError(f"{what}: needs {' and '.join(missing)}")


@functools.lru_cache(maxsize=64)
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _fits(value: Any, hint: Any) -> bool:
    parts = get_args(hint)
    if get_origin(hint) is Literal:
        return value in parts
    if get_origin(hint) in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if get_origin(hint) is tuple:
        if not isinstance(value, list | tuple):
            return False
        if len(parts) == 2 and parts[1] is Ellipsis:
            return all(_fits(item, parts[0]) for item in value)
        return len(value) == len(parts) and all(map(_fits, value, parts))
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and value == value
    if isinstance(hint, type):
        return isinstance(value, hint) and (hint is bool or not isinstance(value, bool))
    return True


def _words(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(str, get_args(hint)))
    if get_origin(hint) in (Union, UnionType):
        # None is what an option is where nothing is said of it, and a file cannot say it.
        return " or ".join(_words(part) for part in get_args(hint) if part is not type(None))
    if get_origin(hint) is tuple:
        return f"a list like {hint}".replace("tuple", "list")
    return {float: "a number", int: "a whole number", str: "text", bool: "true or false"}.get(
        hint, str(hint)
    )


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value
