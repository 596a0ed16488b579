"""``fedsys bench``: figures that add up, and a verdict that names the biggest of them."""

import json
import signal
import sys
import time

import pytest
from rich.console import Console

from fedsys.cli import bench
from fedsys.cli.main import run
from fedsys.cli.sampling import STAGES, StageSampler, stage_of
from fedsys.cli.stages import IDLE, Rounds, Spent, divided
from fedsys.config.load import parse_experiment
from fedsys.middleware.brief import Brief, Briefs
from fedsys.partial import blocks_of

TINY = """
partition = { clients = 6 }
strategy = { options = { local_steps = 2 } }
codec = { uplink = "int8" }
"""


@pytest.fixture
def experiment():
    return parse_experiment(TINY, where="test")


def test_the_stages_of_a_tiny_run_add_up_to_its_round_and_training_is_among_them(experiment):
    seconds = bench.Seconds(bare=0.05, training=0.05, engine=0.5)
    found = bench.measure(experiment, 2, seconds, Console(quiet=True))
    assert sum(found.shares.values()) == pytest.approx(1)
    assert all(share >= 0 for share in found.shares.values())
    assert found.shares["training"] > 0
    assert found.rounds.count >= 2
    assert found.rounds.clients == 6
    assert found.rounds.local_steps == 12
    assert found.limit_s > 0
    assert found.training_s > 0
    biggest = max(found.shares, key=found.shares.get)
    assert f"Biggest cost: {biggest}" in bench.verdict(found, experiment)
    json.dumps(bench.as_json(found))
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_an_unknown_file_is_one_line_and_exit_code_2(tmp_path, capsys):
    assert run(["bench", str(tmp_path / "no.toml")]) == 2
    assert capsys.readouterr().err.startswith(f"fedsys: error: {tmp_path / 'no.toml'}: cannot be")


def test_a_codec_that_does_not_exist_is_refused_before_anything_is_measured(capsys):
    assert run(["bench", "--quick", "--set", "codec.uplink=int9"]) == 2
    assert "1/3" not in capsys.readouterr().err


def test_the_parents_work_counts_where_workers_had_nothing_to_do():
    stages = divided(1.0, {"training": 0.5, "codec": 0.1}, {"waiting": 0.8, "links": 0.2})
    assert stages == pytest.approx({"training": 0.5, "codec": 0.1, "links": 0.2, IDLE: 0.2})


def test_work_of_the_parent_beside_busy_workers_costs_nothing():
    stages = divided(1.0, {"training": 0.9}, {"waiting": 0.6, "links": 0.3, "plan": 0.1})
    assert stages == pytest.approx({"training": 0.9, "links": 0.075, "plan": 0.025, IDLE: 0})


@pytest.mark.parametrize("busy_s", [0.0, 0.3, 1.0, 1.7])
@pytest.mark.parametrize("parent", [{}, {"waiting": 1.0}, {"codec": 0.9, "waiting": 0.1}])
def test_stages_add_up_to_the_round_whatever_was_measured(busy_s, parent):
    stages = divided(1.0, {"training": busy_s, "codec": busy_s / 9}, parent)
    assert sum(stages.values()) == pytest.approx(1)
    assert min(stages.values()) >= 0


def test_workers_seconds_are_divided_by_what_clients_say_of_their_training():
    spent = Spent()
    one = Brief(10, "arrays", {"metrics": {"train-seconds": 0.25}})
    spent.add(1.0, Briefs([one, one]))
    spent.add(0.5, (2.3, 0.1))
    per_round = spent.a_worker_and_round(2, 1)
    assert per_round == pytest.approx({"training": 0.25, "codec": 0.25, "evaluation": 0.25})


def test_the_innermost_of_our_files_names_the_stage():
    def look():
        return stage_of(sys._getframe())

    assert look() == "other"

    class Count(int):
        def __le__(self, other):
            seen.append(stage_of(sys._getframe()))
            return True

    seen = []
    blocks_of(Count(3))
    assert seen[0] == "codec"
    assert stage_of(None) == "other"


def test_the_sampler_sees_where_time_goes_and_gives_the_alarm_back():
    before = signal.getsignal(signal.SIGALRM)
    sampler = StageSampler()
    sampler.start()
    until_s = time.monotonic() + 0.1
    while time.monotonic() < until_s:
        pass
    sampler.stop()
    assert signal.getsignal(signal.SIGALRM) is before
    assert sampler.fractions() == {"other": 1.0}
    assert sampler.counts.total() >= 3


def found(stages, **figures):
    rounds = Rounds(
        count=5, round_s=1.0, clients=10, local_steps=100, samples=2000, stages_s=stages
    )
    return bench.Found(workers=2, limit_s=0.2, training_s=0.3, rounds=rounds, **figures)


def test_the_verdict_names_a_switch_for_every_stage(experiment):
    names = {"training", "codec", "evaluation", IDLE, "other", *STAGES.values()} - {"waiting"}
    assert names <= set(bench.SWITCHES)
    text = bench.verdict(found({"training": 0.3, "codec": 0.7}), experiment)
    assert text == ("Biggest cost: codec, 70.0 % of a round; codec.uplink = 'none' removes it.")
    slow = parse_experiment(f"{TINY}engine = {{ batch = false }}", where="test")
    assert bench.verdict(found({"codec": 1.0}), slow).endswith(
        "engine.batch = true removes most of it."
    )


def test_json_has_client_rounds_a_second():
    figures = bench.as_json(found({"training": 1.0}))
    assert figures["client_rounds_per_s"]["engine"] == 10
    assert figures["client_rounds_per_s"]["bare loop (limit)"] == 50
