"""What the documentation shows runs as it stands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedsys.cli.run import check_experiment
from fedsys.config.load import load_experiment

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(
    r"^## A (codec|strategy|link|task)[^\n]*\n.*?```python\n(.*?)```", re.DOTALL | re.MULTILINE
)
CLASSES = {
    "codec": "StochasticSign",
    "strategy": "WarmUp",
    "link": "Sawtooth",
    "task": "Moons",
}


def test_the_four_files_of_adding_md_train_a_model_together(tmp_path):
    blocks = dict(BLOCK.findall((ROOT / "docs/adding.md").read_text()))
    assert blocks.keys() == CLASSES.keys()
    for kind, source in blocks.items():
        (tmp_path / f"my_{kind}.py").write_text(source)
    names = {kind: f"my_{kind}:{name}" for kind, name in CLASSES.items()}
    (tmp_path / "own.toml").write_text(f"""
[run]
name = "own"
target = 0.8
[run.budget]
rounds = 60
[task]
name = "{names["task"]}"
[partition]
clients = 4
kind = "iid"
[codec]
uplink = "topk(0.5)|{names["codec"]}"
error_feedback = false
[network]
link = "{names["link"]}"
[strategy]
name = "{names["strategy"]}"
options = {{ patience_s = 0.01 }}
""")
    command = [sys.executable, "-m", "fedsys.cli.main", "simulate", "own.toml", "--workers", "1"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={"PYTHONPATH": f"{ROOT}:{tmp_path}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "ended by target" in done.stdout


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.toml")), ids=lambda p: p.name)
def test_every_example_is_a_valid_experiment_with_distinct_entries(path):
    experiment = load_experiment(path)
    labels = [entry.label for entry in experiment.compare.entries]
    assert len(set(labels)) == len(labels)
    if experiment.task.name == "digits":
        check_experiment(experiment)
