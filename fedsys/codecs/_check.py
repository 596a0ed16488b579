"""Checks of codec parameters, shared so that every codec refuses in the same words."""

import math

from fedsys.errors import ConfigError
from fedsys.registry import nearest


def check_number(where: str, value: float, low: float, high: float) -> None:
    """Refuse what is not a finite number in the half-open interval (low, high]."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not low < value <= high:
        raise ConfigError(f"{where} must be a number in ({low:g}, {high:g}], got {value!r}")


def check_int(where: str, value: int, low: int, high: int) -> None:
    """Refuse what is not an integer in the closed interval [low, high]."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigError(f"{where} must be an integer from {low} to {high}, got {value!r}")


def check_choice(where: str, value: str, allowed: list[str]) -> None:
    """Refuse what is not one of ``allowed``."""
    if value not in allowed:
        raise ConfigError(f"{where} cannot be {value!r}; {nearest(str(value), allowed)}")


def check_bool(where: str, value: bool) -> None:
    """Refuse what is neither true nor false."""
    if not isinstance(value, bool):
        raise ConfigError(f"{where} must be true or false, got {value!r}")
