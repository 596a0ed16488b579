"""``fedsys plan`` foretells what a simulation takes, and what would decide between two plans."""

import json
from dataclasses import replace

import pytest

from fedsys.cli.main import run
from fedsys.cli.rehearsal import Stage, rehearse
from fedsys.cli.run import run_experiment
from fedsys.config.load import parse_experiment
from fedsys.telemetry.forecast import decide, forecast, smallest_shown
from fedsys.telemetry.runfolder import RunFolder
from fedsys.types import ClientPlan, ClientReport, RoundPlan, RoundRecord

BASE = """
run = {name = "foretold", target = 0.9, budget = {rounds = 6}}
partition = {clients = 6}
"""
SCENES = {
    "constant, sampled, topk": """
        network = {link = "constant", options = {up_bps = 2e5, down_bps = 1e6, delay_ms = 50.0}}
        cohort = {size = 3}
        codec = {uplink = "topk(0.05)|int8", downlink = "int8"}
    """,
    "two states, entropy coded, unequal devices": """
        network = {link = "markov", options = {up_bps = 1e6, down_bps = 1e6, mean_good_s = 5.0}}
        devices = {options = {spread = 0.5}}
        codec = {uplink = "ecq(1)", downlink = "ecq(2)"}
        strategy = {options = {local_epochs = 2}}
    """,
    "a strategy that chooses": """
        network = {link = "lte-driving"}
        strategy = {name = "adaptive"}
    """,
}


@pytest.mark.parametrize("scene", SCENES)
def test_seconds_a_round_are_foretold_within_fifteen_percent(scene, tmp_path):
    experiment = parse_experiment(BASE + SCENES[scene], where="test")
    foretold = rehearse(experiment, Stage.of(experiment), 6)
    folder = RunFolder.create(tmp_path / "run", experiment, resume=False)
    simulated = run_experiment(experiment, folder).records
    rounds = min(len(foretold), len(simulated))
    assert rounds >= 4
    ratio = foretold[rounds - 1].end_s / simulated[rounds - 1].end_s
    assert 0.85 <= ratio <= 1.15
    if experiment.strategy.name == "fixed":  # others choose codecs by losses, made up here
        for name in ("uplink_bytes", "downlink_bytes"):
            ours, theirs = (
                sum(getattr(record, name) for record in records[:rounds])
                for records in (foretold, simulated)
            )
            assert ours == pytest.approx(theirs, rel=0.02)


def record(number, *reports, length_s=10.0):
    plans = tuple(
        ClientPlan(node_id=r.node_id, local_steps=4, lr=0.1, uplink="none", reason="")
        for r in reports
    )
    return RoundRecord(
        round=number,
        plan=RoundPlan(round=number, clients=plans, downlink="none", deadline_s=None, reason=""),
        reports=reports,
        start_s=length_s * (number - 1),
        end_s=length_s * number,
        downlink_bytes=100,
        uplink_bytes=40,
        train_loss=None,
        step_norm=None,
        agreement=None,
    )


def report(node, download_s, train_s, upload_s, *, steps=4, nmse=0.0, accepted=True):
    return ClientReport(
        node_id=node,
        accepted=accepted,
        reason="",
        examples=20,
        local_steps=steps,
        nmse=nmse,
        download_s=download_s,
        train_s=train_s,
        upload_s=upload_s,
    )


def test_the_bound_is_compute_over_compute_and_communication():
    records = [
        record(1, report(1, 1.0, 2.0, 5.0), report(2, 1.0, 1.0, 2.0)),
        record(2, report(1, 1.0, 2.0, 3.0), report(2, 0.0, 0.0, 0.0, accepted=False)),
    ]
    found = forecast("x", records, clients=2, feedback=True)
    slow, quick = found.nodes
    assert (slow.node_id, slow.download_s, slow.compute_s, slow.upload_s) == (1, 1.0, 2.0, 4.0)
    assert slow.bound == pytest.approx(2 / 7)
    assert quick.bound == pytest.approx(1 / 4)
    assert found.bound == pytest.approx((1 / 4, (2 / 7 + 1 / 4) / 2, 2 / 7))
    assert (found.round_s, found.uplink_bytes, found.cohort, found.left_out) == (10.0, 40, 2, 1)
    assert forecast("x", [record(1)], clients=2, feedback=True) is None


def test_progress_follows_the_rule_of_steps_and_error():
    def progress(one, feedback=True):
        return forecast("x", [record(1, one)], clients=1, feedback=feedback).progress

    # One client, so that a round needs 1 + D = 7 times the rounds that a thousand would.
    exact, lossy = report(1, 1, 1, 1, steps=25), report(1, 1, 1, 1, steps=75, nmse=0.75)
    assert progress(exact) == pytest.approx(1 / (1 + 75 / 25) / 7)
    assert progress(lossy) == pytest.approx(1 / (2 + 0.5 * 3) / 7)
    assert progress(lossy, feedback=False) == pytest.approx(0.25**0.9 / 2 / 7)


def test_a_round_that_waits_for_few_or_old_updates_is_worth_less():
    def rounds(*updates):
        return 1 / forecast("x", [record(1, *updates)], clients=4, feedback=True).progress

    whole = rounds(*(report(node, 1, 1, 1, steps=75) for node in range(4)))
    # 2 with endless steps counted, and 1 + D / K with D = 6 and K = 4, 1 and 4 / 2.
    assert whole == pytest.approx(2 * (1 + 6 / 4))
    # Of one of four, chance adds D / K (1 - 1/4) = 4.5 to the 2.
    assert rounds(report(1, 1, 1, 1, steps=75)) == pytest.approx((2 + 4.5) * 7)
    old = (replace(report(node, 1, 1, 1, steps=75), staleness=3) for node in range(4))
    assert rounds(*old) == pytest.approx((2 + 6 / 2 * (1 - 1 / 2)) * (1 + 6 / 2))


def way(length_s, steps):
    one = record(1, report(1, 1, 1, 1, steps=steps), length_s=length_s)
    return forecast("x", [one], clients=1, feedback=True)


def test_the_decision_weighs_rounds_against_seconds():
    # 75 steps need half the rounds of 25, at three times the seconds: 1.5 times the time.
    found = decide(way(30.0, 75), way(10.0, 25))
    assert found.expected_rounds == pytest.approx(0.5)
    assert found.break_even == pytest.approx(1 / 3)
    assert found.time_ratio == pytest.approx(1.5)
    assert found.sooner is found.second
    # ln 1.5 = 0.405; margins t * 0.35 / sqrt(n): n = 4 0.557, n = 5 0.435, n = 6 0.367.
    assert found.seeds == 6
    assert not found.is_foregone


def test_a_large_difference_needs_few_seeds_and_a_small_one_cannot_be_shown():
    assert decide(way(100.0, 4), way(10.0, 4)).seeds == 3
    assert decide(way(100.0, 4), way(10.0, 4)).is_foregone
    assert decide(way(10.1, 4), way(10.0, 4)).seeds is None
    assert smallest_shown(30) == pytest.approx(1.14, abs=0.005)  # exp(2.045 * 0.35 / sqrt(30))


def test_the_command_names_the_experiment_that_decides(tmp_path, monkeypatch, capsys):
    text = (
        BASE
        + SCENES["constant, sampled, topk"]
        + """
        [[compare.entries]]
        label = "short, plain"
        [[compare.entries]]
        label = "long"
        set = {"strategy.options.local_epochs" = 16}
    """
    )
    (tmp_path / "x.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    command = ["plan", "x.toml", "--rounds", "2", "--codecs", "none,int8", "--json", "x.json"]
    assert run([*command, "--between", "long,short-plain"]) == 0
    found = json.loads((tmp_path / "x.json").read_text())
    assert [one["label"] for one in found["candidates"]] == ["short, plain", "long"]
    assert [one["label"] for one in found["codecs"]] == ["none", "int8"]
    plain, int8 = found["codecs"]
    assert plain["uplink_bytes"] > 2 * int8["uplink_bytes"]
    assert all(0 < node["bound"] < 1 for node in plain["nodes"])
    decision = found["decision"]
    assert decision["candidates"] == ["long", "short, plain"]
    assert decision["command"] == (
        f"fedsys compare x.toml --strategies long,short-plain --seeds {decision['seeds']}"
    )
    out = " ".join(capsys.readouterr().out.split())
    assert "is sooner than short, plain if it needs less than" in out
    assert {path.name for path in tmp_path.iterdir()} == {"x.toml", "x.json"}
    given = ["--between", "long,short-plain", "--set", "network.options.delay_ms=1"]
    assert run([*command, *given]) == 0
    decision = json.loads((tmp_path / "x.json").read_text())["decision"]
    assert decision["command"].endswith(" --set network.options.delay_ms=1")
    assert run([*command, "--set", "strategy.options.local_epochs=3"]) == 2
