"""Every private name of Flower that a deployment replaces is there, and does what is thought.

A new release of Flower that moves one of them fails here, not on a device.
"""

import importlib
import inspect
import re

import pytest

from fedsys.deploy import _flower, gate, refusals

REPLACED = [
    ("flwr.superlink.cli.flower_superlink", "_parse_superlink_lifespan_config"),
    ("flwr.superlink.cli.flower_superlink", "uvicorn"),
    ("flwr.superlink.cli.flower_superlink", "flower_superlink"),
    ("flwr.supernode.cli.flower_supernode", "_parse_supernode_lifespan_config"),
    ("flwr.supernode.cli.flower_supernode", "SuperNodeLifespanConfig"),
    ("flwr.supernode.start_client_internal", "time"),
    ("flwr.supernode.fleet_http_connection", "NodeAuthHttpInterceptor"),
    ("flwr.supercore.superexec.run_superexec", "get_executor"),
    ("flwr.app.message.array", "FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE"),
]


@pytest.mark.parametrize(("name", "attribute"), REPLACED)
def test_what_is_replaced_is_there_and_used(name, attribute):
    module = importlib.import_module(name)

    assert hasattr(module, attribute)
    # Named twice: where it is defined or imported, and where it is used.
    assert inspect.getsource(module).count(attribute.removeprefix("flower_superlink")) >= 2


def test_the_sleep_that_is_shortened_is_the_one_between_two_questions():
    source = inspect.getsource(importlib.import_module("flwr.supernode.start_client_internal"))

    assert "time.sleep(3)" in source
    assert set(re.findall(r"\btime\.\w+\(", source)) == {"time.sleep("}


def test_the_settings_of_both_processes_are_the_ones_that_are_given():
    link = importlib.import_module("flwr.superlink.config_loader").SuperLinkLifespanConfig
    node = importlib.import_module("flwr.supernode.cli.flower_supernode").SuperNodeLifespanConfig

    for kind, function in ((link, _flower.superlink), (node, _flower.supernode)):
        source = inspect.getsource(function)
        missing = [name for name in kind.__dataclass_fields__ if f"{name}=" not in source]
        assert not missing


def test_the_paths_of_the_fleet_api_are_those_of_the_gate():
    router = importlib.import_module("flwr.superlink.routers.fleet.router").router
    paths = {route.path for route in router.routes}

    assert gate.PULL in paths
    assert all(path.startswith(gate.FLEET) for path in paths)
    assert {gate.FLEET + name for name in gate.ENROLLED_ONLY} <= paths
    header = importlib.import_module("flwr.supercore.constant").FLEET_HTTP_PUBLIC_KEY_HEADER
    assert header.lower().encode() == gate.PUBLIC_KEY
    header = importlib.import_module("flwr.supercore.constant").FLEET_HTTP_SIGNATURE_HEADER
    assert header.lower().encode() == gate.SIGNATURE


def test_the_clocks_may_differ_by_what_flower_allows():
    constants = importlib.import_module("flwr.common.constant")

    assert constants.SYSTEM_TIME_TOLERANCE == refusals.TOLERATED_AHEAD_S
    assert constants.TIMESTAMP_TOLERANCE == refusals.TOLERATED_BEHIND_S
    assert gate.SEEN_S > constants.TIMESTAMP_TOLERANCE + constants.SYSTEM_TIME_TOLERANCE


def test_this_flower_is_one_that_is_known():
    _flower.check_version()


@pytest.mark.parametrize(
    "name",
    [
        "flwr.supercore.heartbeat",
        "flwr.supercore.corestate.sql_corestate",
        "flwr.supercore.corestate.in_memory_corestate",
    ],
)
def test_the_beat_of_tasks_is_what_these_modules_go_by(name):
    source = inspect.getsource(importlib.import_module(name))

    assert source.count("HEARTBEAT_DEFAULT_INTERVAL") >= 2
    assert (
        _flower.TASK_BEAT_S > importlib.import_module("flwr.common.constant").HEARTBEAT_CALL_TIMEOUT
    )


def test_flowers_grid_is_asked_by_the_names_that_it_has():
    grid = importlib.import_module("flwr.superlink.grid.http_grid").HttpGrid
    source = inspect.getsource(grid)

    assert isinstance(grid._runtime_client, property)
    assert {"self.node", "self._run"} <= set(re.findall(r"self\.\w+", source))


def test_objects_that_are_not_there_are_asked_for_again_as_soon_as_is_said():
    pull = importlib.import_module("flwr.supercore.inflatable.inflatable_utils").pull_objects

    assert {"initial_backoff", "backoff_cap"} <= pull.__kwdefaults__.keys()


def test_messages_that_wait_are_in_the_table_that_is_looked_at():
    models = importlib.import_module("flwr.supercore.state.schema.linkstate_models")
    table = models.MessageIns.__table__

    assert table.name == "message_ins"
    assert {"dst_node_id", "delivered_at", "created_at", "ttl"} <= set(table.columns.keys())
