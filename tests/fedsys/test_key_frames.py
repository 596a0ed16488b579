"""When the whole model goes out again, coded, and who then has what."""

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsys.middleware.control import unwrap
from fedsys.rng import rng_for
from fedsys.wire.packet import Kind, kind_of, unpack
from fedsys.wire.schema import Schema
from tests.fedsys._exchange import Federation, N, frames_of, model_at


def specs_of(message):
    schema, frames = Schema.of(model_at(0)), frames_of(message)[:1]
    packets = [unpack(frame, schema=schema, max_bytes=1 << 20) for frame in frames]
    return [(packet.kind, packet.spec) for packet in packets]


def test_those_who_lack_many_versions_get_a_key_frame_and_go_on_from_it(tmp_path):
    federation = Federation(tmp_path, downlink="int4", first_model="int8")
    federation.advance(1, "int4", [1])
    federation.server.seen(1, 1)
    federation.advance(2, "int4", [1])
    assert specs_of(federation.message(1)) == [(Kind.DELTA, "int4")]
    federation.advance(3, "int4", [1])  # two differences of half a byte a value: no less

    message = federation.message(1)
    assert specs_of(message) == [(Kind.MODEL, "int8")]
    assert len(frames_of(message)) == 1
    assert len(unwrap(message.content)[1]) < 1.05 * N + 400
    model = model_at(3)["w"]
    federation.deliver(message)
    federation.assert_client_has_what_was_sent()
    # Nothing of what earlier differences dropped is left: half a step of int8 at most.
    assert np.abs(federation.got["w"] - model).max() <= np.abs(model).max() / 127 / 2 * 1.01
    federation.server.seen(1, 3)
    federation.advance(4, "int4", [1])
    for node, kinds in ((1, [Kind.DELTA]), (2, [Kind.MODEL, Kind.DELTA])):
        message = federation.message(node)
        assert [kind_of(frame) for frame in frames_of(message)] == kinds
        federation.deliver(message)
        federation.assert_client_has_what_was_sent()


@pytest.mark.parametrize(
    ("downlink", "config"),
    [
        ("fp16", {}),
        ("int4", {"key_frames": False}),
        ("int4", {"first_model": "none"}),
        ("topk(0.1)|int8", {"first_model": "int4"}),
    ],
)
def test_no_key_frame_that_is_coarser_than_asked_for_or_not_wanted(tmp_path, downlink, config):
    federation = Federation(tmp_path, downlink=downlink, **config)
    federation.advance(1, downlink, [1])
    federation.server.seen(1, 1)
    for version in range(2, 8):
        federation.advance(version, downlink, [1])
        kinds = specs_of(federation.message(1))
        assert not {(Kind.MODEL, "int8"), (Kind.MODEL, "int4")} & set(kinds)


@pytest.mark.parametrize("downlink", ["int4", "ecq(1)", "ecq(0.25)"])
@pytest.mark.parametrize(("cohort", "nodes", "most"), [(5, 20, 1.15), (2, 8, 1.15), (10, 100, 0.9)])
def test_in_the_long_run_key_frames_hardly_cost_more(tmp_path, downlink, cohort, nodes, most):
    """Beside a server that never makes one, 60 rounds of the same cohorts."""
    sent = {}
    for key_frames in (True, False):
        federation = Federation(
            tmp_path / str(key_frames), downlink=downlink, key_frames=key_frames
        )
        server, model = federation.server, model_at(0)["w"]
        total = 0
        for version in range(1, 61):
            rng = rng_for(7, version)
            asked = rng.choice(nodes, cohort, replace=False).tolist()
            model = model + 0.01 * rng.standard_normal(N).astype(np.float32)
            server.advance({"w": model, "steps": np.array(version)}, downlink, asked)
            total += sum(len(server.payload_for(node)) for node in asked)
            for node in asked:
                server.seen(node, version)
        sent[key_frames] = total
    assert sent[True] <= most * sent[False]


def test_all_who_get_a_key_frame_get_the_same_object(tmp_path):
    federation = Federation(tmp_path, downlink="int4")
    for version in range(1, 8):
        federation.advance(version, "int4", range(1, 8))
        federation.server.seen(version, version)
    assert federation.server.downlink.key > 3
    assert len({id(federation.server.payload_for(node)) for node in (0, 1, 2, 3)}) == 1


@settings(max_examples=40)
@given(data=st.data())
def test_a_key_frame_costs_the_rounds_clients_less_than_what_they_lack(tmp_path_factory, data):
    """Beside a server in the same state that makes none."""
    federation = Federation(
        tmp_path_factory.mktemp("state"),
        ring_versions=data.draw(st.integers(1, 6)),
        downlink="int8",
        first_model=data.draw(st.sampled_from(["int8", "int4", "fp16"])),
    )
    server, nodes = federation.server, range(1, 6)
    for version in range(1, data.draw(st.integers(2, 8))):
        asked = sorted(data.draw(st.sets(st.sampled_from(nodes), min_size=1)))
        spec = data.draw(st.sampled_from(["int8", "int4", "topk(0.1)|int8", "randk(0.2)"]))
        other = copy.deepcopy(server)
        server.advance(model_at(version), spec, asked)
        other.advance(model_at(version), spec)
        with_keys, without = (
            sum(len(one.payload_for(node)) for node in asked) for one in (server, other)
        )
        assert with_keys <= without
        for node in asked:
            server.seen(node, version)


def test_a_restored_server_knows_its_key_frames(tmp_path):
    first, second = (Federation(tmp_path / name, downlink="int4") for name in "ab")
    first.advance(1, "int4")
    first.server.seen(1, 1)
    for version in (2, 3):
        first.advance(version, "int4", [1])
    first.advance(4, "int4")
    assert first.server.downlink.key == 3
    second.server.downlink.restore(4, first.server.downlink.tensors())
    assert second.server.downlink.key == 3
    assert second.server.payload_for(1) == first.server.payload_for(1)
