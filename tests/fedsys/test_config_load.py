"""What goes into an experiment comes out of it again, and what cannot is one line."""

import math

import pytest

from fedsys.cli import main
from fedsys.cli.cells import plan_cells
from fedsys.config.load import dump_toml, flattened, parse_experiment, with_settings
from fedsys.errors import ConfigError
from fedsys.registry import load

EXPERIMENT = parse_experiment("run.target = 0.9", where="test")
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


def test_a_set_that_an_entry_overrides_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"--set codec.uplink: .* sets codec.uplink itself"):
        plan_cells(
            with_settings(
                EXPERIMENT,
                {"compare.entries": [{"label": "a", "set": {"codec.uplink": "int8"}}]},
                "test",
            ),
            tmp_path,
            seeds=1,
            settings=["codec.uplink=int4"],
        )


def test_sections_of_an_entry_written_as_tables_keep_their_other_keys(tmp_path):
    entry = {"label": "a", "set": {"training": {"momentum": 0.5}}}
    base = with_settings(EXPERIMENT, {"training.lr": 0.03, "compare.entries": [entry]}, "test")
    (cell,) = plan_cells(base, tmp_path, seeds=1)
    assert (cell.experiment.training.lr, cell.experiment.training.momentum) == (0.03, 0.5)
    assert cell.experiment.compare.entries == ()  # a run is the same whoever it is compared with
    entry["set"] = {"run": {"target": 0.2}}
    with pytest.raises(ConfigError, match=r"run.target is the same for all"):
        plan_cells(with_settings(base, {"compare.entries": [entry]}, "test"), tmp_path, seeds=1)


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
