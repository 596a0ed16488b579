"""``fedsys simulate`` around a runner: progress, folders, resume and Ctrl-C."""

import json
import signal
from dataclasses import dataclass, replace

import pytest
import typer

from fedsys.cli.execution import INTERRUPTED, stop_on_interrupt
from fedsys.cli.simulate import run_simulation
from fedsys.config.load import with_settings
from fedsys.config.schema import Experiment
from fedsys.errors import ConfigError
from fedsys.telemetry.runfolder import RunFolder
from fedsys.types import ClientPlan, ClientReport, RoundPlan, RoundRecord

EXPERIMENT = with_settings(
    Experiment(), {"run.budget.rounds": 4, "run.target": 0.75, "run.stop_at_target": False}, "test"
)


@dataclass(frozen=True)
class Outcome:
    stopped_by: str
    records: list
    model_sha256: str = "ab" * 32


def record(number):
    plan = ClientPlan(node_id=1, local_steps=5, lr=0.1, uplink="topk(0.05)|int8", reason="r")
    return RoundRecord(
        round=number,
        plan=RoundPlan(round=number, clients=(plan,), downlink="none", deadline_s=None, reason=""),
        reports=(),
        start_s=10.0 * (number - 1),
        end_s=10.0 * number,
        downlink_bytes=3_000_000,
        uplink_bytes=1_000_000,
        train_loss=None,
        step_norm=None,
        agreement=None,
        test_metric=number / 4,
    )


def fake_run(experiment, folder, *, workers, on_round, stop):
    """Runs from the folder's checkpoint, as the real one does."""
    checkpoint = folder.load_checkpoint()
    done = checkpoint.round if checkpoint else 0
    folder.truncate(done)
    folder.scratch.mkdir(exist_ok=True)
    for number in range(done + 1, experiment.run.budget.rounds + 1):
        if stop():
            return Outcome(INTERRUPTED, folder.records())
        folder.append(record(number))
        folder.save_checkpoint(number, {}, {})
        if on_round:
            on_round(record(number))
    return Outcome("rounds", folder.records())


def interrupted_after(rounds):
    """Ctrl-C arrives during round ``rounds``."""

    def run(experiment, folder, *, workers, on_round, stop):
        def watch(record):
            on_round(record)
            if record.round == rounds:
                signal.raise_signal(signal.SIGINT)

        return fake_run(experiment, folder, workers=workers, on_round=watch, stop=stop)

    return run


def simulate(path, runner=fake_run, **changes):
    options = {"workers": 1, "resume": False, "json": None, "quiet": False} | changes
    run_simulation(EXPERIMENT, runner, path=path, **options)


def test_without_a_terminal_each_round_is_a_line_with_the_figures_people_watch(tmp_path, capsys):
    simulate(tmp_path / "a-1")
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "round 1/4  accuracy 25.0 %  10.0 s  uplink 1.00 MB  steps 5  topk(0.05)|int8",
        "round 2/4  accuracy 50.0 %  20.0 s  uplink 2.00 MB  steps 5  topk(0.05)|int8",
    ]
    assert lines[-1] == f"ended by rounds; {tmp_path / 'a-1'}"


def all_failing(experiment, folder, *, workers, on_round, stop):
    """One round in which node 1 gave no usable update."""
    report = ClientReport(node_id=1, accepted=False, reason="Diverged: the loss is nan")
    failed = replace(record(1), reports=(report,))
    folder.append(failed)
    on_round(failed)
    return Outcome("rounds", [failed])


def test_when_no_client_gives_an_update_the_reason_is_shown_quiet_or_not(tmp_path, capsys):
    simulate(tmp_path / "a-1", all_failing)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("used 0 of 1: Diverged: the loss is nan")
    simulate(tmp_path / "b-1", all_failing, quiet=True)
    assert "updates left out: Diverged: the loss is nan (1)\n" in capsys.readouterr().out


def test_quiet_still_shows_the_summary_and_no_round(tmp_path, capsys):
    simulate(tmp_path / "a-1", quiet=True)
    out = capsys.readouterr().out
    assert "round 1/4" not in out
    assert "ended by rounds" in out
    assert "to 75.0 %" in out


def test_a_finished_run_has_its_result_and_no_scratch(tmp_path):
    simulate(tmp_path / "a-1")
    folder = RunFolder.open(tmp_path / "a-1")
    result = folder.result()
    assert result is not None
    assert result["stopped_by"] == "rounds"
    assert result["model_sha256"] == "ab" * 32
    assert result["at_target"]["seconds"] == 30.0
    assert not folder.scratch.exists()


def test_json_has_the_row_that_compare_has(tmp_path):
    simulate(tmp_path / "a-1", json=tmp_path / "x.json")
    row = json.loads((tmp_path / "x.json").read_text())["rows"][0]
    assert (row["strategy"], row["seconds_to_target"], row["rounds_to_target"]) == ("fixed", 30, 3)
    assert (row["uplink_bytes_to_target"], row["final_accuracy"]) == (3_000_000, 1.0)


def test_ctrl_c_ends_after_the_round_s_line_and_resume_gives_the_same_bytes(tmp_path, capsys):
    simulate(tmp_path / "whole")
    with pytest.raises(typer.Exit) as stopped:
        simulate(tmp_path / "cut", interrupted_after(2))
    assert stopped.value.exit_code == 130
    folder = RunFolder.open(tmp_path / "cut")
    assert [r.round for r in folder.records()] == [1, 2]
    assert folder.result() is None

    with pytest.raises(ConfigError, match="--resume"):
        simulate(tmp_path / "cut")
    capsys.readouterr()
    simulate(tmp_path / "cut", resume=True)

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{tmp_path / 'cut'}: goes on after round 2"
    assert lines[1].startswith("round 3/4  accuracy 75.0 %  30.0 s  uplink 3.00 MB")
    whole, cut = (tmp_path / name / "rounds.jsonl" for name in ("whole", "cut"))
    assert whole.read_bytes() == cut.read_bytes()


def test_resuming_a_finished_run_runs_nothing(tmp_path, capsys):
    simulate(tmp_path / "a-1")
    simulate(tmp_path / "a-1", runner=None, resume=True)
    assert "finished already" in capsys.readouterr().out


def test_the_second_ctrl_c_ends_at_once_and_the_handler_is_put_back():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), stop_on_interrupt() as stop:  # noqa: PT012
        assert not stop()
        signal.raise_signal(signal.SIGINT)
        assert stop()
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
