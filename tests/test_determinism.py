"""Equal file and seed give equal bytes, for any number of workers and after a kill at any moment.

Run as a program, this file is what ``test_a_run_killed_at_any_write`` starts.
"""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import pytest

from clients.server_side import ServerTask
from fedsys.cli.main import run
from fedsys.cli.run import run_experiment
from fedsys.config.load import parse_experiment
from fedsys.telemetry.runfolder import RunFolder

ROUNDS = 5
MANY_THREADS = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
TEXT = f"""
[run]
name = "tiny"
budget = {{ rounds = {ROUNDS} }}
[task]
options = {{ model = "mlp" }}
[partition]
clients = 6
[network]
link = "3g"
dropout_fraction = 0.2
[cohort]
fraction = 0.5
deadline_s = 2.5
[server]
momentum = 0.9
"""
VARIANTS = {
    "fixed": f'{TEXT}[codec]\nuplink = "topk(0.05)|int8"\ndownlink = "int8"\n',
    "adaptive": f'{TEXT}[strategy]\nname = "adaptive"\n',
    "fedbuff": (
        f'{TEXT}[codec]\nuplink = "topk(0.05)|int8"\ndownlink = "int8"\n'
        '[strategy]\nname = "fedbuff"\noptions = { buffer = 4, max_staleness = 1 }\n'
    ),
}


def digests(folder: Path) -> tuple[str, str]:
    files = (folder / "rounds.jsonl", folder / "model.safetensors")
    first, second = (hashlib.sha256(file.read_bytes()).hexdigest() for file in files)
    return first, second


def simulated(folder: Path, variant: str, **options) -> tuple[str, str]:
    settings = [f"run.seed={options.pop('seed', 1)}"]
    experiment = parse_experiment(VARIANTS[variant], settings, where="test")
    run_experiment(experiment, RunFolder.create(folder, experiment, resume=False), **options)
    return digests(folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Digests of a variant's run that nothing disturbed, with one worker."""
    return cache(lambda variant: simulated(tmp_path_factory.mktemp(variant) / "run", variant))


def command(file: Path, *more: str) -> list[str]:
    return ["simulate", str(file), "--workers", "1", "--out", str(file.parent), *more]


def killed(file: Path, *, after_lines: int = 0, after_s: float = 0.0) -> int:
    """Start the real command, kill its process group at that moment; the rounds on the disk."""
    lines = file.parent / "tiny-1" / "rounds.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-m", "fedsys.cli.main", *command(file)],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        env=MANY_THREADS,
    )
    count = 0
    while process.poll() is None and count < after_lines:
        count = lines.read_bytes().count(b"\n") if lines.exists() else 0
        time.sleep(0.001)
    time.sleep(after_s)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return lines.read_bytes().count(b"\n") if lines.exists() else 0


@pytest.mark.parametrize("variant", VARIANTS)
def test_two_workers_give_the_bytes_of_one(variant, whole, tmp_path, monkeypatch):
    for name in os.environ.keys() - MANY_THREADS.keys():
        monkeypatch.delenv(name)
    assert simulated(tmp_path / "run", variant, workers=2) == whole(variant)


@pytest.mark.parametrize(
    ("variant", "moment"),
    [
        ("fixed", {"after_lines": 2}),
        ("adaptive", {"after_lines": 1, "after_s": random.uniform(0, 0.03)}),
        ("fedbuff", {"after_lines": 2, "after_s": random.uniform(0, 0.03)}),
    ],
    ids=VARIANTS,
)
def test_a_killed_command_resumes_to_the_bytes_of_a_whole_run(variant, moment, whole, tmp_path):
    file = tmp_path / "tiny.toml"
    file.write_text(VARIANTS[variant])
    done = killed(file, **moment)
    assert 1 <= done <= ROUNDS, moment
    assert run(command(file, "--resume")) == 0
    assert digests(tmp_path / "tiny-1") == whole(variant), moment


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_killed_at_any_write_resumes_to_the_same_bytes(variant, whole, tmp_path):
    done = subprocess.run(
        [sys.executable, __file__, variant, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},  # threads do not survive a fork
    )
    lines = done.stdout.splitlines()
    assert len(lines) > 3
    assert {line.split(": ")[1] for line in lines} == {" ".join(whole(variant))}, done.stdout


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_stopped_after_each_of_its_rounds_ends_with_the_same_bytes(variant, whole, tmp_path):
    experiment = parse_experiment(VARIANTS[variant], ["run.seed=1"], where="test")
    for _ in range(ROUNDS):
        folder = RunFolder.create(tmp_path / "run", experiment, resume=True)
        run_experiment(experiment, folder, stop=lambda: True)
    assert digests(tmp_path / "run") == whole(variant)


def test_a_run_that_has_begun_is_not_overwritten_without_resume(tmp_path, capsys):
    file = tmp_path / "tiny.toml"
    file.write_text(VARIANTS["fixed"])
    experiment = parse_experiment(VARIANTS["fixed"], where="test")
    folder = RunFolder.create(tmp_path / "tiny-1", experiment, resume=False)
    run_experiment(experiment, folder, stop=lambda: True)
    before = (tmp_path / "tiny-1" / "rounds.jsonl").read_bytes()

    assert run(command(file)) == 2

    assert "use --resume" in capsys.readouterr().err
    assert (tmp_path / "tiny-1" / "rounds.jsonl").read_bytes() == before


def test_the_split_is_recorded(tmp_path):
    simulated(tmp_path / "run", "fixed")
    experiment = parse_experiment(VARIANTS["fixed"], ["run.seed=1"], where="test")
    recorded = json.loads((tmp_path / "run" / "split.json").read_text())
    assert recorded == ServerTask(experiment).split()


def test_another_seed_gives_another_run(whole, tmp_path):
    rounds, model = simulated(tmp_path / "run", "fixed", seed=2)
    assert rounds != whole("fixed")[0]
    assert model != whole("fixed")[1]


def test_these_runs_have_late_clients_and_accepted_ones(tmp_path):
    simulated(tmp_path / "run", "fixed")
    records = RunFolder.open(tmp_path / "run").records()
    reasons = [report.reason for record in records for report in record.reports]
    assert any("by the deadline of 2.5 s" in reason for reason in reasons)
    assert "" in reasons


EVERY = 9
"""Kills are this many writes apart; which ones comes from chance."""


def killed_at_every_write(variant: str, folder: Path) -> None:
    """Kill a run at its writes, one by one, resume each, and print what came of it."""
    experiment = parse_experiment(VARIANTS[variant], where="test")
    ServerTask(experiment).flops_per_sample()  # imports and data, once for all children
    for count in range(random.randrange(EVERY), 10_000, EVERY):
        path = folder / str(count)
        if in_child(lambda: run_to_write(variant, path, count)) != -signal.SIGKILL:  # noqa: B023
            return
        in_child(lambda: print(f"{count}: {' '.join(resumed(variant, path))}"))  # noqa: B023


def in_child(work) -> int:
    """The exit code of ``work`` in a process of its own; the negative signal that killed it."""
    child = os.fork()
    if child == 0:
        work()
        sys.stdout.flush()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run_to_write(variant: str, path: Path, count: int) -> None:
    """Run until file number ``count`` is opened for writing or renamed, and die before that."""
    left = count

    def watch(event: str, arguments: tuple) -> None:
        nonlocal left
        writes = event == "open" and "r" not in str(arguments[1] or "r")
        if (writes or event == "os.rename") and str(arguments[0]).startswith(str(path)):
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1

    experiment = parse_experiment(VARIANTS[variant], where="test")
    sys.addaudithook(watch)
    run_experiment(experiment, RunFolder.create(path, experiment, resume=False))


def resumed(variant: str, path: Path) -> tuple[str, str]:
    experiment = parse_experiment(VARIANTS[variant], where="test")
    run_experiment(experiment, RunFolder.create(path, experiment, resume=True))
    return digests(path)


if __name__ == "__main__":
    killed_at_every_write(sys.argv[1], Path(sys.argv[2]))
