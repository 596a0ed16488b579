"""From the ``[task]`` section to a task whose options have been checked."""

import dataclasses
import json
from typing import Any, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from clients.tasks._base import Task, check_is_task
from fedsys.config.schema import TaskConfig
from fedsys.errors import ConfigError
from fedsys.registry import load, nearest


def task_for(config: TaskConfig) -> Task:
    """The task that ``config`` names, with its options set.

    Raises ConfigError for an unknown task or option, a missing one, and a value of a wrong type.
    """
    kind = load("clients.tasks", config.name)
    if not dataclasses.is_dataclass(kind):
        raise ConfigError(f"task '{config.name}' is not a dataclass")
    fields = {field.name: field for field in dataclasses.fields(kind)}
    hints = get_type_hints(kind)
    options = {}
    for name, value in config.options.items():
        if name not in fields:
            known = (
                f"no option '{name}'; {nearest(name, sorted(fields))}" if fields else "no options"
            )
            raise ConfigError(f"task.options: task '{config.name}' has {known}")
        options[name] = _checked(f"task.options.{name}", value, hints[name])
    for name, field in fields.items():
        if name not in options and field.default is field.default_factory is dataclasses.MISSING:
            raise ConfigError(f"task.options.{name}: task '{config.name}' needs it")
    return check_is_task(kind(**options), config.name)  # type: ignore[operator]


def _checked(where: str, value: Any, hint: Any) -> Any:
    # Through JSON, so that a TOML list may fill a tuple while a text may not fill a number.
    adapter = TypeAdapter(hint, config=ConfigDict(strict=True))
    try:
        return adapter.validate_json(json.dumps(value, default=str))
    except ValidationError as error:
        message = error.errors()[0]["msg"]
        raise ConfigError(f"{where}: {message[0].lower()}{message[1:]}, got {value!r}") from error
