"""``fedsys compare``: cells are paired, checked first, kept when finished, and fail alone."""

import io
import json
import multiprocessing
import os
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import typer
from rich.console import Console

from fedsys.cli.batch import Batch, is_finished
from fedsys.cli.cells import plan_cells, slug
from fedsys.cli.compare import run_scenes
from fedsys.cli.execution import INTERRUPTED
from fedsys.cli.pool import process_pools, run_cells
from fedsys.cli.report import read_comparison
from fedsys.cli.scenes import Scene
from fedsys.cli.tables import comparison_table, console, save_json
from fedsys.config.load import parse_experiment, with_settings
from fedsys.errors import ConfigError
from fedsys.telemetry.runfolder import RunFolder
from fedsys.types import ClientReport, RoundPlan, RoundRecord

EXPERIMENT = parse_experiment(
    """
    run = {name = "demo", seed = 5, target = 0.9, budget = {rounds = 3}}
    [[compare.entries]]
    label = "Plain (fp32)"
    [[compare.entries]]
    label = "Fast, 5 epochs"
    set = {"training.lr" = 0.3}
    """,
    where="test",
)


def plan(tmp_path, experiment=EXPERIMENT, seeds=2, strategies=()):
    return plan_cells(experiment, tmp_path, seeds=seeds, strategies=strategies)


def finish(cell, reports=()):
    """A run of three rounds, quicker with a larger learning rate."""
    folder = RunFolder.create(cell.path, cell.experiment, resume=True)
    length_s = (cell.seed + 1) / cell.experiment.training.lr
    for number in (1, 2, 3):
        folder.append(
            RoundRecord(
                round=number,
                plan=RoundPlan(
                    round=number, clients=(), downlink="none", deadline_s=None, reason=""
                ),
                reports=reports,
                start_s=length_s * (number - 1),
                end_s=length_s * number,
                downlink_bytes=10,
                uplink_bytes=10,
                train_loss=None,
                step_norm=None,
                agreement=None,
                test_metric=0.31 * number,
            )
        )
    folder.save_result({"stopped_by": "rounds", "total": {"rounds": 3}})
    return ""


def compare(tmp_path, work=finish, cells=None, stop=lambda: False, json=None):
    cells = plan(tmp_path, seeds=3) if cells is None else cells
    scene = Scene(EXPERIMENT, cells, tmp_path / "demo")
    batch = Batch(work, lambda: ThreadPoolExecutor(2), 2, stop)
    run_scenes([scene], batch, out=tmp_path, json=json)


def test_every_entry_gets_the_same_seeds_in_its_own_folder(tmp_path):
    cells = plan(tmp_path)
    assert [(c.label, c.seed, str(c.path.relative_to(tmp_path))) for c in cells] == [
        ("Plain (fp32)", 5, "demo/plain-fp32-5"),
        ("Plain (fp32)", 6, "demo/plain-fp32-6"),
        ("Fast, 5 epochs", 5, "demo/fast-5-epochs-5"),
        ("Fast, 5 epochs", 6, "demo/fast-5-epochs-6"),
    ]
    assert [c.experiment.training.lr for c in cells] == [0.1, 0.1, 0.3, 0.3]
    assert all(c.experiment.run.seed == c.seed for c in cells)
    assert list(tmp_path.iterdir()) == []


def test_a_cell_does_not_depend_on_what_it_is_compared_with(tmp_path):
    alone = plan(tmp_path, strategies=["fast, 5 epochs"])[0]
    assert alone.experiment == plan(tmp_path)[2].experiment


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("", "nothing to compare"),
        ('compare.entries = [{label = "A b"}, {label = "a-b"}]', "share the folder 'a-b'"),
        (
            'compare.entries = [{label = "a", set = {"training.lrr" = 1}}]',
            "compare entry 'a': training.lrr: unknown key; did you mean 'lr'?",
        ),
        ('compare.entries = [{label = "a", set = {"run.seed" = 1}}]', "run.seed is the same"),
        ('compare.entries = [{label = "a", set = {"compare.seeds" = 1}}]', "is the same for all"),
    ],
)
def test_a_bad_entry_is_refused_before_anything_starts(tmp_path, toml, message):
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        plan(tmp_path, parse_experiment(toml, where="test"))
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_strategy_is_refused_with_the_labels(tmp_path):
    with pytest.raises(ConfigError, match=r"no entry or strategy 'slow'; .*Plain \(fp32\)"):
        plan(tmp_path, strategies=["slow"])


def test_a_folder_of_another_experiment_is_refused(tmp_path):
    finish(plan(tmp_path)[2])
    other = with_settings(EXPERIMENT, {"partition.alpha": 0.7}, "test")
    with pytest.raises(ConfigError, match=r"fast-5-epochs-5: .*partition\.alpha is 0\.3 there"):
        plan(tmp_path, other)


def test_slugs_are_safe_names():
    assert slug("topk(0.05)|int8") == "topk-0.05-int8"
    assert slug("../../x") == "x"
    assert slug("***") == "entry"


def test_table_verdict_report_and_json(tmp_path, capsys):
    compare(tmp_path, json=tmp_path / "x.json")

    out = capsys.readouterr().out
    assert "[6/6]" in out
    assert "3.00 times less time to target" in out
    assert "Soonest at 90.0 % accuracy: Fast, 5 epochs." in out
    found = json.loads((tmp_path / "x.json").read_text())
    plain, fast = found["rows"]
    assert (found["experiment"], found["seeds"]) == ("demo", [5, 6, 7])
    assert plain["seconds_to_target"] == pytest.approx(3 * 7 / 0.1)
    assert fast["seconds_ratio"] == pytest.approx(1 / 3)
    assert fast["uplink_ratio"] == 1
    assert (tmp_path / "demo" / "report.html").read_text().startswith("<!doctype html>")


def test_a_run_that_used_no_update_says_why(tmp_path, capsys):
    report = ClientReport(node_id=1, accepted=False, reason="Diverged: the loss is nan")
    compare(tmp_path, work=lambda cell: finish(cell, (report,)))
    assert "no update was used: Diverged: the loss is nan\n" in capsys.readouterr().out


def test_report_reads_the_same_comparison_from_the_folders(tmp_path):
    compare(tmp_path)
    again, unfinished = read_comparison([tmp_path / "demo"], None)
    assert unfinished == []
    assert [row.label for row in again.rows] == ["Plain (fp32)", "Fast, 5 epochs"]
    assert (again.name, again.target, again.seeds) == ("demo", 0.9, [5, 6, 7])
    ratio = again.ratio(again.rows[1], "seconds")
    assert ratio is not None
    assert ratio.mean == pytest.approx(1 / 3)


def test_report_refuses_two_runs_of_one_seed_and_mixed_targets(tmp_path):
    cell = plan(tmp_path)[0]
    finish(cell)
    with pytest.raises(ConfigError, match="a second run of 'plain-fp32' with seed 5"):
        read_comparison([cell.path, cell.path], None)
    other = with_settings(EXPERIMENT, {"run.target": 0.5, "run.name": "o"}, "test")
    finish(plan(tmp_path, other)[0])
    with pytest.raises(ConfigError, match="different targets; say which with --target"):
        read_comparison([tmp_path / "demo", tmp_path / "o"], None)


def test_finished_cells_are_kept_and_only_the_rest_runs(tmp_path):
    cells = plan(tmp_path, seeds=3)
    finish(cells[0])
    ran = []
    compare(tmp_path, work=lambda cell: ran.append(cell.path) or finish(cell))
    assert sorted(ran) == sorted(cell.path for cell in cells[1:])


def test_a_failing_cell_is_reported_and_the_others_go_on(tmp_path, capsys):
    bad = plan(tmp_path)[1].path

    def work(cell):
        if cell.path == bad:
            raise ValueError("first reason\nand more")
        return finish(cell)

    with pytest.raises(typer.Exit) as stopped:
        compare(tmp_path, work=work)
    assert stopped.value.exit_code == 1
    out = capsys.readouterr().out
    assert f"failed: {bad}: ValueError: first reason\n" in out
    table = json.loads((tmp_path / "demo" / "comparison.json").read_text())
    assert [row["runs"] for row in table["rows"]] == [2, 3]


def test_stop_starts_no_further_cell_and_keeps_what_is_there(tmp_path):
    ran = []

    def work(cell):
        ran.append(cell)
        return finish(cell)

    with pytest.raises(typer.Exit) as stopped:
        compare(tmp_path, work=work, stop=lambda: bool(ran))
    assert stopped.value.exit_code == 130
    assert 0 < len(ran) < 6


def test_running_cells_hear_of_a_stop_while_every_worker_is_busy(tmp_path):
    asked, heard = threading.Event(), threading.Event()

    def stop():
        if asked.is_set():
            heard.set()
        return asked.is_set()

    def work(cell):
        asked.set()
        return finish(cell) if heard.wait(10) else "nobody asked whether to stop"

    cells = plan(tmp_path, seeds=1)[:1]
    with pytest.raises(typer.Exit) as stopped:
        Batch(work, lambda: ThreadPoolExecutor(1), 1, stop).run(console(), cells)
    assert stopped.value.exit_code == 130
    assert (cells[0].path / "result.json").exists()


def test_the_longest_expected_cell_starts_first(tmp_path):
    long = with_settings(
        EXPERIMENT,
        {
            "compare.entries": [
                {"label": "short"},
                {"label": "long", "set": {"run.budget.rounds": 9}},
            ]
        },
        "test",
    )
    ran = []
    run_cells(
        plan(tmp_path, long, seeds=1),
        lambda cell: ran.append(cell.label) or "",
        lambda: ThreadPoolExecutor(1),
        workers=1,
        on_tick=lambda running: None,
        on_done=lambda cell, fault: None,
        stop=lambda: False,
    )
    assert ran == ["long", "short"]


@pytest.fixture
def work_module(tmp_path, monkeypatch):
    """A module that worker processes can import."""
    source = """
    import os, signal, time
    from pathlib import Path

    def work(cell):
        if cell.label == "killer":
            os.kill(os.getpid(), signal.SIGKILL)
        if cell.label == "sleeper":
            (cell.path.parent / "asleep").touch()
            time.sleep(90)
        ignores_interrupt = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        return f"{os.environ['OMP_NUM_THREADS']} {ignores_interrupt}"
    """
    (tmp_path / "cell_work_for_test.py").write_text(textwrap.dedent(source))
    monkeypatch.syspath_prepend(str(tmp_path))
    import importlib

    return importlib.import_module("cell_work_for_test")


def test_a_process_that_dies_takes_only_its_own_cell_along(tmp_path, work_module, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    experiment = with_settings(
        EXPERIMENT, {"compare.entries": [{"label": "good"}, {"label": "killer"}]}, "test"
    )
    event = multiprocessing.get_context("spawn").Event()
    with process_pools(2, event) as start_pool:
        faults = run_cells(
            plan(tmp_path, experiment, seeds=1),
            work_module.work,
            start_pool,
            workers=2,
            on_tick=lambda running: None,
            on_done=lambda cell, fault: None,
            stop=lambda: False,
        )
    by_name = {path.name: fault for path, fault in faults.items()}
    assert by_name["killer-5"].startswith("its process died")
    assert by_name["good-5"] == "1 True"
    assert "OMP_NUM_THREADS" not in os.environ


def test_the_table_beside_the_runs_is_replaced_in_one_step(tmp_path):
    path = tmp_path / "comparison.json"
    save_json(path, {"rows": [1]})
    with path.open() as reader:
        save_json(path, {"rows": [2, 3]})
        assert json.load(reader) == {"rows": [1]}
    assert json.loads(path.read_text()) == {"rows": [2, 3]}
    assert list(tmp_path.iterdir()) == [path]


def test_a_second_ctrl_c_does_not_wait_for_what_runs(tmp_path, work_module):
    experiment = with_settings(EXPERIMENT, {"compare.entries": [{"label": "sleeper"}]}, "test")
    cells = plan(tmp_path, experiment, seeds=1)
    cells[0].path.parent.mkdir()
    began_s = []

    def interrupt_once_it_sleeps(running):
        if (cells[0].path.parent / "asleep").exists():
            began_s.append(time.monotonic())
            raise KeyboardInterrupt

    event = multiprocessing.get_context("spawn").Event()
    with pytest.raises(KeyboardInterrupt), process_pools(1, event) as start_pool:
        run_cells(
            cells,
            work_module.work,
            start_pool,
            workers=1,
            on_tick=interrupt_once_it_sleeps,
            on_done=lambda cell, fault: None,
            stop=lambda: False,
        )
    assert time.monotonic() - began_s[0] < 45
    assert multiprocessing.active_children() == []


def test_interrupted_runs_can_be_reported(tmp_path):
    cell = plan(tmp_path)[0]
    finish(cell)
    (cell.path / "result.json").unlink()
    alone, unfinished = read_comparison([cell.path], None)
    assert alone.rows[0].trials[5].stopped_by == INTERRUPTED
    assert unfinished == [f"not finished: {cell.path}"]


def test_beside_others_a_run_that_is_not_finished_is_named_and_not_judged(tmp_path):
    compare(tmp_path)
    cell = plan(tmp_path)[0]
    (cell.path / "result.json").unlink()
    found, unfinished = read_comparison([tmp_path / "demo"], None)
    assert sorted(found.rows[0].trials) == [6, 7]
    assert unfinished == [f"not finished: {cell.path}"]


@pytest.mark.parametrize("damage", ["", "one line less", "torn", "doubled"])
def test_a_finished_run_whose_rounds_are_lost_is_not_judged(tmp_path, damage):
    cell = plan(tmp_path)[0]
    finish(cell)
    rounds = cell.path / "rounds.jsonl"
    lines = rounds.read_bytes().splitlines(keepends=True)
    kept = {
        "": b"",
        "one line less": b"".join(lines[1:]),
        "torn": b"".join(lines)[:-1],
        "doubled": b"".join(line + line for line in lines),
    }
    rounds.write_bytes(kept[damage])
    with pytest.raises(ConfigError, match=r"whole rounds where result\.json speaks of"):
        is_finished(cell)


@pytest.mark.parametrize("width", [80, 100, 140])
def test_no_figure_of_the_table_is_cut_off_on_a_narrow_screen(tmp_path, width):
    compare(tmp_path)
    comparison, _ = read_comparison([tmp_path / "demo"], None)
    screen = Console(width=width, record=True, file=io.StringIO())
    screen.print(comparison_table(comparison, width))
    text = screen.export_text()
    assert "…" not in text
    assert ("downlink" in text) == (width > 120)
