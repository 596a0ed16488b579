"""The command line answers bad input with one line and exit code 2, before any work starts."""

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
import typer

import fedsys
from fedsys.cli.main import app, run


def error_line(capsys, *arguments: str) -> str:
    assert run([str(a) for a in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def test_version(capsys):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"fedsys {fedsys.__version__}\n"


def test_no_command_shows_help(capsys):
    assert run([]) == 2
    out = capsys.readouterr().out
    for command in ("simulate", "compare", "report", "list"):
        assert command in out


def commands(command, name="fedsys"):
    """Every command below this one, by its full name."""
    if not isinstance(command, click.Group):
        return {name: command}
    below = (commands(sub, f"{name} {key}") for key, sub in command.commands.items())
    return {key: found for some in below for key, found in some.items()}


def test_every_argument_and_option_says_what_it_is():
    mute = [
        f"{name}: {parameter.name}"
        for name, command in commands(typer.main.get_command(app)).items()
        for parameter in command.params
        if not parameter.help
    ]
    assert mute == []


def test_help_shows_brackets_as_they_are(capsys):
    assert run(["compare", "--help"]) == 0
    assert "[[compare.entries]]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["simulte"], "simulte"),
        (["simulate"], "Missing argument"),
        (["simulate", "none.toml"], "none.toml: cannot be read"),
        (["list", "modems"], "'modems' is not one of"),
        (["report", "nowhere"], "nowhere: not a run folder"),
        (["compare", "none.toml", "--seeds", "0"], "--seeds"),
    ],
)
def test_bad_input_is_one_line(capsys, arguments, expected):
    assert expected in error_line(capsys, *arguments)


def test_a_bad_setting_names_the_key_and_leaves_no_folder(capsys, tmp_path):
    file = tmp_path / "exp.toml"
    file.write_text("")
    out = tmp_path / "runs"
    line = error_line(capsys, "simulate", file, "--set", "training.lrr=1", "--out", out)
    assert "training.lrr: unknown key; did you mean 'lr'?" in line
    assert not out.exists()


@pytest.mark.parametrize("command", ["simulate", "compare"])
def test_a_json_path_that_cannot_be_written_is_refused_before_the_work(capsys, tmp_path, command):
    file = tmp_path / "exp.toml"
    file.write_text("")
    line = error_line(capsys, command, file, "--json", tmp_path / "none" / "x.json")
    assert "--json" in line


@pytest.mark.parametrize(
    ("kind", "name"), [("codecs", "topk"), ("links", "3g"), ("devices", "raspberry-pi-4")]
)
def test_list_explains_each_name(capsys, tmp_path, kind, name):
    path = tmp_path / "list.json"
    assert run(["list", kind, "--json", str(path)]) == 0
    assert name in capsys.readouterr().out
    entries = {e["name"]: e["help"] for e in json.loads(path.read_text())[kind]}
    assert all(len(text) > 20 for text in entries.values())
    assert name in entries


def test_options_of_a_codec_come_with_their_defaults(capsys):
    assert run(["list", "codecs"]) == 0
    assert "Options: fraction = 0.01, chunk = 0" in " ".join(capsys.readouterr().out.split())


def test_start_up_imports_nothing_heavy():
    code = (
        "import sys; from fedsys.cli.main import run; run(['--version']);"
        "print(sorted({'torch', 'flwr', 'matplotlib', 'sklearn'} & sys.modules.keys()))"
    )
    root = Path(fedsys.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root
    )
    assert done.stdout.splitlines()[-1] == "[]"
