"""What a client remembers: which residual counts, and what becomes of damaged files."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsys.codecs._feedback import ResidualRule
from fedsys.middleware.store import ClientStore, HeldModel, NodeState, Pending
from fedsys.rng import rng_for
from fedsys.wire.schema import Schema

OLD, COMPENSATED, LEFT = (np.full(4, value, np.float32) for value in (1.0, 5.0, 2.0))


def state_after(version):
    """A node that has sent an update of model ``version``, held in full."""
    pending = Pending(version=version, compensated=COMPENSATED, left=LEFT)
    return NodeState(residual=OLD, pending=pending, held_version=version, held_checksum=77)


def model_of(seed, n=50):
    arrays = {"w": rng_for(seed).standard_normal(n).astype(np.float32), "steps": np.array(seed)}
    return HeldModel.of(Schema.of(arrays), arrays)


def same_state(left, right):
    pairs = [(left.residual, right.residual)]
    if left.pending and right.pending:
        pairs += [
            (left.pending.compensated, right.pending.compensated),
            (left.pending.left, right.pending.left),
        ]
        assert left.pending.version == right.pending.version
    assert (left.pending is None) == (right.pending is None)
    assert left.held_version == right.held_version
    assert left.held_checksum == right.held_checksum
    for one, other in pairs:
        np.testing.assert_array_equal(one, other)
    return True


# ---- settled


@pytest.mark.parametrize(
    ("sent", "now", "acked", "decay", "expected"),
    [
        pytest.param(3, 4, 3, 1.0, LEFT, id="accepted: only what the codec dropped is left"),
        pytest.param(3, 4, 2, 1.0, COMPENSATED, id="lost: all of it goes back"),
        pytest.param(3, 4, 0, 1.0, COMPENSATED, id="lost, nothing was ever accepted"),
        pytest.param(3, 3, 2, 1.0, OLD, id="same version again after a crash"),
        pytest.param(3, 3, 3, 1.0, LEFT, id="same version, and the update was accepted"),
        pytest.param(5, 3, 2, 1.0, OLD, id="the server went back to a checkpoint"),
        pytest.param(3, 4, 3, 0.5, LEFT, id="no version missed: no decay"),
        pytest.param(3, 6, 3, 0.5, LEFT / 4, id="two versions missed"),
        pytest.param(3, 6, 1, 0.5, COMPENSATED / 4, id="lost and two versions missed"),
        pytest.param(3, 6, 3, 0.0, LEFT * 0, id="decay 0 forgets"),
    ],
)
def test_settled_residual(sent, now, acked, decay, expected):
    settled = state_after(sent).settled(
        version=now, acked_version=acked, rule=ResidualRule(decay=decay)
    )

    np.testing.assert_array_equal(settled.residual, expected)
    assert settled.residual.dtype == np.float32
    assert settled.pending is None
    assert (settled.held_version, settled.held_checksum) == (sent, 77)


@pytest.mark.parametrize(
    ("turn", "version", "acked", "expected", "kept"),
    [
        pytest.param(6, 3, 5, LEFT, {4: None, 5: OLD}, id="accepted, the same model again"),
        pytest.param(6, 3, 4, COMPENSATED, {4: None, 5: OLD}, id="lost, the same model again"),
        pytest.param(6, 4, 5, LEFT, {}, id="accepted, another model: nobody goes back beyond it"),
        pytest.param(5, 3, 3, OLD, {4: None}, id="the same request after a crash"),
        pytest.param(4, 3, 3, None, {}, id="the one before it, after a crash"),
    ],
)
def test_where_requests_have_turns_those_tell_updates_of_one_model_apart(
    turn, version, acked, expected, kept, tmp_path
):
    pending = Pending(version=3, compensated=COMPENSATED, left=LEFT, turn=5)
    store = ClientStore(tmp_path, shared=True)
    store.save(7, NodeState(residual=OLD, pending=pending, held_version=3, earlier={4: None}))
    settled = store.load(7).settled(
        version=version, acked_version=acked, rule=ResidualRule(), turn=turn
    )
    assert settled.pending is None
    assert settled.earlier.keys() == kept.keys()
    pairs = [(settled.earlier[number], kept[number]) for number in kept]
    for found, known in [(settled.residual, expected), *pairs]:
        assert (found is None) == (known is None)
        assert found is None or np.array_equal(found, known)


def test_a_state_without_pending_update_is_settled():
    state = NodeState(residual=OLD, held_version=2)
    assert state.settled(version=9, acked_version=4, rule=ResidualRule(decay=0.5)) is state


def test_residuals_of_another_model_are_dropped_and_the_held_one_is_not():
    state = state_after(3)
    assert state.of_size(4) is state
    other = state.of_size(5)
    assert other.residual is None
    assert other.pending is None
    assert other.held_version == 3


# ---- files


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("state", [NodeState(), NodeState(held_version=2), state_after(8)])
def test_state_survives_the_disk(tmp_path, state, shared):
    ClientStore(tmp_path, shared=shared).save(7, state)
    assert same_state(ClientStore(tmp_path, shared=shared).load(7), state)
    assert same_state(ClientStore(tmp_path, shared=shared).load(8), NodeState())
    assert not list(tmp_path.glob("*.part"))


@given(data=st.data())
def test_a_torn_or_damaged_state_file_never_stops_a_client(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("store")
    store = ClientStore(folder, shared=True)
    store.save(1, state_after(3))
    (path,) = folder.iterdir()
    whole = path.read_bytes()
    kept = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytearray(whole)
    flipped[kept] ^= 1 << data.draw(st.integers(0, 7))
    damaged = data.draw(st.sampled_from([whole[:kept], bytes(flipped), b"garbage" * 9, b""]))
    path.write_bytes(damaged)

    state = store.load(1)
    assert isinstance(state, NodeState)
    store.save(1, state_after(4))
    assert same_state(store.load(1), state_after(4))


def test_a_state_file_with_nan_is_a_fresh_start(tmp_path):
    store = ClientStore(tmp_path, shared=True)
    store.save(1, NodeState(residual=np.array([1, np.nan], np.float32), held_version=3))
    assert same_state(store.load(1), NodeState())


@given(at=st.integers(0, 10_000), bit=st.integers(0, 7), cut=st.booleans())
def test_a_damaged_model_counts_as_lost_and_can_be_stored_again(tmp_path_factory, at, bit, cut):
    store = ClientStore(tmp_path_factory.mktemp("store"), shared=True)
    model = model_of(1)
    store.save_model(5, model, oldest_version=1)
    path = store._model_path(5, model.checksum())
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= 1 << bit
    path.write_bytes(data[: at % len(data)] if cut else data)

    # A flip in the padding of the header changes nothing of the model.
    assert store.load_model(5, model.checksum()) in (None, model)
    store.save_model(5, model, oldest_version=1)
    assert store.load_model(5, model.checksum()) == model


def test_the_same_version_of_another_run_is_another_model(tmp_path):
    store = ClientStore(tmp_path, shared=True)
    first, second = model_of(1), model_of(2)
    store.save_model(5, first, oldest_version=1)
    store.save_model(5, second, oldest_version=1)

    assert store.load_model(5, first.checksum()) == first
    assert store.load_model(5, second.checksum()) == second
    assert store.load_model(6, second.checksum()) is None


def test_simulated_nodes_keep_what_any_of_them_may_need_and_a_device_only_its_own(tmp_path):
    shared = ClientStore(tmp_path / "shared", shared=True)
    device = ClientStore(tmp_path / "device", shared=False)
    (tmp_path / "device" / "model-notes.txt").touch()
    models = {version: model_of(version) for version in range(1, 8)}
    for version, model in models.items():
        shared.save_model(version, model, oldest_version=max(1, version - 3))
        device.save_model(version, model, oldest_version=max(1, version - 3))

    def held(store):
        return [v for v, m in models.items() if store.load_model(v, m.checksum()) is not None]

    assert held(shared) == [4, 5, 6, 7]
    assert held(device) == [7]
    assert (tmp_path / "device" / "model-notes.txt").exists()


def test_a_write_that_was_cut_off_leaves_the_old_state(tmp_path, monkeypatch):
    store = ClientStore(tmp_path, shared=False)
    store.save(1, state_after(3))

    def power_cut(descriptor):
        raise OSError("power cut")

    monkeypatch.setattr(os, "fsync", power_cut)
    with pytest.raises(OSError, match="power cut"):
        store.save(1, state_after(4))
    assert same_state(store.load(1), state_after(3))


WRITER = """
import sys, pathlib
import numpy as np
from fedsys.middleware.store import ClientStore, HeldModel
from fedsys.wire.schema import Schema

arrays = {"w": np.arange(100_000, dtype=np.float32)}
model = HeldModel.of(Schema.of(arrays), arrays)
store = ClientStore(pathlib.Path(sys.argv[1]), shared=True)
for _ in range(30):
    store._model_path(5, model.checksum()).unlink(missing_ok=True)
    store.save_model(5, model, oldest_version=5)
"""


def test_processes_may_store_the_same_version_at_once(tmp_path):
    arrays = {"w": np.arange(100_000, dtype=np.float32)}
    model = HeldModel.of(Schema.of(arrays), arrays)
    store = ClientStore(tmp_path, shared=True)
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)]) for _ in range(2)]
    seen = []
    while any(writer.poll() is None for writer in writers):
        seen.append(store.load_model(5, model.checksum()))

    assert [writer.returncode for writer in writers] == [0, 0]
    assert all(found in (None, model) for found in seen)
    assert store.load_model(5, model.checksum()) == model
    assert [path.suffix for path in tmp_path.iterdir()] == [".safetensors"]


# ---- ended between two steps of a save


@pytest.mark.parametrize(("dies_at", "version"), [("rename 1", 1), ("rename 2", 1), ("unlink", 2)])
def test_a_shared_store_that_dies_while_it_saves_has_the_old_or_the_new_state(
    tmp_path, monkeypatch, dies_at, version
):
    store = ClientStore(tmp_path, shared=True)
    store.save(3, state_after(1))
    name, *place = dies_at.split()
    calls = iter(range(1, 9))
    real = getattr(type(tmp_path), name)

    def die(*args, **kwargs):
        if next(calls) == int(*place or [1]):
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(type(tmp_path), name, die)
        with pytest.raises(KeyboardInterrupt):
            store.save(3, state_after(2))

    anew = ClientStore(tmp_path, shared=True)
    assert anew.remembers(3)
    assert same_state(anew.load(3), state_after(version))
    anew.save(3, state_after(4))
    assert same_state(anew.load(3), state_after(4))
    assert [path.name for path in tmp_path.glob("node-3*")].count("node-3.safetensors") == 1
