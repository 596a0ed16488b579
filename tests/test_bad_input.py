"""Bad input is one line that says what is allowed, exit code 2, and nothing left on the disk."""

import os
import subprocess
import sys

import pytest
import torch

from fedsys.cli.main import run
from fedsys.config.load import load_experiment, parse_experiment
from fedsys.telemetry.runfolder import RunFolder

TEXT = """
run.name = "x"
run.budget.rounds = 2
partition.clients = 4
cohort.size = 2
"""

BAD_SETTINGS = {
    "training.lrr=1": "training.lrr: unknown key; did you mean 'lr'?",
    "traning.lr=1": "traning: unknown key; did you mean 'training'?",
    "training.batch_size=many": "training.batch_size: input should be a valid integer",
    "training.batch_size=1.5": "training.batch_size: input should be a valid integer",
    "training.lr=true": "training.lr: input should be a valid number",
    "training.lr=nan": "training.lr: ",
    "training.lr=0": "training.lr: input should be greater than 0",
    "training.optimizer=adam": "'sgd' or 'adamw'",
    "training=3": "training: input should be",
    "training.lr.x=3": "training.lr",
    "codec.uplink=topkk": "codec.uplink: no codec 'topkk'; did you mean 'topk'?",
    "codec.uplink=topk(0)": "fraction",
    "codec.uplink=topk(2)": "fraction",
    "codec.uplink=topk(": "codec.uplink",
    "codec.uplink=": "codec.uplink",
    "codec.uplink=int8|topk(0.1)": "codec.uplink",
    "codec.downlink=zip": "codec.downlink: no codec 'zip'; choose from",
    "codec.residual_decay=0": "codec.residual_decay: input should be greater than 0",
    "strategy.name=adaptiv": "no strategy 'adaptiv'; did you mean 'adaptive'?",
    "strategy.name=server_app": "no strategy 'server_app'; choose from",
    "strategy.name=nowhere.at:All": "strategy 'nowhere.at:All' cannot be loaded",
    "strategy.name=fedsys.clock:WallClock": "has no chooses_codecs, fednova, start, plan, observe",
    "strategy.options.local_epoch=2": "no option 'local_epoch'; did you mean 'local_epochs'?",
    "strategy.options.local_epochs=0": "local_epochs must be a whole number of 1 or more",
    "network.link=4g": "network: no link '4g'",
    "network.options.x=1": "no option 'x'",
    "network.dropout_fraction=2": "network.dropout_fraction: input should be less than 1",
    "devices.profile=toaster": "no device 'toaster'",
    "devices.options.x=1": "no option 'x'",
    "task.name=digit": "no task 'digit'; did you mean 'digits'?",
    "task.options.model=rnn": "model must be one of mlp, cnn, got 'rnn'",
    "task.options.depth=3": "no option 'depth'",
    "cohort.size=5": "5 clients sampled of partition.clients = 4",
    "cohort.size=0": "cohort.size: input should be greater than or equal to 1",
    "cohort.fraction=0.5": "give fraction or size, not both",
    "partition.clients=0": "partition.clients: input should be greater than or equal to 1",
    "partition.clients=2000": "1438 examples are too few for 2000 clients",
    "partition.kind=dirichlett": "'iid', 'dirichlet', 'shards' or 'user'",
    "partition.kind=user": "partition.kind",
    "run.target=1.01": "run.target: input should be less than or equal to 1",
    "run.budget.rounds=0": "run.budget.rounds: input should be greater than or equal to 1",
    "run.name=../x": "run.name: string should match pattern",
    "run.seed=-1": "run.seed: input should be greater than or equal to 0",
    "server.nesterov=true": "server.nesterov has no effect without server.momentum",
    "training.lr": "expected key=value",
    ".=3": "expected key=value",
    "training..lr=3": "expected key=value",
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with an experiment file, in which the command is run."""
    (tmp_path / "x.toml").write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def disk(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def refusal(capsys, place, *arguments, out=""):
    """The line that the command prints when it refuses, having changed nothing."""
    before, folders = disk(place), {p for p in place.rglob("*") if p.is_dir()}
    assert run([*arguments, "--workers", "1"]) == 2
    captured = capsys.readouterr()
    assert captured.out == out
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("fedsys: error: ")
    assert "Traceback" not in captured.err
    assert disk(place) == before
    assert {p for p in place.rglob("*") if p.is_dir()} == folders
    return captured.err


@pytest.mark.parametrize("setting", BAD_SETTINGS)
def test_a_bad_setting_is_refused_by_simulate(setting, capsys, place):
    line = refusal(capsys, place, "simulate", "x.toml", "--set", setting)
    assert BAD_SETTINGS[setting] in line


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    ("setting", "expected"),
    [("training.device=cuda", "finds no CUDA"), ("training.precision=fp16", "needs a CUDA device")],
)
def test_what_this_machine_cannot_do_is_refused_before_the_run(setting, expected, capsys, place):
    assert expected in refusal(capsys, place, "simulate", "x.toml", "--set", setting)


@pytest.mark.parametrize(
    "setting", ["training.lrr=1", "codec.uplink=topkk", "network.link=4g", "cohort.size=5"]
)
def test_a_bad_setting_is_refused_by_compare(setting, capsys, place):
    entries = '[[compare.entries]]\nlabel = "one"\n[[compare.entries]]\nlabel = "two"\n'
    (place / "x.toml").write_text(TEXT + entries)
    line = refusal(capsys, place, "compare", "x.toml", "--set", setting)
    assert BAD_SETTINGS[setting] in line


def test_a_momentum_that_nobody_would_use_is_refused(capsys, place):
    settings = ("--set", "training.optimizer=adamw", "--set", "training.momentum=0.9")
    line = refusal(capsys, place, "simulate", "x.toml", *settings)
    assert "training: momentum is for optimizer = 'sgd'; adamw has its own" in line


@pytest.mark.parametrize("fraction", ["0", "2", "-0.1", "nan"])
def test_a_fraction_outside_of_zero_to_one_is_refused(fraction, capsys, place):
    (place / "x.toml").write_text(TEXT.replace("cohort.size = 2", ""))
    line = refusal(capsys, place, "simulate", "x.toml", "--set", f"cohort.fraction={fraction}")
    assert "cohort.fraction: input should be" in line


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run.name = ", "x.toml: not valid TOML"),
        ("run.name = 'a'\nrun.name = 'b'", "x.toml: not valid TOML"),
        ("run = 3", "x.toml: run: input should be"),
        ("\x00", "x.toml: not valid TOML"),
    ],
)
def test_a_file_that_is_no_experiment_is_refused(text, expected, capsys, place):
    (place / "x.toml").write_text(text)
    assert expected in refusal(capsys, place, "simulate", "x.toml")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("none.toml", "none.toml: cannot be read: "),
        (".", ".: cannot be read: "),
        ("latin1.toml", "latin1.toml: cannot be read: "),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(path, expected, capsys, place):
    (place / "latin1.toml").write_bytes(b"# caf\xe9")
    assert expected in refusal(capsys, place, "simulate", path)


@pytest.mark.parametrize(
    "arguments",
    [
        ["simulate", "x.toml"],
        ["compare", "x.toml", "--strategies", "fixed,adaptive"],
        ["sweep", "x.toml", "training.lr=0.1,0.2", "--set", "run.target=0.9"],
        ["ablate", "x.toml", "--set", "codec.uplink=int8"],
    ],
)
def test_a_place_where_no_folder_can_be_made_is_refused_before_the_work(arguments, capsys, place):
    line = refusal(capsys, place, *arguments, "--out", "x.toml/runs")
    assert f"cannot be written: {place / 'x.toml'} is a file; choose another --out" in line


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
@pytest.mark.parametrize("arguments", [["--out", "shut/runs"], ["--json", "shut/x.json"]])
def test_a_folder_that_may_not_be_written_to_is_refused(arguments, capsys, place):
    (place / "shut").mkdir(0o500)
    assert "shut" in refusal(capsys, place, "simulate", "x.toml", *arguments)


@pytest.mark.parametrize("option", ["--oracle-epochs=1", "--oracle-codecs=int8"])
def test_the_grid_of_hindsight_is_refused_where_there_is_no_hindsight(option, capsys, place):
    line = refusal(capsys, place, "compare", "x.toml", "--strategies", "fixed,adaptive", option)
    assert f"{option.partition('=')[0]} has no effect without --oracle" in line


def test_a_codec_of_the_grid_is_refused_by_the_name_of_its_option(capsys, place):
    line = refusal(
        capsys, place, "compare", "x.toml", "--strategies", "fixed,adaptive", "--target", "0.9",
        "--oracle", "--oracle-codecs", "int8,zip",
    )  # fmt: skip
    assert "--oracle-codecs: no codec 'zip'; choose from" in line


@pytest.mark.parametrize("target", ["0", "-0.5"])
def test_a_target_that_every_run_reaches_is_refused(target, capsys, place):
    assert run(["report", str(place), "--target", target]) == 2
    line = f"fedsys: error: --target {target}: must be above 0, at most 1\n"
    assert capsys.readouterr().err == line


def test_a_missing_data_folder_is_refused_with_how_to_get_the_data(capsys, place):
    line = refusal(
        capsys, place, "simulate", "x.toml",
        "--set", "task.name=fashion_mnist", "--set", "task.options.folder=/nowhere/at/all",
    )  # fmt: skip
    assert "/nowhere/at/all" in line
    assert "dataset-fashion-mnist" in line


def test_a_missing_text_file_is_refused(capsys, place):
    line = refusal(
        capsys, place, "simulate", "x.toml",
        "--set", "task.name=char_lm", "--set", "task.options.path=none.txt",
    )  # fmt: skip
    assert "none.txt" in line


def begun(place, *settings):
    """A run folder with one round in it, of the experiment with these settings."""
    assert run(["simulate", "x.toml", "--workers", "1", "-q", *settings]) == 0
    return place / "runs" / "x-1"


def test_a_folder_of_another_experiment_is_refused_and_the_difference_named(capsys, place):
    begun(place)
    capsys.readouterr()
    changed = ("simulate", "x.toml", "--set", "training.lr=0.5")
    for more in ((), ("--resume",)):
        line = refusal(capsys, place, *changed, *more)
        assert "holds another experiment: training.lr is 0.1 there and 0.5 now" in line
    assert "use --resume" in refusal(capsys, place, "simulate", "x.toml")


def test_a_folder_that_is_no_run_is_refused(capsys, place):
    (place / "runs" / "x-1").mkdir(parents=True)
    (place / "runs" / "x-1" / "thesis.txt").write_text("precious")
    line = refusal(capsys, place, "simulate", "x.toml", "--resume")
    assert "not empty and not a run folder" in line


@pytest.mark.parametrize("rubbish", [b"", b"rubbish", b"\xff" * 1000])
def test_an_unreadable_checkpoint_is_refused(rubbish, capsys, place):
    folder = place / "runs" / "x-1"
    RunFolder.create(folder, load_experiment(place / "x.toml"), resume=False)
    (folder / "checkpoint").mkdir()
    (folder / "checkpoint" / "round.safetensors").write_bytes(rubbish)
    line = refusal(capsys, place, "simulate", "x.toml", "--resume")
    assert "round.safetensors: checkpoint cannot be read; delete the run's folder" in line


def test_a_checkpoint_that_lacks_its_rounds_is_refused(capsys, place):
    folder = begun(place)
    capsys.readouterr()
    (folder / "result.json").unlink()
    (folder / "rounds.jsonl").write_bytes(b"")
    said = "runs/x-1: goes on after round 0\n"
    line = refusal(capsys, place, "simulate", "x.toml", "--resume", out=said)
    assert "rounds.jsonl: 0 rounds recorded where 2 are needed" in line


def test_a_checkpoint_of_another_model_is_refused(capsys, place):
    folder = begun(place)
    capsys.readouterr()
    (folder / "result.json").unlink()
    other = parse_experiment(TEXT, ["task.options.model=cnn", "run.name=y"], where="test")
    cnn = RunFolder.create(place / "runs" / "y-1", other, resume=False)
    assert run(["simulate", "x.toml", "-q", "--set", "task.options.model=cnn",
                "--set", "run.name=y", "--workers", "1"]) == 0  # fmt: skip
    capsys.readouterr()
    name = "checkpoint/round.safetensors"
    (folder / name).write_bytes((cnn.path / name).read_bytes())
    said = "runs/x-1: goes on after round 2\n"
    line = refusal(capsys, place, "simulate", "x.toml", "--resume", out=said)
    assert "the checkpoint is not one of this experiment" in line


def test_a_real_process_says_the_same_and_exits_with_two(place):
    before = disk(place)
    done = subprocess.run(
        [sys.executable, "-m", "fedsys.cli.main", "simulate", "x.toml", "--set", "cohort.size=5"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "fedsys: error: x.toml: cohort.size: 5 clients sampled of partition.clients = 4; "
        "at most all of them"
    ]
    assert disk(place) == before
