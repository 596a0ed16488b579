"""The scenarios are experiments that can run, with the spread of conditions that is promised."""

from pathlib import Path

import pytest

from fedsys.cli.run import check_experiment, run_experiment
from fedsys.config.load import load_experiment, with_settings
from fedsys.telemetry.runfolder import RunFolder

FOLDER = Path(__file__).parents[1] / "scenarios"
FILES = sorted(FOLDER.glob("*.toml"))
DATA = {
    "fashion_mnist": Path("/usr/share/datasets/fashion-mnist"),
    "char_lm": Path("/usr/share/common-licenses/GPL-3"),
}
CHEAPEST = ("digits-dirichlet-static-1m", "digits-churn")


def experiments():
    return [load_experiment(file) for file in FILES]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_scenario_is_an_experiment_with_a_target_and_a_horizon(file):
    experiment = load_experiment(file)
    assert experiment.run.name == file.stem
    assert experiment.run.target is not None
    assert experiment.run.budget.seconds is not None
    assert experiment.run.stop_at_target
    assert not experiment.compare.entries
    assert experiment.codec.uplink == experiment.codec.downlink == "none"
    data = DATA.get(experiment.task.name)
    if data is not None and not data.exists():
        pytest.skip(f"{data} is not on this machine")
    check_experiment(experiment)


def test_scenarios_cover_tasks_splits_links_and_participation():
    found = experiments()
    assert len(found) >= 12
    assert {e.task.name for e in found} >= {"digits", "fashion_mnist", "char_lm"}
    assert {e.partition.kind for e in found} >= {"iid", "dirichlet", "shards", "user"}
    links = {e.network.link for e in found}
    assert links >= {"constant", "step", "diurnal", "markov", "perfect", "lte-driving"}
    rates = {
        e.network.options["up_bps"]
        for e in found
        if e.network.link == "constant" and "spread" not in e.network.options
    }
    assert rates >= {1e5, 1e6, 1e7}
    assert any(2 * e.network.options.get("delay_ms", 0) >= 800 for e in found)
    assert any(e.network.options.get("available_fraction", 1) < 1 for e in found)
    assert any(e.network.options.get("spread", 0) >= 1 for e in found)
    shares = [e.cohort.count(e.partition.clients) / e.partition.clients for e in found]
    assert min(shares) <= 0.1
    assert max(shares) == 1


@pytest.mark.parametrize("name", CHEAPEST)
def test_the_cheapest_scenarios_run(name, tmp_path):
    experiment = with_settings(
        load_experiment(FOLDER / f"{name}.toml"), {"run.budget.rounds": 2}, "test"
    )
    folder = RunFolder.create(tmp_path / "run", experiment, resume=False)
    result = run_experiment(experiment, folder)
    assert result.stopped_by == "rounds"
    assert any(report.accepted for report in result.records[-1].reports)
