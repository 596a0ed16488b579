"""Options of a dataclass are checked by its type hints."""

from dataclasses import dataclass, field

import pytest

from fedsys.errors import ConfigError
from fedsys.options import configured, options_text


@dataclass(frozen=True)
class Kind:
    """An example."""

    path: str
    steps: int | None = None
    sizes: tuple[int, ...] = field(default_factory=lambda: (1, 2))
    hidden: int = field(init=False, default=3)


def test_lists_become_tuples_and_what_is_not_given_has_its_default():
    assert configured("x", Kind, {"path": "p", "sizes": [3]}).sizes == (3,)
    assert configured("x", Kind, {"path": "p"}).sizes == (1, 2)
    assert configured("x", Kind, {"path": "p", "steps": 4}).steps == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "x: needs path"),
        ({"path": 1}, "x: path must be text, got 1"),
        ({"path": "p", "steps": "4"}, "x: steps must be a whole number, got '4'"),
        ({"path": "p", "steps": True}, "x: steps must be a whole number, got True"),
        ({"path": "p", "hidden": 4}, "x: no option 'hidden'"),
    ],
)
def test_what_does_not_fit_is_one_line_of_error(options, message):
    with pytest.raises(ConfigError) as caught:
        configured("x", Kind, options)
    assert str(caught.value).startswith(message)


def test_the_text_has_the_defaults_and_only_names_where_there_are_none():
    assert options_text(Kind) == "path, steps = None, sizes = (1, 2)"
