"""Every private name of Flower that a deployment replaces is there, and does what is thought.

A new release of Flower that moves one of them fails here, not on a device.
"""

import asyncio.sslproto
import importlib
import inspect
import re

import pytest
from fastapi.routing import iter_route_contexts
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)

from fedsys._flwr_private import set_task_identity, stamp
from fedsys.deploy import _flower, gate, refusals, runtime, spare
from fedsys.deploy._state import devices_of

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
    utils = importlib.import_module("flwr.supercore.inflatable.inflatable_utils")
    functions = (utils.pull_objects, utils.pull_and_inflate_object_from_tree)
    before = [dict(function.__kwdefaults__) for function in functions]

    try:
        _flower.pull_after(0.25, 0.5)
        now = [function.__kwdefaults__ for function in functions]
        assert all(one["initial_backoff"] == 0.25 for one in now)
        assert all(one["backoff_cap"] == 0.5 for one in now)
    finally:
        for function, defaults in zip(functions, before, strict=True):
            function.__kwdefaults__.update(defaults)


def test_what_is_spared_of_memory_is_there():
    mixin = importlib.import_module("flwr.supercore.sql_mixin")

    assert _flower.PRAGMAS.keys() <= dict(mixin.SQLITE_PRAGMAS).keys()
    assert "in SQLITE_PRAGMAS:" in inspect.getsource(mixin._set_sqlite_pragmas)
    assert "bytearray(self.max_size)" in inspect.getsource(asyncio.sslproto.SSLProtocol.__init__)


def test_where_tasks_are_told_of_what_is_there_is_where_they_ask():
    cli = importlib.import_module("flwr.supernode.cli.flower_supernode")
    state = importlib.import_module("flwr.supernode.nodestate.in_memory_nodestate")
    core = importlib.import_module("flwr.supercore.corestate.in_memory_corestate")
    store = importlib.import_module("flwr.supercore.object_store.in_memory_object_store")
    routes = importlib.import_module("flwr.supernode.main").create_app().routes
    paths = {context.path for context in iter_route_contexts(routes)}

    assert "uvicorn.Config(" in inspect.getsource(cli)
    assert state.InMemoryNodeState.create_task is core.InMemoryCoreState.create_task
    assert callable(store.InMemoryObjectStore.put)
    loop = inspect.getsource(importlib.import_module("flwr.supernode.start_client_internal"))
    assert loop.count("state.set_node_id(node_id)") == 1
    assert {runtime.ACQUIRE, runtime.PULL, *runtime.PUSHES} <= paths
    assert {field.name for field in PullObjectResponse.DESCRIPTOR.fields} >= {
        "object_found",
        "object_available",
    }


def test_the_middleware_that_is_spared_is_about_those_paths_alone():
    main = importlib.import_module("flwr.superlink.main")
    every = main._get_middleware()
    names = {getattr(one.cls, "__name__", "") for one in every}

    assert spare.PREFIXES.keys() <= names
    # What is not listed is about everything.
    assert names - spare.PREFIXES.keys() == {"BaseHTTPMiddleware", "ProtobufTranslationMiddleware"}
    for one in every:
        if prefix := spare.PREFIXES.get(one.cls.__name__):
            source = inspect.getsource(inspect.getmodule(one.cls))
            assert f'"{prefix}"' in source
    spared = spare.spared(every)
    assert [one.kwargs["kind"] for one in spared] == [one.cls for one in every]


OLD_ALEMBIC = pytest.mark.filterwarnings("ignore:No path_separator found:DeprecationWarning")


@pytest.fixture
def state(tmp_path):
    """A SuperLink's state in a file, and the devices of it as the gate sees them."""
    loader = importlib.import_module("flwr.superlink.config_loader")
    manager = loader.get_federation_manager(is_simulation=False)
    _, factory = loader.get_objectstore_linkstate_factories(str(tmp_path / "state.db"), manager)
    return factory.state(), devices_of(factory)


def message_to(linkstate, run_id, node):
    """Announce a message, as the ServerApp does; its pieces by number."""
    message = Message(RecordDict({"c": ConfigRecord({"n": node})}), node, "train")
    stamp(message, run_id=run_id, src_node_id=1, message_id="")
    message.metadata.__dict__["_message_id"] = message.object_id
    with no_object_id_recompute():
        pieces = {k: v.deflate() for k, v in get_all_nested_objects(message).items()}
        tree = get_object_tree(message)
    session = linkstate.start_session(run_id)
    message = remove_content_from_message(message)
    assert linkstate.store_message_and_object_tree(message, tree, session)[0]
    return session, pieces


@OLD_ALEMBIC
def test_a_device_is_told_of_a_message_when_all_of_it_is_there_and_once(state):
    linkstate, devices = state
    node = linkstate.create_node("aid", "name", b"key", 60)
    linkstate.activate_node(node, 60)
    constant = importlib.import_module("flwr.supercore.constant")
    federation = constant.NOOP_FEDERATION_ID
    kind = constant.TaskType.SERVER_APP
    run_id = linkstate.create_run(None, None, "9f86d08", {}, federation, None, "aid", kind)
    set_task_identity(run_id)
    session, pieces = message_to(linkstate, run_id, node)

    for name, content in pieces.items():
        assert devices.with_news() == set()
        assert linkstate.store_object(run_id, session, name, content)
    assert devices.with_news() == {node}
    assert linkstate.get_message_ins(node, 1)
    assert devices.with_news() == set()


@OLD_ALEMBIC
def test_enrolled_devices_are_known_by_their_keys_and_revoked_ones_are_told(state):
    linkstate, devices = state
    nodes = {key: linkstate.create_node("aid", "name", key, 60) for key in (b"a", b"b")}

    assert devices.enrolled() == nodes
    linkstate.delete_node("aid", nodes[b"a"])
    assert devices.enrolled() == {b"b": nodes[b"b"]}
    assert devices.with_news() == {nodes[b"a"]}
