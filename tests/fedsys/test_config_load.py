"""What goes into an experiment comes out of it again, and what cannot is one line."""

import math

import pytest

from fedsys.cli import main
from fedsys.config.load import dump_toml, flattened, parse_experiment, with_settings
from fedsys.errors import ConfigError
from fedsys.registry import load

ENDLESS = '[devices]\nprofile = "instant"\noptions = { flops_per_s = inf }'


def test_an_infinite_option_is_kept():
    experiment = parse_experiment(ENDLESS, where="test")
    assert parse_experiment(dump_toml(experiment), where="again") == experiment
    assert (
        with_settings(experiment, {"run.seed": 2}, "x").devices.options["flops_per_s"] == math.inf
    )


def test_tables_of_sections_are_dotted_keys_and_options_are_one_value():
    found = flattened(
        {
            "run": {"target": 0.5, "budget": {"rounds": 3}},
            "training.lr": 0.1,
            "strategy.options": {"local_epochs": 2},
            "network": {"options": {"delay_ms": 5}},
        }
    )
    assert found == {
        "run.target": 0.5,
        "run.budget.rounds": 3,
        "training.lr": 0.1,
        "strategy.options": {"local_epochs": 2},
        "network.options": {"delay_ms": 5},
    }


def test_brackets_without_end_are_one_line():
    with pytest.raises(ConfigError, match="brackets in brackets"):
        parse_experiment("a = " + "[" * 100_000, where="deep.toml")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def broken(:", r"broken_module\.py line 1: invalid syntax"),
        ("\n1 / 0", r"broken_module\.py line 2: ZeroDivisionError"),
        ("x = 1", "has no attribute 'Impl'"),
    ],
)
def test_a_module_of_ones_own_that_fails_is_named_with_its_line(
    tmp_path, monkeypatch, source, message
):
    (tmp_path / "broken_module.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "broken_module", raising=False)
    with pytest.raises(ConfigError, match=message):
        load("strategies", "broken_module:Impl", "strategy")


@pytest.mark.parametrize("name", [".a:B", "nowhere_to_be_found:B", ":B"])
def test_a_module_that_is_not_there_is_one_line(name):
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load("strategies", name, "strategy")


def test_a_full_disk_is_one_line_that_says_how_to_go_on(monkeypatch, capsys):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device", "runs/x/rounds.jsonl")

    monkeypatch.setattr(main, "app", full)
    assert main.run(["simulate", "x.toml"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fedsys: error: runs/x/rounds.jsonl: No space left on device; ")
    assert "--resume" in line
