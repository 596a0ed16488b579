"""Several scenes in one comparison: found, checked first, run together, judged over all."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import typer

from fedsys.cli.axes import Axis, combinations, split_values
from fedsys.cli.batch import Batch, check_cells
from fedsys.cli.compare import run_scenes
from fedsys.cli.hindsight import Grid
from fedsys.cli.main import run
from fedsys.cli.scenes import Goal, find_files, load_scenes
from fedsys.errors import ConfigError
from fedsys.options import configured
from fedsys.telemetry.runfolder import RunFolder
from fedsys.types import RoundPlan, RoundRecord
from strategies._base import Scene
from strategies.two_parts import TwoParts

SCENE = """
[run]
name = "NAME"
target = 0.9
[run.budget]
rounds = 8
seconds = 500
[network]
link = "constant"
options = { up_bps = RATE, down_bps = RATE }
"""
ENTRIES = """
[[compare.entries]]
label = "plain"
[[compare.entries]]
label = "fast"
set = { "training.lr" = 0.4 }
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with two scenes in ``scenes`` and their entries in ``entries.toml``."""
    (tmp_path / "scenes").mkdir()
    for name, rate in (("slow", "1e5"), ("quick", "1e6")):
        text = SCENE.replace("NAME", name).replace("RATE", rate)
        (tmp_path / "scenes" / f"{name}.toml").write_text(text)
    (tmp_path / "entries.toml").write_text(ENTRIES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def scenes(place, goal=None, strategies=(), seeds=3):
    return load_scenes(
        [place / "scenes"],
        (goal or Goal()).settings(),
        place / "runs",
        seeds=seeds,
        strategies=strategies,
        entries=place / "entries.toml",
    )


def pretend(cell):
    """Eight rounds; more epochs and a codec other than none are quicker, in the slow scene only."""
    folder = RunFolder.create(cell.path, cell.experiment, resume=True)
    length_s = (4 + cell.seed) / cell.experiment.training.lr
    options = cell.experiment.strategy.options
    if cell.experiment.network.options["up_bps"] < 5e5 and cell.experiment.codec.uplink == "int8":
        length_s /= 4
    gain = 0.15 * (1 + 0.1 * options.get("local_epochs", 1)) if "codecs" not in options else 0.3
    for number in range(1, 9):
        folder.append(
            RoundRecord(
                round=number,
                plan=RoundPlan(
                    round=number, clients=(), downlink="none", deadline_s=None, reason=""
                ),
                reports=(),
                start_s=length_s * (number - 1),
                end_s=length_s * number,
                downlink_bytes=10,
                uplink_bytes=10,
                train_loss=None,
                step_norm=None,
                agreement=None,
                test_metric=min(1.0, gain * number),
            )
        )
    folder.save_result({"stopped_by": "rounds"})
    return ""


def compare(place, work=pretend, goal=None, grid=None, loaded=None):
    batch = Batch(work, lambda: ThreadPoolExecutor(2), 2, lambda: False)
    run_scenes(
        loaded or scenes(place, goal),
        batch,
        goal=goal or Goal(),
        grid=grid,
        out=place / "runs",
        json=place / "x.json",
    )
    return json.loads((place / "x.json").read_text())


def test_every_scene_gets_the_same_entries_and_seeds_in_folders_of_its_own(place):
    loaded = scenes(place, seeds=2)
    assert [scene.name for scene in loaded] == ["quick", "slow"]
    for scene in loaded:
        assert [(c.label, c.seed) for c in scene.cells] == [
            ("plain", 1),
            ("plain", 2),
            ("fast", 1),
            ("fast", 2),
        ]
    paths = {cell.path for scene in loaded for cell in scene.cells}
    assert len(paths) == 8
    assert loaded[0].cells[0].title == "quick: plain, seed 1"
    assert not (place / "runs").exists()


def test_table_verdict_page_and_json_over_scenes_and_the_same_again(place, capsys):
    found = compare(place)
    out = capsys.readouterr().out
    assert "[12/12]" in out
    assert "fast against plain over 2 scenes, too few to call anything significant" in out
    assert "0 of 2 scenes are lost" in " ".join(out.split())
    standing = found["standings"][1]
    assert standing["time_ratio"]["mean"] == pytest.approx(0.25)
    assert standing["known_scenes"] == ["quick", "slow"]
    assert [scene["experiment"] for scene in found["scenes"]] == ["quick", "slow"]
    assert 'href="slow/report.html"' in (place / "runs" / "scenes.html").read_text()
    assert (place / "runs" / "slow" / "report.html").is_file()

    ran = []
    assert compare(place, work=lambda cell: ran.append(cell) or "") == found
    assert ran == []
    assert "12 of 12 runs are finished already" in capsys.readouterr().out


def test_a_scene_without_its_baseline_is_left_out_of_the_mean(place):
    def work(cell):
        if cell.scene == "slow" and cell.label == "plain":
            return "broken"
        return pretend(cell)

    with pytest.raises(typer.Exit) as stopped:
        compare(place, work=work)
    assert stopped.value.exit_code == 1
    found = json.loads((place / "x.json").read_text())
    assert [scene["experiment"] for scene in found["scenes"]] == ["quick"]


def test_a_share_of_the_best_needs_no_level_and_runs_to_the_horizon(place):
    goal = Goal.parse("90%")
    loaded = scenes(place, goal)
    assert not loaded[0].cells[0].experiment.run.stop_at_target
    found = compare(place, goal=goal, loaded=loaded)
    assert found["scenes"][0]["target"] == pytest.approx(0.9)
    assert found["scenes"][0]["target_share"] == pytest.approx(0.9)


def test_the_oracle_is_the_best_of_the_grid_and_then_of_schedules(place, capsys):
    grid = Grid.parse("1,8", "none,int8")
    found = compare(place, grid=grid)
    quick, slow = (scene["oracles"] for scene in found["scenes"])
    assert slow["best fixed plan"]["strategy"] == "8 epochs, int8"
    assert quick["best fixed plan"]["strategy"] == "8 epochs, none"
    assert "; from " in slow["best two-part plan"]["strategy"]
    assert (place / "runs" / "slow" / "oracle" / "8-epochs-int8-1").is_dir()
    assert "of the best fixed plan in hindsight" in " ".join(capsys.readouterr().out.split())
    over = found["standings"][1]["seconds_over_oracle"]["best fixed plan"]
    assert over["pairs"] == 2


def test_cells_of_the_oracle_can_run(place):
    loaded = scenes(place, seeds=1)
    grid = Grid.parse("1,2", "none,topk(0.1)|int8")
    cells = grid.cells(loaded[0])
    check_cells(cells)
    assert [cell.label for cell in cells] == [
        "1 epoch, none",
        "1 epoch, topk(0.1)|int8",
        "2 epochs, none",
        "2 epochs, topk(0.1)|int8",
    ]


def test_a_schedule_changes_once_by_the_clock():
    options = {"switch_s": 10.0, "local_epochs": [1, 4], "codecs": ["int8", "none"]}
    parts = configured("schedule", TwoParts, options)
    scene = Scene(
        seed=1,
        examples={1: 64},
        cohort=1,
        batch_size=16,
        parameters=10,
        model_bytes=40,
        lr=0.1,
        uplink="none",
        downlink="none",
        deadline_s=None,
    )
    before, after = (parts.plan(scene, clock_s, 1) for clock_s in (9.9, 10.0))
    assert (before.clients[0].local_steps, before.downlink) == (4, "int8")
    assert (after.clients[0].local_steps, after.clients[0].uplink) == (16, "none")
    with pytest.raises(ConfigError, match="no codec 'zip'"):
        configured("schedule", TwoParts, options | {"codecs": ["zip", "none"]})


@pytest.mark.parametrize(
    ("text", "goal"),
    [("0.9", Goal(level=0.9)), ("98%", Goal(share=0.98)), ("1", Goal(level=1.0)), (None, Goal())],
)
def test_targets_are_levels_or_shares(text, goal):
    assert Goal.parse(text) == goal


@pytest.mark.parametrize("text", ["0", "1.5", "150%", "ninety", "", "%", "nan"])
def test_other_targets_are_refused(text):
    with pytest.raises(ConfigError, match="a level in"):
        Goal.parse(text)


def test_values_with_commas_of_their_own_are_one_value():
    assert split_values("topk(0.1)|int8,eden(1,unbiased=false)") == [
        "topk(0.1)|int8",
        "eden(1,unbiased=false)",
    ]
    axis = Axis.parse("codec.uplink+codec.downlink=int8,none")
    assert combinations([axis, Axis.parse("training.lr=0.1,0.3")])[("none", 0.3)] == (
        "uplink+downlink = none, lr = 0.3",
        {"codec.uplink": "none", "codec.downlink": "none", "training.lr": 0.3},
    )


BAD = {
    ("compare", "scenes"): "quick.toml: nothing to compare",
    ("compare", "scenes", "--strategies", "fixed,adaptiv"): "no entry or strategy 'adaptiv'",
    ("compare", "nowhere"): "nowhere: cannot be read",
    ("compare", "empty"): "empty: no experiment in it",
    ("compare", "scenes", "scenes", "--strategies", "fixed,jsac"): "two scenes are called 'quick'",
    ("compare", "scenes", "--entries", "entries.toml", "--target", "2"): "--target 2: a level",
    (
        "compare",
        "scenes",
        "--entries",
        "entries.toml",
        "--oracle",
        "--oracle-codecs",
        "none,zip",
    ): "--oracle-codecs: no codec 'zip'",
    (
        "compare",
        "scenes",
        "--entries",
        "entries.toml",
        "--oracle",
        "--oracle-epochs",
        "1,none",
    ): "--oracle-epochs 1,none: whole numbers",
    ("sweep", "scenes/slow.toml", "training.lr=0.1"): "give two values or more",
    ("sweep", "scenes/slow.toml", "training.lr"): "expected key=value,value",
    ("sweep", "scenes/slow.toml", "training.lrr=1,2"): "training.lrr: unknown key",
    ("sweep", "scenes/slow.toml", "training.lr=1,1"): "a value is given twice",
    ("sweep", "scenes/slow.toml", "run.seed=1,2"): "run.seed has to be the same",
    ("sweep", "scenes/slow.toml", "training.lr=1,2", "training.lr=3,4"): "is given twice",
    ("sweep", "scenes/slow.toml", "training.lr=1,2", "--by", "joules"): "--by joules: choose from",
    ("sweep", "scenes/slow.toml", "codec.uplink=int8,zip"): "no codec 'zip'",
    ("ablate", "scenes/slow.toml"): "strategy 'fixed' has nothing that is on",
    (
        "ablate",
        "scenes/slow.toml",
        "--set",
        "strategy.name=adaptive",
        "--only",
        "quorums",
    ): "--only: no switch 'quorums'; did you mean 'quorum'",
    ("plan", "scenes/slow.toml", "--codecs", "int8,zip"): "codec.uplink: no codec 'zip'",
    ("plan", "scenes/slow.toml", "--strategies", "fixd"): "no entry or strategy 'fixd'",
    (
        "plan",
        "scenes/slow.toml",
        "--strategies",
        "fixed,jsac",
        "--between",
        "fixed,jsak",
    ): "--between: no candidate 'jsak'; did you mean 'jsac'",
    ("plan", "scenes/slow.toml", "--json", "no/where.json"): "--json no/where.json: not a file",
}


@pytest.mark.parametrize("arguments", BAD, ids=" ".join)
def test_bad_input_is_one_line_and_leaves_nothing(place, capsys, arguments):
    (place / "empty").mkdir()
    before = sorted(place.rglob("*"))
    assert run(list(arguments)) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert BAD[arguments] in lines[0]
    assert sorted(place.rglob("*")) == before


def test_folders_are_read_in_the_order_of_names(place):
    (place / "scenes" / "notes.md").write_text("no scene")
    assert [file.name for file in find_files([place / "scenes", place / "entries.toml"])] == [
        "quick.toml",
        "slow.toml",
        "entries.toml",
    ]


def test_scenes_with_different_baselines_are_refused(place):
    slow = place / "scenes" / "slow.toml"
    slow.write_text(slow.read_text() + ENTRIES)
    quick = place / "scenes" / "quick.toml"
    quick.write_text(quick.read_text() + ENTRIES.replace("plain", "other"))
    with pytest.raises(ConfigError, match="different baselines"):
        load_scenes([place / "scenes"], [], place / "runs", seeds=1, strategies=(), entries=None)
