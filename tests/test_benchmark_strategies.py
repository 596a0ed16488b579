"""Which runs of the study of strategies are made at all."""

import json

import pytest

from benchmarks.strategies_bars import best_published
from benchmarks.strategies_page import _worth
from benchmarks.strategies_study import (
    BASELINE,
    OURS,
    QUICK_STRATEGIES,
    RACE_SEEDS,
    SCENARIOS,
    contenders,
    uplinks,
)
from fedsys.cli.cells import Cell
from fedsys.config.load import load_experiment, parse_experiment

EXPERIMENT = parse_experiment('task.name = "digits"\nrun.budget.seconds = 1000', where="test")


def cells_of(folder, seconds, seeds):
    """Runs of the first seeds took ``seconds`` by label, None: not yet; others are to come."""
    cells = []
    for label, spent in seconds.items():
        for seed in range(1, seeds + 1):
            path = folder / f"{label}-{seed}"
            path.mkdir(parents=True)
            if spent is not None and seed <= RACE_SEEDS:
                reached = {"seconds": spent * (1 + 0.1 * seed)}
                result = {"at_target": reached, "total": {"seconds": 1e9}, "stopped_by": "target"}
                if label == "never":  # all its rounds are soon over
                    total = {"seconds": spent}
                    result = {"at_target": None, "total": total, "stopped_by": "rounds"}
                (path / "result.json").write_text(json.dumps(result))
            cells.append(Cell(label, seed, EXPERIMENT, path))
    return cells


def test_who_is_far_behind_in_the_first_seeds_is_in_no_further_ones(tmp_path):
    seconds = {BASELINE: 900, OURS: 1, "a": 10, "b": 14, "c": 16, "never": 5, "new": None}
    cells = cells_of(tmp_path, seconds, RACE_SEEDS + 2)
    found = {(cell.label, cell.seed) for cell in contenders(cells)}
    further = {label for label, seed in found if seed > RACE_SEEDS}
    assert further == {BASELINE, OURS, "a", "b", "new"}
    assert {label for label, seed in found if seed <= RACE_SEEDS} == set(seconds)


def test_before_the_first_seeds_are_run_nobody_is_out(tmp_path):
    cells = cells_of(tmp_path, {"a": None, "b": None}, RACE_SEEDS + 1)
    assert contenders(cells) == cells


@pytest.mark.parametrize(
    ("scenario", "mbps", "steady"),
    [
        ("digits-dirichlet-static-1m", 1.0, True),
        ("digits-stragglers", 0.59, False),  # alike in nothing
        ("digits-markov", (30 * 2.0 + 15 * 0.1) / 45, False),  # good for 30 s, bad for 15
        ("digits-perfect", None, True),
        ("digits-shared-server", None, False),
    ],
)
def test_a_scenario_is_slow_or_steady_by_what_its_links_do(scenario, mbps, steady):
    found = uplinks(load_experiment(SCENARIOS / f"{scenario}.toml"))
    assert found["steady"] is steady
    if mbps is not None:
        assert found["uplink_bps"] == pytest.approx(mbps * 1e6, rel=0.05)


def test_no_limit_is_no_number():
    assert uplinks(load_experiment(SCENARIOS / "digits-perfect.toml"))["uplink_bps"] is None


def test_the_best_published_one_is_whom_ours_leaves_least_behind():
    over = {BASELINE: 2.0, QUICK_STRATEGIES[-1]: 1.5, "a": 0.5, "b": 0.8}
    assert best_published(over) == ("b", 0.8)
    assert best_published({BASELINE: 0.1}) == ("-", None)


def test_a_part_that_was_not_run_is_not_called_worthless():
    one = {"parts": ["all", "without a"], "rows": [{"strategy": "all"}]}
    assert _worth(one, "without a") == "not run"
    assert _worth(one, "without b") == "none here"
