"""Server and client agree bit for bit on the model, whatever was missed, lost or repeated."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsys.errors import WireError
from fedsys.middleware.control import unwrap
from fedsys.middleware.store import ClientStore
from fedsys.rng import rng_for
from fedsys.wire.packet import Kind, kind_of
from tests.fedsys._exchange import Federation, N, frames_of, model_at

DOWNLINKS = ["none", "fp16", "int8", "topk(0.1)|int8", "randk(0.2)"]


# ---- the way down

FATE = st.sampled_from(["missed", "answered", "reply lost", "twice", "evaluate"])


@settings(max_examples=60)
@given(data=st.data())
def test_after_any_pattern_of_missed_rounds_all_hold_the_same_model(tmp_path_factory, data):
    federation = Federation(
        tmp_path_factory.mktemp("state"),
        shared=data.draw(st.booleans()),
        dtype=data.draw(st.sampled_from([np.float16, np.float32, np.float64])),
        ring_versions=data.draw(st.integers(1, 5)),
        downlink="int8",
    )
    for version in range(1, data.draw(st.integers(1, 8)) + 1):
        moved, asked = data.draw(st.booleans()), data.draw(st.sets(st.sampled_from([1, 2])))
        federation.advance(version if moved else 1, data.draw(st.sampled_from(DOWNLINKS)), asked)
        for node in (1, 2):
            fate = data.draw(FATE)
            if fate == "missed":
                continue
            message = federation.message(node, "evaluate" if fate == "evaluate" else "train")
            for _ in range(2 if fate == "twice" else 1):
                federation.deliver(message)
                federation.assert_client_has_what_was_sent()
            if fate != "reply lost":
                federation.server.seen(node, federation.server.downlink.version)


def test_a_node_that_is_up_to_date_gets_no_frames_and_is_content(tmp_path):
    federation = Federation(tmp_path, downlink="int8")
    federation.advance(1, "int8")
    federation.deliver(federation.message(1, "evaluate"))
    federation.server.seen(1, 1)
    message = federation.message(1)

    assert unwrap(message.content)[1] == b""
    federation.deliver(message)
    federation.assert_client_has_what_was_sent()


def test_differences_come_one_by_one_and_the_whole_model_when_the_gap_is_beyond_the_ring(tmp_path):
    federation = Federation(tmp_path, downlink="topk(0.01)", ring_versions=3)
    federation.advance(1, "topk(0.01)")
    federation.deliver(federation.message(1))
    federation.server.seen(1, 1)
    kinds = {}
    for version in range(2, 6):
        federation.advance(version, "topk(0.01)")
        kinds[version] = [kind_of(frame) for frame in frames_of(federation.message(1))]

    assert kinds == {
        2: [Kind.DELTA],
        3: [Kind.DELTA] * 2,
        4: [Kind.DELTA] * 3,
        5: [Kind.MODEL],
    }
    federation.deliver(federation.message(1))
    federation.assert_client_has_what_was_sent()


def test_the_whole_model_is_sent_when_the_differences_cost_more(tmp_path):
    federation = Federation(tmp_path, downlink="fp16", ring_versions=9)
    federation.advance(1, "fp16")
    federation.server.seen(1, 1)
    sizes = {}
    for version in (2, 3):
        federation.advance(version, "fp16")
        sizes[version] = [kind_of(frame) for frame in frames_of(federation.message(1))]

    # Two bytes a value against four: two differences and their headers are dearer than the model.
    assert sizes == {2: [Kind.DELTA], 3: [Kind.MODEL]}


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_first_model_is_coded_and_what_it_drops_reaches_the_clients_later(tmp_path, dtype):
    federation = Federation(tmp_path, dtype=dtype, downlink="int8", first_model="int8")
    federation.advance(1, "int8")
    first = federation.message(1)
    federation.deliver(first)
    federation.assert_client_has_what_was_sent()
    # One byte a value, and at most half of a step of 1/127 of the largest value off.
    model = model_at(1, dtype)["w"].astype(np.float64)
    error = np.abs(federation.got["w"] - model).max()
    assert len(unwrap(first.content)[1]) < 1.05 * N + 400
    assert 0 < error <= np.abs(model).max() / 127 / 2 * 1.01

    federation.server.seen(1, 1)
    for wiggle in range(2, 6):  # only the counter moves: differences bring what is owed
        arrays = {"w": model_at(1, dtype)["w"], "steps": np.array(wiggle)}
        federation.server.advance(arrays, "int8")
    federation.deliver(federation.message(1))
    federation.assert_client_has_what_was_sent()
    assert np.abs(federation.got["w"] - model).max() < error / 50


def test_who_joins_late_gets_the_coded_first_model_and_all_differences_since(tmp_path):
    federation = Federation(tmp_path, downlink="topk(0.01)", first_model="int4", ring_versions=4)
    kinds = {}
    for version in range(1, 6):
        federation.advance(version, "topk(0.01)")
        message = federation.message(version)  # a new node each time
        kinds[version] = [kind_of(frame) for frame in frames_of(message)]
        federation.deliver(message)
        federation.assert_client_has_what_was_sent()

    assert kinds == {v: [Kind.MODEL] + [Kind.DELTA] * (v - 1) for v in range(1, 5)} | {
        5: [Kind.MODEL]
    }


@pytest.mark.parametrize(("downlink", "first"), [("none", "int8"), ("int8", "none")])
def test_the_first_model_is_exact_where_nothing_is_to_be_dropped(tmp_path, downlink, first):
    federation = Federation(tmp_path, downlink=downlink, first_model=first)
    federation.advance(1, downlink)
    federation.deliver(federation.message(1))
    assert federation.got["w"].tobytes() == model_at(1)["w"].tobytes()


def test_what_the_downlink_codec_drops_reaches_the_clients_later(tmp_path):
    federation = Federation(tmp_path, downlink="topk(0.05)")
    federation.advance(1, "topk(0.05)")
    target, distance = model_at(5)["w"], []
    for wiggle in range(60):
        arrays = {"w": target, "steps": np.array(wiggle)}
        federation.server.advance(arrays, "topk(0.05)")
        distance.append(float(np.abs(target - federation.server.downlink.sent).max()))

    assert distance[0] > 0.01
    assert distance[-1] == 0


@pytest.mark.parametrize("damage", ["gone", "another run", "another model", "server went back"])
def test_a_client_without_the_right_model_says_so_and_then_gets_it_whole(tmp_path, damage):
    federation = Federation(tmp_path, downlink="int8")
    for version in (1, 2):
        federation.advance(version, "int8")
        federation.deliver(federation.message(1))
        federation.server.seen(1, version)
    federation.advance(3, "int8")
    run_id = 1
    if damage == "gone":
        for path in (tmp_path / "run-1").iterdir():
            path.unlink()
    elif damage == "another run":
        run_id = 2
    elif damage == "another model":
        store = ClientStore(tmp_path / "run-1", shared=True)
        (path,) = tmp_path.glob("run-1/model-2-*")
        path.write_bytes(next(iter(tmp_path.glob("run-1/model-1-*"))).read_bytes())
        assert store.load(1).held_version == 2
    else:
        federation = Federation(tmp_path, downlink="int8", seed=9)
        for version in (4, 2, 3):
            federation.advance(version, "randk(0.5)")
            federation.server.seen(1, max(1, federation.server.downlink.version - 1))

    with pytest.raises(WireError, match="send the whole model"):
        federation.deliver(federation.message(1), run_id=run_id)
    federation.server.forget(1)
    for version in (5, 6):
        federation.deliver(federation.message(1), run_id=run_id)
        federation.assert_client_has_what_was_sent()
        federation.server.seen(1, federation.server.downlink.version)
        federation.advance(version, "int8")


def test_a_restored_server_goes_on_with_the_same_bytes(tmp_path):
    first, second = (Federation(tmp_path / name, downlink="topk(0.1)|int8") for name in "ab")
    for version in range(1, 5):
        first.advance(version, "topk(0.1)|int8")
    second.server.downlink.restore(4, first.server.downlink.tensors())
    for federation in (first, second):
        federation.server.seen(1, 2)
        federation.advance(5, "topk(0.1)|int8")

    one, other = (unwrap(federation.message(1).content)[1] for federation in (first, second))
    assert one == other
    assert first.server.downlink.checksum() == second.server.downlink.checksum()


# ---- the way up


@settings(max_examples=40)
@given(data=st.data())
def test_nothing_of_an_update_is_lost_or_counted_twice(tmp_path_factory, data):
    """Sum of what the server used plus the residual is the sum of what was trained, always."""
    uplink = data.draw(st.sampled_from(["topk(0.02)|int8", "int8", "randk(0.1)", "sign", "none"]))
    federation = Federation(tmp_path_factory.mktemp("state"), uplink=uplink, holds=False)
    trained, used = np.zeros(N), np.zeros(N)
    fates = data.draw(st.lists(st.sampled_from(["used", "lost", "crash", "missed"]), max_size=8))
    for version, fate in enumerate([*fates, "used"], start=1):
        federation.advance(version, "none")
        if fate == "missed":
            continue
        change = (rng_for(version, "update").standard_normal(N) * 0.1).astype(np.float32)
        message = federation.message(7)
        if fate == "crash":
            before = federation.deliver(message, change)
            assert before is not None
        reply = federation.deliver(message, change)
        trained += federation_change(federation, change)
        received = federation.server.receive(reply.content, version, uplink)
        if fate != "lost":
            federation.server.accept(7, version)
            used += received.update.dense()
    state = ClientStore(federation.folder / "run-1", shared=True).load(7)
    left = np.zeros(N) if state.pending is None else state.pending.left
    if uplink == "none":
        # Without residual there is nowhere to keep what was lost; what arrived is exact.
        left = trained - used
    np.testing.assert_allclose(used + left, trained, atol=2e-5)


def federation_change(federation, change):
    """What training really changed, rounding of the sum included."""
    return (federation.got["w"] + change).astype(np.float64) - federation.got["w"]


def test_the_same_message_after_a_crash_gives_the_same_bytes(tmp_path):
    federation = Federation(tmp_path, uplink="topk(0.02)|int8")
    for version in (1, 2):
        federation.advance(version, "none")
        message = federation.message(3)
        first, second = (unwrap(federation.deliver(message, 0.5).content)[1] for _ in range(2))
        federation.server.accept(3, version)

        assert first == second


def test_error_feedback_off_changes_the_bytes_from_the_second_update_on(tmp_path):
    sent = {}
    for feedback in (True, False):
        federation = Federation(
            tmp_path / str(feedback),
            holds=False,
            uplink="topk(0.02)|int8",
            error_feedback=feedback,
        )
        sent[feedback] = []
        for version in (1, 2, 3):
            federation.advance(version, "none")
            change = rng_for(version, "update").standard_normal(N)
            sent[feedback].append(unwrap(federation.deliver(federation.message(3), change).content))
            federation.server.accept(3, version)

    same = [on == off for on, off in zip(sent[True], sent[False], strict=True)]
    assert same == [True, False, False]
    assert not list((tmp_path / "False").rglob("node-3*"))


def test_runs_and_nodes_do_not_share_residuals(tmp_path):
    federation = Federation(tmp_path, uplink="topk(0.02)|int8")
    federation.advance(1, "none")
    federation.deliver(federation.message(3), 0.5)
    folders = [ClientStore(tmp_path / f"run-{run}", shared=True) for run in (1, 2)]

    assert folders[0].load(3).pending is not None
    assert folders[0].load(4).pending is None
    assert folders[1].load(3).pending is None


def test_a_device_keeps_the_state_of_its_latest_runs_only(tmp_path):
    federation = Federation(tmp_path, shared=False, uplink="topk(0.02)|int8")
    federation.advance(1, "none")
    for run_id in range(1, 13):
        federation.deliver(federation.message(3), 0.5, run_id=run_id)

    assert (tmp_path / "run-12" / "node-3").is_dir()
    assert len(list(tmp_path.iterdir())) == 8
