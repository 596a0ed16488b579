"""Names in the experiment file are file names: how a name becomes a class.

A file without a leading underscore in a registry folder is selectable and exports ``Impl``.
Lookup imports only the named file. ``package.module:Class`` names an outsider's.
"""

import difflib
import importlib
import pkgutil
import traceback
from typing import Any

from fedsys.errors import ConfigError

_BESIDE = "; of a module that is not installed, set PYTHONPATH to its folder"


def available(package: str) -> list[str]:
    """Selectable names in ``package``, sorted; imports the package but none of its files."""
    paths = importlib.import_module(package).__path__
    return sorted(
        module.name
        for module in pkgutil.iter_modules(paths)
        if not module.name.startswith("_") and not module.name.endswith("_app")
    )


def nearest(name: str, allowed: list[str]) -> str:
    """A sentence that helps someone who mistyped ``name``."""
    close = difflib.get_close_matches(name, allowed, n=1, cutoff=0.6)
    hint = f"did you mean '{close[0]}'? " if close else ""
    return f"{hint}choose from {', '.join(allowed)}"


def load(package: str, name: str, what: str | None = None) -> Any:
    """The class behind ``name``: ``Impl`` of that file, or ``package.module:Class``.

    Raises ConfigError when there is no such file, module or class. ``what`` is the word for it in
    the message; the last part of ``package`` without its plural where it is left out.
    """
    kind = what or package.rsplit(".", 1)[-1].rstrip("s")
    if ":" in name:
        module_name, _, attribute = name.partition(":")
        try:
            return getattr(importlib.import_module(module_name), attribute)
        except Exception as error:  # whatever somebody's own module does when it is imported
            why = str(error) if isinstance(error, ImportError | AttributeError) else _at(error)
            hint = _BESIDE if isinstance(error, ModuleNotFoundError) else ""
            raise ConfigError(f"{kind} '{name}' cannot be loaded: {why}{hint}") from error
    names = available(package)
    if name not in names:
        raise ConfigError(f"no {kind} '{name}'; {nearest(name, names)}")
    return importlib.import_module(f"{package}.{name}").Impl


def _at(error: Exception) -> str:
    """What went wrong in somebody's own module, and in which line."""
    if isinstance(error, SyntaxError):
        return f"{error.filename} line {error.lineno}: {error.msg}"
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{last.filename} line {last.lineno}: {type(error).__name__}: {error}"
