"""A run under a hundred faults, against the same run without any.

The run must come to its end by itself, or by ``--resume`` where ``fedsys run`` was killed. What it
then has must follow from its own records alone: the same rounds are computed once more in virtual
time, with exactly those devices absent that the records call absent, and the model must be the same
to the last bit. A round that was counted twice, an update that was added twice, or one that was
lost and yet reported would show.
"""

import json
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.deploy_faults import RUN_DISK, RUN_KILLED, Chaos
from benchmarks.deploy_lab import Lab, lab
from benchmarks.deploy_replay import accuracy_without_faults, replayed
from benchmarks.deploy_rig import Row
from fedsys.rng import rng_for

SECTION = "chaos"
DEVICES = 4
LINK = "constant(up_bps=2e6, down_bps=8e6, delay_ms=20)"
TARGET = 0.8
FAULTS, QUICK_FAULTS = 105, 8
LIMIT_S, QUICK_LIMIT_S = 840.0, 55.0
"""No more faults after that."""
CALM_ROUNDS = 15
"""Rounds at the end that nothing disturbs."""
MAX_ACCURACY_GAP = 0.02
END_S = 15.0
_END_S = 400.0
_BETWEEN_S = (0.5, 5.0)

EXPERIMENT = f"""\
[run]
name = "chaos"
target = {TARGET}
stop_at_target = false
[run.budget]
rounds = {{rounds}}
[task]
name = "digits"
options = {{{{ model = "mlp" }}}}
[partition]
clients = {DEVICES}
kind = "iid"
[training]
batch_size = 16
lr = 0.1
[cohort]
deadline_s = 12.0
[network]
link = "perfect"
[devices]
profile = "instant"
"""
MAX_ROUNDS = 2000
"""More than there will be; when the faults are over it gets as many as it has, and a few more."""


def rows(quick: bool) -> Iterator[Row]:
    """What was struck, and what came of it."""
    with tempfile.TemporaryDirectory(prefix="fedsys-chaos-") as name:
        folder = Path(name)
        (folder / "e.toml").write_text(EXPERIMENT.format(rounds=MAX_ROUNDS))
        with lab(folder, LINK, DEVICES) as all_of_it:
            all_of_it.small_disk(RUN_DISK)
            chaos = Chaos(all_of_it, rng_for(1, "chaos"))
            resumes, end_round = _run(all_of_it, chaos, quick)
            balanced = _is_balanced(all_of_it)
            run = folder / RUN_DISK / "chaos-1"
            lines = (run / "rounds.jsonl").read_text().splitlines()
            records = [json.loads(line) for line in lines]
            result = json.loads((run / "result.json").read_text())
            model = (run / "model.safetensors").read_bytes()
        for kind, count in sorted(chaos.counts.items()):
            yield Row(section=SECTION, name=kind, bound=None, measured=count)
        yield from _rows(quick, chaos.counts, resumes, end_round, records, result, model, balanced)


def _run(lab: Lab, chaos: Chaos, quick: bool) -> tuple[int, int]:
    """Strike until it is enough, and let the run come to its end; (resumes, last round)."""
    limit_s, enough = (QUICK_LIMIT_S, QUICK_FAULTS) if quick else (LIMIT_S, FAULTS)
    pauses = rng_for(1, "chaos", "pauses")
    resumes = 0
    _start(lab, resume=False)
    lab.wait(lambda: _rounds(lab) >= 2, 300, "no rounds")
    begin_s = time.monotonic()
    while chaos.total < enough and time.monotonic() - begin_s < limit_s:
        resumes += _go_on(lab)
        seconds = time.monotonic() - begin_s
        print(f"    {seconds:5.0f} s  round {_rounds(lab):3}  {chaos.strike()}", flush=True)
        time.sleep(pauses.uniform(*_BETWEEN_S))
    resumes += _go_on(lab)
    lab.running["run"].send_signal(signal.SIGINT)
    lab.running["run"].wait(60)
    # What a run that was killed before has left may still be at its last round.
    time.sleep(END_S)
    end_round = _rounds(lab) + CALM_ROUNDS
    # A run folder belongs to one experiment, so that both are told of the new end.
    for file in (lab.folder / "e.toml", lab.folder / RUN_DISK / "chaos-1" / "experiment.toml"):
        text = file.read_text().replace(f"rounds = {MAX_ROUNDS}", f"rounds = {end_round}")
        file.write_text(text)
    until_s = time.monotonic() + _END_S
    _start(lab, resume=True)
    while (code := lab.running["run"].poll()) != 0:
        if time.monotonic() > until_s:
            raise RuntimeError(f"the run does not end: {lab.said('run')[-1500:]}")
        if code is not None:
            resumes += _go_on(lab)
        time.sleep(0.2)
    return resumes, end_round


def _start(lab: Lab, *, resume: bool) -> None:
    more = ["--resume"] if resume else []
    lab.command(
        *("run", "run", "e.toml", "--server", "srv", "--out", RUN_DISK, "--min-nodes", "1", *more)
    )


def _go_on(lab: Lab) -> int:
    """Resume a run that has ended badly; whether it had."""
    if lab.running["run"].poll() is None:
        return 0
    _start(lab, resume=True)
    return 1


def _rounds(lab: Lab) -> int:
    file = lab.folder / RUN_DISK / "chaos-1" / "rounds.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def _is_balanced(lab: Lab) -> bool:
    """Whether the proxy has lost no byte: what came in went out, waits, or was dropped with RST."""
    ways = [node[way] for node in lab.links().values() for way in ("up", "down")]
    return all(
        way["in_bytes"] == way["out_bytes"] + way["queued_bytes"] + way["dropped_bytes"]
        for way in ways
    )


def _rows(
    quick: bool,
    counts: Mapping[str, int],
    resumes: int,
    end_round: int,
    records: list[dict[str, Any]],
    result: dict[str, Any],
    model: bytes,
    balanced: bool,
) -> Iterator[Row]:
    accuracy = records[-1]["test_metric"]
    expected = accuracy_without_faults(EXPERIMENT.format(rounds=end_round))
    bad_rounds = abs(len(records) - end_round) + sum(
        record["round"] != number for number, record in enumerate(records, 1)
    )
    twice = sum(
        len(record["reports"]) - len({report["node_id"] for report in record["reports"]})
        for record in records
    )
    present = [sum(report["accepted"] for report in record["reports"]) for record in records]
    same = replayed(EXPERIMENT.format(rounds=end_round), records) == model

    def bar(name: str, bound: float, measured: float, *, at_least: bool = False) -> Row:
        return Row(section=SECTION, name=name, bound=bound, measured=measured, at_least=at_least)

    total = sum(counts.values())
    yield bar("faults", QUICK_FAULTS // 2 if quick else 100, total, at_least=True)
    yield Row(
        section=SECTION,
        name="times that 'fedsys run --resume' had to be said; times that it was killed",
        bound=counts.get(RUN_KILLED, 0),
        measured=resumes,
        note=f"{len(records)} rounds; updates used {sum(present)} of {DEVICES * len(records)}",
    )
    if not quick:
        yield bar("accuracy", TARGET, accuracy, at_least=True)
        yield Row(
            section=SECTION,
            name="accuracy without faults less accuracy with them",
            bound=MAX_ACCURACY_GAP,
            measured=expected - accuracy,
            note=f"{expected:.3f} without",
        )
    yield bar("rounds missing, out of order or counted twice", 0, bad_rounds)
    yield bar("updates of a device counted twice in a round", 0, twice)
    yield bar(
        "result.json tells another number of rounds", 0, abs(result["total"]["rounds"] - end_round)
    )
    yield bar("model is that of its records, computed anew, to the bit", 1, same, at_least=True)
    yield bar("proxy: bytes in = out + waiting + dropped", 1, balanced, at_least=True)
