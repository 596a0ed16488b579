"""How strategies refuse options that cannot be, in one line each."""

import math

from fedsys.errors import ConfigError

MOST = 2**31 - 1
"""Larger whole numbers do not go into messages."""


def require_whole(options: object, *names: str, least: int = 1) -> None:
    """Raise ConfigError unless these are whole numbers from ``least`` to 2^31 - 1, or None."""
    for name in names:
        value = getattr(options, name)
        if value is not None and (type(value) is not int or value < least):
            raise ConfigError(f"{name} must be a whole number of {least} or more, got {value}")
        if value is not None and value > MOST:
            raise ConfigError(f"{name} must be at most {MOST}, got {value}")


def require_between(options: object, *names: str, low: float, high: float = math.inf) -> None:
    """Raise ConfigError unless these fields lie in (low, high] or are None."""
    for name in names:
        value = getattr(options, name)
        if value is not None and not low < value <= high:
            limit = "" if high == math.inf else f" and at most {high:g}"
            raise ConfigError(f"{name} must be above {low:g}{limit}, got {value}")
