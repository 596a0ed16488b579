"""The codec table measures what it is given, and says what it measured."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from fedsys.cli.main import run
from fedsys.rng import rng_for

RUN = """
[run]
name = "tiny"
[run.budget]
rounds = 2
[task]
options = { model = "mlp" }
[partition]
clients = 2
"""


def table(tmp_path, *arguments):
    path = tmp_path / "table.json"
    assert run(["codecs", "table", *map(str, arguments), "--json", str(path)]) == 0
    found = json.loads(path.read_text())
    return found, {row["codec"]: row for row in found["codecs"]}


def test_without_an_update_laplace_values_give_the_published_errors(tmp_path, capsys):
    found, rows = table(tmp_path)
    assert found["update"] == "1048576 Laplace values"
    assert rows["sign"]["nmse"] == pytest.approx(0.5, rel=0.01)
    assert rows["int4"]["nmse"] == pytest.approx(0.032, rel=0.02)
    assert rows["none"]["bits_per_parameter"] == 32
    assert rows["none"]["nmse"] == 0
    assert "1048576 Laplace values" in capsys.readouterr().out


def test_upload_time_is_body_and_overhead_over_the_rate_of_the_link(tmp_path):
    _, rows = table(tmp_path, "--link", "lora-like")
    bits = 8 * 4 * 1_048_576
    assert rows["none"]["upload_s"] == pytest.approx(1.01 * bits / 54.7, rel=0.05)


def test_a_file_is_measured_with_its_floating_tensors_only(tmp_path):
    rank_one = np.outer(np.arange(1, 201), np.arange(1, 101)).astype(np.float32)
    file = tmp_path / "update.safetensors"
    save_file({"w": rank_one, "b": np.ones(7), "steps": np.array([3], np.int64)}, file)
    found, rows = table(tmp_path, "lowrank(1)", "--update", file)
    assert found["parameters"] == 20_007
    assert rows["lowrank(1)"]["nmse"] < 1e-9
    assert rows["lowrank(1)"]["bits_per_parameter"] < 1


def test_a_run_gives_the_last_step_of_its_model(tmp_path):
    file = tmp_path / "tiny.toml"
    file.write_text(RUN)
    assert run(["simulate", str(file), "--out", str(tmp_path), "--workers", "1", "-q"]) == 0
    found, rows = table(tmp_path, "--from-run", tmp_path / "tiny-1")
    assert found["parameters"] == 17_226
    assert 0 < rows["int8"]["nmse"] < 1e-3


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["topkk"], "did you mean 'topk'"),
        (["--link", "5gg"], "did you mean '5g-edge'"),
        (["--update", "nowhere.safetensors"], "--update nowhere.safetensors: cannot be read"),
        (["--from-run", "nowhere"], "nowhere: not a run folder"),
        (["--update", "a", "--from-run", "b"], "not both"),
        (["--json", "nowhere/x.json"], "--json"),
    ],
)
def test_bad_input_is_one_line(capsys, arguments, expected):
    assert run(["codecs", "table", *arguments]) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("values", [[], [1.0, np.nan]])
def test_an_update_without_finite_values_is_refused(tmp_path, capsys, values):
    file = tmp_path / "update.safetensors"
    save_file({"w": rng_for(0).permutation(np.array(values, np.float32))}, file)
    assert run(["codecs", "table", "--update", str(file)]) == 2
    assert "nothing to measure" in capsys.readouterr().err
