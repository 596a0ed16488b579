"""The text form of a chain: ``name(value, key=value)|name``, read and written."""

import inspect
import re
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, cast, get_type_hints

from fedsys.codecs._base import Stage
from fedsys.errors import ConfigError
from fedsys.registry import load, nearest

_PACKAGE = "fedsys.codecs"
_STAGE = re.compile(r"([A-Za-z_][\w.:]*)(?:\((.*)\))?", re.ASCII)
_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
Value = int | float | bool | str


def parse_stages(spec: str) -> tuple[Stage, ...]:
    """The stages of ``spec`` in order; ``none`` is a stage of its own only beside others."""
    if not isinstance(spec, str) or not spec.strip():
        raise ConfigError(f"a codec spec is a text such as 'topk(0.01)|int8', got {spec!r}")
    texts = [text.strip() for text in spec.split("|")]
    if texts == ["none"]:
        return ()
    return tuple(_parse_stage(text, spec) for text in texts)


def write_stages(stages: tuple[Stage, ...]) -> str:
    """The canonical spec: positional parameters always, the others where not the default."""
    return "|".join(_write_stage(stage) for stage in stages) or "none"


def _parse_stage(text: str, spec: str) -> Stage:
    where = f"codec '{spec}'"
    match = _STAGE.fullmatch(text)
    if match is None:
        raise ConfigError(f"{where}: cannot read '{text}', write name or name(value, key=value)")
    name, inside = match.groups()
    if name == "none":
        raise ConfigError(f"{where}: none stands alone")
    stage_type = load(_PACKAGE, name)
    if not inspect.isclass(stage_type) or not is_dataclass(stage_type):
        raise ConfigError(f"{where}: {name} is not a codec stage")
    options = _options(
        inside or "", name, {field.name: field for field in _fields_of(stage_type)}, stage_type
    )
    try:
        return cast(Stage, stage_type(**options))
    except TypeError as error:
        raise ConfigError(f"{where}: {name}: {error}") from error


def _options(
    inside: str, name: str, known: dict[str, Field[Any]], stage_type: type
) -> dict[str, Value]:
    """Parameters by name, each converted to the type of its field."""
    positional = [key for key, field in known.items() if not field.kw_only]
    hints = get_type_hints(stage_type)
    options: dict[str, Value] = {}
    for at, item in enumerate(inside.split(",") if inside.strip() else []):
        key, equals, text = (part.strip() for part in item.rpartition("="))
        if not equals:
            if at >= len(positional):
                raise ConfigError(f"{name}: write '{text}' as key=value; {_choices(known)}")
            key = positional[at]
        if key not in known:
            raise ConfigError(f"{name} has no parameter '{key}'; {_choices(known, key)}")
        if key in options:
            raise ConfigError(f"{name}: parameter '{key}' is given twice")
        options[key] = _value(text, hints[key], f"{name}.{key}")
    return options


def _fields_of(stage_type: type) -> tuple[Field[Any], ...]:
    return fields(stage_type) if is_dataclass(stage_type) else ()


def _choices(known: dict[str, Field[Any]], key: str = "") -> str:
    return nearest(key, sorted(known)) if known else "it takes none"


def _value(text: str, hint: object, where: str) -> Value:
    """``text`` as a number, a truth value or a word, whichever the field holds."""
    try:
        if hint is int:
            return int(text)
        if hint is float:
            return float(text)
    except ValueError as error:
        kind = "an integer" if hint is int else "a number"
        raise ConfigError(f"{where} must be {kind}, got '{text}'") from error
    if hint is bool:
        if text not in ("true", "false"):
            raise ConfigError(f"{where} must be true or false, got '{text}'")
        return text == "true"
    if not _WORD.fullmatch(text):
        raise ConfigError(f"{where} must be a word, got '{text}'")
    return text


def _write_stage(stage: Stage) -> str:
    stage_type = type(stage)
    module, _, short = stage_type.__module__.rpartition(".")
    name = short if module == _PACKAGE else f"{stage_type.__module__}:{stage_type.__qualname__}"
    shown = []
    for field in _fields_of(stage_type):
        value = getattr(stage, field.name)
        if not field.kw_only:
            shown.append(_write_value(value))
        elif field.default is MISSING or value != field.default:
            shown.append(f"{field.name}={_write_value(value)}")
    return f"{name}({','.join(shown)})" if shown else name


def _write_value(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)
