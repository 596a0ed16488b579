"""From a TOML file and ``--set key=value`` to an Experiment, or one line saying what is wrong."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import tomli_w
from pydantic import BaseModel, ValidationError

from fedsys.config.schema import Experiment
from fedsys.errors import ConfigError
from fedsys.registry import nearest


def load_experiment(path: Path, settings: Sequence[str] = ()) -> Experiment:
    """The experiment in ``path`` with ``key=value`` settings applied in order.

    Raises ConfigError, naming the file and the key, for anything that is not a valid experiment.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    return parse_experiment(text, settings, where=str(path))


def parse_experiment(text: str, settings: Sequence[str] = (), *, where: str) -> Experiment:
    """The experiment that ``text`` (TOML) describes; ``where`` names it in errors."""
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where}: not valid TOML: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{where}: not valid TOML: brackets in brackets without end") from error
    for setting in settings:
        _apply(tree, *_split(setting))
    return experiment_from(tree, where)


def with_settings(experiment: Experiment, settings: Mapping[str, Any], where: str) -> Experiment:
    """``experiment`` with dotted keys set to new values and everything checked again."""
    tree = _plain(experiment)
    for key, value in settings.items():
        _apply(tree, key, value)
    return experiment_from(tree, where)


def flattened(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys for sections written as tables: ``run = { target = 1 }`` is ``run.target``.

    A section given whole would reset its other keys. Options are no section: they are one value.
    """
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and _is_section(key):
            found |= flattened({f"{key}.{name}": inner for name, inner in value.items()})
        else:
            found[key] = value
    return found


def experiment_from(tree: Mapping[str, Any], where: str) -> Experiment:
    """Validate a tree of plain values; the first fault becomes a ConfigError of one line."""
    try:
        return Experiment.model_validate_json(json.dumps(tree, default=str))
    except ValidationError as error:
        raise ConfigError(f"{where}: {_first_fault(error)}") from error


def dump_toml(experiment: Experiment) -> str:
    """The experiment with every key written out; reading it back gives an equal experiment."""
    return tomli_w.dumps(_plain(experiment))


def _plain(experiment: Experiment) -> dict[str, Any]:
    tree = experiment.model_dump(mode="json", exclude_none=True)
    if experiment.run.target is None:
        del tree["run"]["stop_at_target"]  # refused beside no target; there it is the default
    return tree


def _split(setting: str) -> tuple[str, Any]:
    key, equals, value = setting.partition("=")
    if not equals or not all(part.strip() for part in key.split(".")):
        raise ConfigError(f"--set {setting}: expected key=value, e.g. training.lr=0.05")
    return key.strip(), _toml_value(value.strip())


def _toml_value(text: str) -> Any:
    """``text`` as TOML where it is TOML, else as a string, so that quotes are optional."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _apply(tree: dict[str, Any], key: str, value: Any) -> None:
    *sections, last = key.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"{key}: '{section}' is a value, not a section")
    tree[last] = value


def _first_fault(error: ValidationError) -> str:
    fault = error.errors()[0]
    path = [str(part) for part in fault["loc"]]
    key = ".".join(path)
    if fault["type"] == "extra_forbidden":
        siblings = sorted(_model_at(path[:-1]).model_fields)
        return f"{key}: unknown key; {nearest(path[-1], siblings)}"
    message = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "value_error":
        return f"{key}: {message}" if key else message
    shown = repr(fault["input"])
    return f"{key}: {message[0].lower()}{message[1:]}, got {shown[:60]}"


def _model_at(path: Sequence[str]) -> type[BaseModel]:
    """The section that a path of keys leads to, for the list of names allowed there."""
    model: type[BaseModel] = Experiment
    for part in path:
        if part in model.model_fields:
            model = _section_in(model.model_fields[part].annotation) or model
    return model


def _is_section(key: str) -> bool:
    model: type[BaseModel] = Experiment
    for part in key.split("."):
        section = part in model.model_fields and _section_in(model.model_fields[part].annotation)
        if not section:
            return False
        model = section
    return True


def _section_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (tuple, Union, UnionType, list):
        for inner in get_args(annotation):
            if found := _section_in(inner):
                return found
    return None
