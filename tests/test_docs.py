"""What the documentation shows runs as it stands."""

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
import typer

from fedsys.cli.main import app
from fedsys.cli.run import check_experiment
from fedsys.config.load import load_experiment

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(
    r"^## A (codec|strategy|link|task)[^\n]*\n.*?```python\n(.*?)```", re.DOTALL | re.MULTILINE
)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMAND = re.compile(r"^(?:\.venv/bin/)?fedsys ((?:[^\n]*\\\n)*[^\n]*)", re.MULTILINE)
SHELL = re.compile(r"^```(?:sh|bash)\n(.*?)^```", re.DOTALL | re.MULTILINE)
SHOWN = [
    (page, line)
    for page in PAGES
    for block in SHELL.findall(page.read_text())
    for line in COMMAND.findall(block)
]
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


@pytest.mark.parametrize(("page", "line"), SHOWN, ids=[f"{p.name}: {line}" for p, line in SHOWN])
def test_a_command_that_is_shown_exists_with_these_options(page, line):
    command = typer.main.get_command(app)
    words = line.partition(" -- ")[0].partition("#")[0].replace("\\\n", " ").split()
    while isinstance(command, click.Group):
        command = command.commands[words.pop(0)]
    known = {name for parameter in command.params for name in parameter.opts} | {"--help", "-h"}
    assert {word.partition("=")[0] for word in words if word.startswith("-")} <= known


def test_commands_are_shown_on_many_pages():
    assert len(SHOWN) > 30
