"""A fleet that leaves nothing behind."""

import time

import pytest

from tests.deploy.fleet import Fleet


@pytest.fixture
def fleet(tmp_path):
    made = Fleet(tmp_path)
    yield made
    made.stop()
    until_s = time.monotonic() + 15
    while (left := made.processes()) and time.monotonic() < until_s:
        time.sleep(0.1)
    assert not left
