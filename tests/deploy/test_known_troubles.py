"""The page of known troubles names tests that exist, and says which are slow."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINES = (ROOT / "docs" / "known-troubles.md").read_text().splitlines()
NAMED = [
    (line, *found) for line in LINES for found in re.findall(r"`(tests/\S+\.py)::(\w+)`", line)
]


@pytest.mark.parametrize(("line", "file", "name"), NAMED)
def test_a_test_that_is_named_is_there(line, file, name):
    source = (ROOT / file).read_text()

    assert f"def {name}(" in source
    if "pytest.mark.slow]" in source:
        assert "(slow)" in line


def test_every_section_is_covered():
    assert len(NAMED) > 40
