"""``sweep`` marks the knee, ``ablate`` prices each switch, with runs that stand for real ones."""

import json
import math
from concurrent.futures import ThreadPoolExecutor

import pytest

from fedsys.cli.ablate import WHOLE, run_ablation, switches_of
from fedsys.cli.batch import Batch
from fedsys.cli.cells import cells_of
from fedsys.cli.sweep import plan_sweep, run_sweep
from fedsys.config.load import parse_experiment, with_settings
from fedsys.errors import ConfigError
from fedsys.telemetry.runfolder import RunFolder
from fedsys.types import RoundPlan, RoundRecord

EXPERIMENT = parse_experiment('run = {name = "demo", target = 0.9}', where="test")


def finish(cell, seconds, metric=0.9):
    """One round that ends after ``seconds``, times something of the seed."""
    folder = RunFolder.create(cell.path, cell.experiment, resume=True)
    end_s = seconds * (1 + 0.1 * cell.seed)
    folder.append(
        RoundRecord(
            round=1,
            plan=RoundPlan(round=1, clients=(), downlink="none", deadline_s=None, reason=""),
            reports=(),
            start_s=0.0,
            end_s=end_s,
            downlink_bytes=10,
            uplink_bytes=10,
            train_loss=None,
            step_norm=None,
            agreement=None,
            test_metric=metric,
        )
    )
    folder.save_result({"stopped_by": "target"})
    return ""


def batch(work):
    return Batch(work, lambda: ThreadPoolExecutor(2), 2, lambda: False)


def sweep(tmp_path, axes, cost, seeds=3, by="seconds"):
    plan = plan_sweep(EXPERIMENT, axes, by)
    cells = cells_of(EXPERIMENT, list(plan.variants.values()), tmp_path / "s", seeds=seeds)
    run_sweep(
        EXPERIMENT,
        plan,
        cells,
        batch(lambda cell: finish(cell, cost(cell.experiment))),
        folder=tmp_path / "s",
        json=tmp_path / "x.json",
    )
    return json.loads((tmp_path / "x.json").read_text())


def test_the_knee_of_a_sweep_is_marked(tmp_path, capsys):
    found = sweep(
        tmp_path,
        ["strategy.options.local_epochs=1,2,4,8,16"],
        lambda e: {1: 100, 2: 55, 4: 30, 8: 28, 16: 27}[e.strategy.options["local_epochs"]],
    )
    out = " ".join(capsys.readouterr().out.split())
    assert found["knees"] == {"local_epochs": 4}
    assert "local_epochs: knee at 4 of 1 to 16; local_epochs = 16, which is soonest, takes" in out
    assert "Soonest at the target: local_epochs = 16; against local_epochs = 1, 3 paired" in out
    page = (tmp_path / "s" / "report.html").read_text()
    assert ">knee</text>" in page
    assert [row["strategy"] for row in found["rows"]] == [
        f"local_epochs = {value}" for value in (1, 2, 4, 8, 16)
    ]


def test_two_settings_run_in_every_combination_and_each_has_its_knee(tmp_path, capsys):
    epochs = {1: 9.0, 2: 3.0, 4: 2.8, 8: 2.7}
    found = sweep(
        tmp_path,
        ["strategy.options.local_epochs=1,2,4,8", "codec.uplink=none,int8"],
        lambda e: epochs[e.strategy.options["local_epochs"]] / (1 + (e.codec.uplink == "int8")),
    )
    assert len(found["rows"]) == 8
    assert found["knees"] == {"local_epochs": 2}
    out = " ".join(capsys.readouterr().out.split())
    assert "uplink: no knee (with local_epochs = 8)" in out
    assert "knee at 2 of 1 to 8 (with uplink = int8)" in out


def test_settings_that_end_in_the_same_word_are_named_in_full(tmp_path, capsys):
    axes = ["training.lr=0.1,0.2", "server.lr=1.0,0.5"]
    found = sweep(tmp_path, axes, lambda e: e.training.lr * e.server.lr)
    assert found["rows"][0]["strategy"] == "training.lr = 0.1, server.lr = 1.0"
    out = " ".join(capsys.readouterr().out.split())
    assert "training.lr: no knee" in out
    assert "server.lr: no knee" in out


@pytest.mark.parametrize(
    "axis", ["network.options.outages=[[1,2]],[[3,4]]", "strategy.options={a=1},{a=2}"]
)
def test_lists_and_tables_are_for_entries(axis):
    with pytest.raises(ConfigError, match="a list or a table; write compare entries"):
        plan_sweep(EXPERIMENT, [axis], "seconds")


def test_one_value_written_in_two_ways_is_given_twice():
    with pytest.raises(ConfigError, match="given twice"):
        plan_sweep(EXPERIMENT, ["training.lr=1,1.0,2"], "seconds")


def test_a_sweep_that_never_reaches_the_target_has_no_best(tmp_path, capsys):
    plan = plan_sweep(EXPERIMENT, ["training.lr=0.1,0.2"], "seconds")
    cells = cells_of(EXPERIMENT, list(plan.variants.values()), tmp_path / "s", seeds=1)
    work = batch(lambda cell: finish(cell, 10, metric=0.1))
    run_sweep(EXPERIMENT, plan, cells, work, folder=tmp_path / "s", json=None)
    assert "No value reaches the target." in capsys.readouterr().out


def test_values_added_later_keep_what_ran(tmp_path, capsys):
    sweep(tmp_path, ["training.lr=0.1,0.2"], lambda e: 1 / e.training.lr, seeds=1)
    ran = []

    def cost(experiment):
        ran.append(experiment.training.lr)
        return 1 / experiment.training.lr

    sweep(tmp_path, ["training.lr=0.1,0.2,0.4"], cost, seeds=1)
    assert ran == [0.4]
    assert "2 of 3 runs are finished already" in capsys.readouterr().out


def test_every_option_that_is_on_is_a_switch():
    adaptive = with_settings(EXPERIMENT, {"strategy.name": "adaptive"}, "test")
    found = switches_of(adaptive)
    assert found["quorum"] == {"strategy.options.quorum": False}
    assert found["error feedback"] == {"codec.error_feedback": False}
    less = with_settings(adaptive, {"strategy.options.quorum": False}, "test")
    assert "quorum" not in switches_of(less)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"codec.downlink": "int4"}, False),
        ({"codec.downlink": "int4", "cohort.fraction": 0.25}, True),
        ({"cohort.fraction": 0.25, "codec.uplink": "int4"}, False),
        ({"codec.downlink": "int4", "strategy.name": "fedbuff"}, True),
        ({"codec.downlink": "int4", "cohort.fraction": 0.25, "codec.key_frames": False}, False),
    ],
)
def test_key_frames_are_a_switch_where_clients_may_miss_versions(settings, expected):
    found = switches_of(with_settings(EXPERIMENT, settings, "test"))
    assert ("key frames" in found) is expected


def test_codecs_of_the_file_are_switches_of_a_strategy_that_chooses_none():
    coded = with_settings(EXPERIMENT, {"codec.uplink": "int8", "codec.downlink": "fp16"}, "test")
    assert switches_of(coded) == {
        "the uplink codec": {"codec.uplink": "none"},
        "the downlink codec": {"codec.downlink": "none"},
        "the first model's codec": {"codec.first_model": "none"},
        "error feedback": {"codec.error_feedback": False},
    }
    with pytest.raises(ConfigError, match="nothing that is on"):
        switches_of(EXPERIMENT)


def test_a_strategy_may_declare_switches_that_are_no_booleans(tmp_path, monkeypatch):
    (tmp_path / "declared_strategy.py").write_text("""
from dataclasses import dataclass
from typing import ClassVar
from strategies.fixed import Fixed

@dataclass(frozen=True)
class Declared(Fixed):
    SWITCHES: ClassVar = {"long rounds": {"local_epochs": 1}, "pause": {"fednova": False}}
    local_epochs: int = 5
    fednova: bool = True
""")
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = {"strategy.name": "declared_strategy:Declared"}
    own = with_settings(EXPERIMENT, settings, "test")
    assert switches_of(own) == {
        "long rounds": {"strategy.options.local_epochs": 1},
        "pause": {"strategy.options.fednova": False},
    }
    off = with_settings(own, {"strategy.options.local_epochs": 1}, "test")
    assert list(switches_of(off)) == ["pause"]


def test_each_switch_gets_a_price_with_its_interval(tmp_path, capsys):
    names = ("great", "harmful", "idle", "unclear")
    variants = [(WHOLE, {}), *((f"without {n}", {"training.lr": 1 + 0.1 * len(n)}) for n in names)]
    cells = cells_of(EXPERIMENT, variants, tmp_path / "a", seeds=4)

    def work(cell):
        noise = 1.5 if cell.seed % 2 else 1 / 1.5
        factor = {WHOLE: 1, "without great": 3, "without harmful": 0.5, "without idle": 1}
        return finish(cell, 10 * factor.get(cell.label, noise))

    run_ablation(EXPERIMENT, cells, batch(work), folder=tmp_path / "a", json=tmp_path / "x.json")
    lines = json.loads((tmp_path / "x.json").read_text())["verdict"]
    assert lines[0] == (
        "great: is worth it: without it 3.00x the time to target (95 % interval 3.00x to 3.00x)."
    )
    assert lines[-1].startswith("harmful: does harm: without it 0.500x the time to target")
    assert "idle: makes no difference in time." in lines
    # Logs +-0.405 in turn: mean 0, sd 0.468, margin 3.182 * 0.468 / 2 = 0.745.
    low, high = math.exp(-0.745), math.exp(0.745)
    assert (
        f"unclear: no significant effect: without it 1.00x the time to target "
        f"(95 % interval {low:.3f}x to {high:.2f}x)."
    ) in lines
    assert "great: is worth it" in capsys.readouterr().out


def test_a_switch_without_which_nothing_gets_there_is_needed(tmp_path):
    variants = [(WHOLE, {}), ("without it", {"training.lr": 2.0})]
    cells = cells_of(EXPERIMENT, variants, tmp_path / "a", seeds=3)
    work = batch(lambda cell: finish(cell, 10, metric=0.9 if cell.label == WHOLE else 0.5))
    run_ablation(EXPERIMENT, cells, work, folder=tmp_path / "a", json=tmp_path / "x.json")
    (line,) = json.loads((tmp_path / "x.json").read_text())["verdict"]
    assert line.startswith("it: is needed: without it the target is never reached")
