"""A run folder survives torn writes, refuses strangers, and gives back what it was given."""

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsys.config.load import with_settings
from fedsys.config.schema import Experiment
from fedsys.errors import ConfigError
from fedsys.telemetry.records import read_records, record_line
from fedsys.telemetry.runfolder import RunFolder
from fedsys.types import ClientPlan, ClientReport, RoundPlan, RoundRecord

EXPERIMENT = Experiment()
TENSORS = {
    "w": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    "steps": np.array(2**63 - 1, np.int64),
    "none": np.zeros((0, 4), np.float64),
}


def record(number: int, **changes: object) -> RoundRecord:
    plan = RoundPlan(
        round=number,
        clients=(
            ClientPlan(node_id=2**63 + 5, local_steps=3, lr=0.1, uplink="none", reason='a "b"\n'),
        ),
        downlink="none",
        deadline_s=None,
        reason="first",
    )
    fields = {
        "round": number,
        "plan": plan,
        "reports": (ClientReport(node_id=2**63 + 5, accepted=True, reason="", train_loss=1 / 3),),
        "start_s": float(number - 1),
        "end_s": float(number),
        "downlink_bytes": 10,
        "uplink_bytes": 20,
        "train_loss": 0.5,
        "step_norm": None,
        "agreement": None,
    }
    return RoundRecord(**(fields | changes))


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run-1", EXPERIMENT, resume=False)


def contents(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


@given(loss=st.floats(allow_nan=False, allow_infinity=False), end_s=st.floats(0, 1e12))
def test_floats_come_back_to_the_last_bit(loss, end_s, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "exact.jsonl"
    written = record(1, train_loss=loss, end_s=end_s)
    path.write_bytes(record_line(written))

    assert read_records(path) == [written]
    assert record_line(read_records(path)[0]) == record_line(written)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_figure_that_is_not_finite_is_refused_and_nothing_is_written(folder, bad):
    folder.append(record(1))
    before = contents(folder.path)

    with pytest.raises(ValueError, match="round 2 holds a figure that is not finite"):
        folder.append(record(2, step_norm=bad))

    assert contents(folder.path) == before


@pytest.mark.parametrize("kept_bytes", [1, 40, 200])
def test_a_torn_last_line_is_ignored_when_read_and_gone_after_resume(folder, kept_bytes):
    for number in (1, 2):
        folder.append(record(number))
    file = folder.path / "rounds.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + record_line(record(3))[:kept_bytes])

    assert [r.round for r in folder.records()] == [1, 2]
    resumed = RunFolder.create(folder.path, EXPERIMENT, resume=True)
    assert file.read_bytes() == whole
    resumed.append(record(3))
    assert [r.round for r in resumed.records()] == [1, 2, 3]


def test_truncate_keeps_the_first_lines_byte_for_byte_and_refuses_to_invent_some(folder):
    for number in (1, 2, 3):
        folder.append(record(number))
    folder.truncate(2)
    assert (folder.path / "rounds.jsonl").read_bytes() == b"".join(
        record_line(record(number)) for number in (1, 2)
    )
    with pytest.raises(ConfigError, match="2 rounds recorded where 3 are needed"):
        folder.truncate(3)


def test_a_whole_line_that_is_no_record_is_named(folder):
    folder.append(record(1))
    with (folder.path / "rounds.jsonl").open("ab") as file:
        file.write(b'{"round": 2}\n')
    with pytest.raises(ConfigError, match="line 2 is not a round record"):
        folder.records()


def test_another_experiment_is_refused_by_its_first_differing_key_and_nothing_changes(folder):
    before = contents(folder.path)
    other = with_settings(EXPERIMENT, {"training.lr": 0.05, "server.lr": 0.5}, "test")

    with pytest.raises(
        ConfigError, match=r"another experiment: training\.lr is 0\.1 there and 0\.05 now"
    ):
        RunFolder.create(folder.path, other, resume=True)

    assert contents(folder.path) == before


def test_a_key_that_only_one_side_sets_is_a_difference(folder):
    targeted = with_settings(EXPERIMENT, {"run.target": 0.9}, "test")
    with pytest.raises(ConfigError, match=r"run\.target is not set there and 0\.9 now"):
        RunFolder.create(folder.path, targeted, resume=True)


def test_a_run_that_has_begun_needs_resume(folder):
    RunFolder.create(folder.path, EXPERIMENT, resume=False)
    folder.append(record(1))
    with pytest.raises(ConfigError, match="holds a run that has begun; use --resume"):
        RunFolder.create(folder.path, EXPERIMENT, resume=False)
    folder.save_result({"stopped_by": "rounds"})
    with pytest.raises(ConfigError, match="holds a finished run; use --resume"):
        RunFolder.create(folder.path, EXPERIMENT, resume=False)
    assert RunFolder.create(folder.path, EXPERIMENT, resume=True).records() == [record(1)]


def test_a_file_or_a_stranger_s_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="is a file"):
        RunFolder.create(tmp_path / "file", EXPERIMENT, resume=True)
    with pytest.raises(ConfigError, match="cannot be written"):
        RunFolder.create(tmp_path / "file" / "below", EXPERIMENT, resume=True)
    with pytest.raises(ConfigError, match="not empty and not a run folder"):
        RunFolder.create(tmp_path, EXPERIMENT, resume=True)
    with pytest.raises(ConfigError, match="not a run folder"):
        RunFolder.open(tmp_path)
    assert contents(tmp_path) == {"file": b"x"}


def test_a_folder_that_died_while_it_was_made_can_be_used(tmp_path):
    (tmp_path / "experiment.toml.tmp").write_text("[ru")
    assert RunFolder.create(tmp_path, EXPERIMENT, resume=False).records() == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"total": 3}'])
def test_a_damaged_result_is_an_error(folder, text):
    RunFolder.create(folder.path, EXPERIMENT, resume=False)
    (folder.path / "result.json").write_text(text)
    with pytest.raises(ConfigError, match=r"result\.json: not"):
        folder.result()


def test_open_gives_the_experiment_and_result_back(folder):
    experiment = with_settings(EXPERIMENT, {"run.target": 0.9, "strategy.options.a": [1]}, "test")
    result = {"stopped_by": "rounds", "x": 1.5}
    RunFolder.create(folder.path.parent / "b", experiment, resume=False).save_result(result)
    again = RunFolder.open(folder.path.parent / "b")
    assert again.experiment == experiment
    assert again.result() == result
    assert folder.result() is None
    assert RunFolder.open(folder.path).experiment == EXPERIMENT


def test_checkpoint_comes_back_exactly_and_writable(folder):
    assert folder.load_checkpoint() is None
    folder.save_checkpoint(4, TENSORS, {"clock_s": 0.1, "names": ["a"], "none": None})

    loaded = folder.load_checkpoint()

    assert loaded is not None
    assert (loaded.round, loaded.state) == (4, {"clock_s": 0.1, "names": ["a"], "none": None})
    assert loaded.tensors.keys() == TENSORS.keys()
    for name, value in TENSORS.items():
        assert loaded.tensors[name].dtype == value.dtype
        assert loaded.tensors[name].flags.writeable
        np.testing.assert_array_equal(loaded.tensors[name], value)


@pytest.mark.parametrize("cut", [0, 5, 100, -1])
def test_a_torn_checkpoint_falls_back_to_the_one_before(folder, cut):
    folder.save_checkpoint(1, TENSORS, {})
    folder.save_checkpoint(2, TENSORS, {})
    newest = folder.path / "checkpoint" / "round.safetensors"
    newest.write_bytes(newest.read_bytes()[:cut])
    loaded = folder.load_checkpoint()
    assert loaded is not None
    assert loaded.round == 1


def test_a_crash_between_the_two_renames_leaves_the_older_checkpoint(folder):
    folder.save_checkpoint(1, TENSORS, {})
    newest = folder.path / "checkpoint" / "round.safetensors"
    newest.rename(newest.with_name("previous.safetensors"))
    newest.with_name("round.safetensors.tmp").write_bytes(b"half")
    loaded = folder.load_checkpoint()
    assert loaded is not None
    assert loaded.round == 1


@given(position=st.integers(0), bit=st.integers(0, 7))
def test_no_flipped_bit_in_a_checkpoint_goes_unnoticed(position, bit, tmp_path_factory):
    from fedsys.telemetry.checkpoint import pack_checkpoint, unpack_checkpoint

    data = bytearray(pack_checkpoint(3, {"w": np.ones(8, np.float32)}, {"a": 1}))
    data[position % len(data)] ^= 1 << bit
    try:
        loaded = unpack_checkpoint(bytes(data))
    except ValueError:
        return
    # White space in the header is the only place where a flip may change nothing.
    assert (loaded.round, loaded.state) == (3, {"a": 1})
    np.testing.assert_array_equal(loaded.tensors["w"], np.ones(8, np.float32))


def test_unreadable_checkpoints_are_an_error_not_a_silent_start_from_scratch(folder):
    for number in (1, 2):
        folder.save_checkpoint(number, TENSORS, {})
    for file in (folder.path / "checkpoint").iterdir():
        file.write_bytes(b"rubbish")
    with pytest.raises(ConfigError, match=r"round\.safetensors: checkpoint cannot be read"):
        folder.load_checkpoint()


def test_equal_weights_give_an_equal_model_file(folder, tmp_path):
    other = RunFolder.create(tmp_path / "other", EXPERIMENT, resume=False)
    reordered = {name: TENSORS[name] for name in reversed(TENSORS)}
    assert folder.save_model(TENSORS) == other.save_model(reordered)
    changed = TENSORS | {"w": TENSORS["w"] + 1}
    assert folder.save_model(changed) != other.save_model(TENSORS)


def test_finish_removes_only_what_clients_kept(folder):
    folder.scratch.mkdir()
    (folder.scratch / "state").write_text("x")
    folder.save_checkpoint(1, TENSORS, {})
    folder.finish()
    assert not folder.scratch.exists()
    assert folder.load_checkpoint() is not None
    folder.finish()


def test_records_of_equal_runs_are_equal_bytes():
    assert record_line(record(1)) == record_line(replace(record(1)))


def test_a_run_goes_back_to_a_round_that_was_kept_and_to_no_other(folder):
    for number in range(1, 8):
        folder.append(record(number))
        folder.save_checkpoint(number, {"w": np.full(3, number, np.float32)}, {})
        if number % 3 == 0:
            folder.keep_checkpoint(number)
    folder.save_result({"rounds": 7})

    with pytest.raises(ConfigError, match="round 4 was not kept; kept are: 3, 6, 7"):
        folder.roll_back(4)
    folder.roll_back(3)

    assert [r.round for r in folder.records()] == [1, 2, 3]
    assert folder.load_checkpoint().tensors["w"].tolist() == [3, 3, 3]
    assert folder.result() is None
    with pytest.raises(ConfigError, match="kept are: 3"):
        folder.roll_back(6)


def test_half_a_line_on_a_full_disk_is_an_error_and_the_next_line_does_not_follow_it(folder):
    folder.append(record(1))
    size_bytes = (folder.path / "rounds.jsonl").stat().st_size
    code = (
        "import resource, signal, sys\n"
        "from fedsys.telemetry.records import append_record, read_records\n"
        "from pathlib import Path\n"
        "path, limit = Path(sys.argv[1]), int(sys.argv[2])\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))\n"
        "append_record(path, read_records(path)[0])\n"
    )
    path = folder.path / "rounds.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", code, path, str(size_bytes + 100)], capture_output=True, text=True
    )

    assert "No space left on device" in done.stderr
    assert path.stat().st_size == size_bytes + 100
    assert len(folder.records()) == 1
    folder.truncate(1)
    folder.append(record(2))
    assert [r.round for r in folder.records()] == [1, 2]
