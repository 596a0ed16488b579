"""From the ``[task]`` section to a task whose options have been checked."""

from clients.tasks._base import Task, check_is_task
from fedsys.config.schema import TaskConfig
from fedsys.options import configured
from fedsys.registry import load


def task_for(config: TaskConfig) -> Task:
    """The task that ``config`` names, with its options set.

    Raises ConfigError for an unknown task or option, a missing one, and a value of a wrong type.
    """
    kind = load("clients.tasks", config.name)
    task = configured(f"task '{config.name}'", kind, config.options)
    return check_is_task(task, config.name)
