"""Clients served in blocks, by any number of workers, give the bytes that each alone would give."""

import hashlib
import json
import os
import signal
from functools import cache
from pathlib import Path

import pytest

from clients import cohort_app
from fedsys.cli.run import run_experiment
from fedsys.config.load import parse_experiment
from fedsys.engine.pool import Pool
from fedsys.engine.serving import Call
from fedsys.engine.tasks import Pumped, Task
from fedsys.telemetry.runfolder import RunFolder

BASE = """
run.budget.rounds = 3
partition.clients = 40
partition.alpha = 1.0
cohort.size = 20
"""
NORM_TASK = """
from dataclasses import dataclass
from torch import nn
from clients.tasks.digits import Digits

@dataclass(frozen=True, slots=True)
class Norm(Digits):
    def build_model(self):
        return nn.Sequential(nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))
"""
VARIANTS = {
    "plain": "",
    "fednova": "strategy.options = { local_steps = 3, fednova = true }",
    "codec": 'codec.uplink = "topk(0.05)|int8"',
    "both ways": 'codec = { uplink = "int4", downlink = "int8" }',
    "adaptive": 'strategy.name = "adaptive"',
    "dropout": 'network = { link = "3g", dropout_fraction = 0.2 }',
    "deadline": 'network.link = "3g"\ncohort.deadline_s = 1.6',
    "diverging": "training.lr = 1e8",
    "raw tensors": 'task.name = "norm_task:Norm"',
    "few clients": "cohort.size = 5",
}


@pytest.fixture(scope="module")
def digest(tmp_path_factory):
    """SHA-256 of a variant's rounds and model, kept by how it was run."""
    modules = tmp_path_factory.mktemp("modules")
    (modules / "norm_task.py").write_text(NORM_TASK)

    @cache
    def run(variant: str, batch: bool, workers: int) -> tuple[str, str]:
        path = tmp_path_factory.mktemp("runs") / "run"
        own = f"{BASE}{VARIANTS[variant]}\nengine.batch = {str(batch).lower()}\n"
        lines = {line.split(" = ")[0]: line for line in own.splitlines() if line}
        experiment = parse_experiment("\n".join(lines.values()), where="test")
        folder = RunFolder.create(path, experiment, resume=False)
        run_experiment(experiment, folder, workers=workers)
        files = (path / "rounds.jsonl", path / "model.safetensors")
        one, other = (hashlib.sha256(file.read_bytes()).hexdigest() for file in files)
        return one, other

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(modules)
        yield run


@pytest.mark.parametrize("variant", VARIANTS)
def test_blocks_give_the_bytes_of_single_messages(variant, digest):
    assert digest(variant, True, 1) == digest(variant, False, 1)


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("variant", ["plain", "codec", "dropout"])
def test_blocks_give_the_same_bytes_for_any_number_of_workers(variant, workers, digest):
    assert digest(variant, True, workers) == digest(variant, True, 1)


def test_these_runs_use_sums_and_lose_members_of_them(tmp_path, monkeypatch):
    """Else the tests above would compare nothing."""
    sums, made_anew = [], []
    serve, sum_of = cohort_app.serve, Pool._sum_of

    def watch(messages, contexts, wish):
        briefs = serve(messages, contexts, wish)
        sums.append(briefs.partial is not None)
        return briefs

    def watch_again(self, messages, places):
        made_anew.append(places)
        return sum_of(self, messages, places)

    monkeypatch.setattr(cohort_app, "serve", watch)
    monkeypatch.setattr(Pool, "_sum_of", watch_again)
    experiment = parse_experiment(BASE + VARIANTS["dropout"], where="test")
    run_experiment(experiment, RunFolder.create(tmp_path / "run", experiment, resume=False))

    assert sums[:4] == [True] * 4  # the first round, before anything was lost
    assert not any(sums[8:])  # later ones ask for packets
    assert made_anew


def test_a_worker_killed_while_it_serves_a_block_changes_nothing(tmp_path, digest):
    experiment = parse_experiment(BASE, where="test")
    folder = RunFolder.create(tmp_path / "run", experiment, resume=False)
    begin, killed = Pool._begin, []

    def begin_and_kill(self, tasks, *, first=False):
        begin(self, tasks, first=first)
        if not killed:
            killed.append(self._crew.workers[0].pid)
            os.kill(killed[0], signal.SIGKILL)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pool, "_begin", begin_and_kill)
        run_experiment(experiment, folder, workers=2)

    files = [Path(tmp_path / "run" / name) for name in ("rounds.jsonl", "model.safetensors")]
    assert killed
    assert tuple(hashlib.sha256(f.read_bytes()).hexdigest() for f in files) == digest(
        "plain", True, 1
    )


def test_a_worker_killed_while_it_sums_anew_changes_nothing(tmp_path, digest):
    text = f"{BASE}{VARIANTS['dropout']}"
    experiment = parse_experiment(text, where="test")
    folder = RunFolder.create(tmp_path / "run", experiment, resume=False)
    sum_of, killed = Pool._sum_of, []

    def sum_and_kill(self, messages, places):
        if not killed:
            killed.extend(worker.pid for worker in self._crew.workers)
            self._begin([Task(call=Call("time:sleep", (0.2,)), outcome=Pumped(self.pump))])
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
        return sum_of(self, messages, places)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pool, "_sum_of", sum_and_kill)
        run_experiment(experiment, folder, workers=2)

    files = [Path(tmp_path / "run" / name) for name in ("rounds.jsonl", "model.safetensors")]
    assert killed
    assert tuple(hashlib.sha256(f.read_bytes()).hexdigest() for f in files) == digest(
        "dropout", True, 1
    )


def test_the_reports_of_a_sum_say_what_those_of_packets_say(digest, tmp_path):
    experiment = parse_experiment(BASE, where="test")
    folder = RunFolder.create(tmp_path / "run", experiment, resume=False)
    run_experiment(experiment, folder)
    reports = json.loads((tmp_path / "run" / "rounds.jsonl").read_text().splitlines()[0])["reports"]
    assert all(report["accepted"] and report["update_norm"] > 0 for report in reports)
    assert len({report["uplink_bytes"] for report in reports}) == 1
