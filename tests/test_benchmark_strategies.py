"""Which runs of the study of strategies are made at all."""

import json

from benchmarks.strategies_study import BASELINE, OURS, RACE_SEEDS, contenders
from fedsys.cli.cells import Cell
from fedsys.config.load import parse_experiment

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
