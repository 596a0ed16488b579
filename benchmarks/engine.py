"""Does a simulation run at the speed of the machine? ``python -m benchmarks.engine [--quick]``.

Prints one row a bar. Everything is measured in processes of its own, two workers of one thread
each, in turns: the limit (forward, backward and update of one resident batch, as most write it),
training alone, the engine, plain loops, and once each peer that is installed. Speeds are ratios of
medians over the turns. Exit status 1 when a bar is missed.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bars import Bar, finish, parser_for
from benchmarks.engine_page import write_page
from benchmarks.provenance import provenance

ROOT = Path(__file__).parents[1]
PEERS = ROOT.parent / "shared" / "bench" / "peers"
CODEC = "codec.uplink='topk(0.05)|int8'"
AS_WRITTEN = "training.fast_conv='off'"
MB = 1e6
QUICK_ROUNDS = 40
MILLION_DATA_MB = 2_000_000 * (64 + 8) / MB
"""Pixels and labels of two million digits."""

Found = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Peer:
    """A script of ``../shared/bench/peers``."""

    script: str
    arguments: tuple[str, ...]
    needs: tuple[str, ...] = ()
    """Modules that it imports beside torch and numpy."""


_RAY = "Flower with Ray"
PEER_RUNS = {
    "plain loop, 2 processes": Peer("plain.py", ("--procs", "2", "--threads", "1")),
    "plain loop, own SGD, 2 processes": Peer(
        "plain.py", ("--procs", "2", "--threads", "1", "--opt", "manual")
    ),
    "stacked products, 2 processes": Peer(
        "stacked.py", ("--kind", "bmm", "--procs", "2", "--threads", "1")
    ),
    _RAY: Peer("flower_sim.py", (), ("ray",)),
    "pfl": Peer("pfl_sim.py", (), ("pfl",)),
    "BlazeFL": Peer("blaze_sim.py", (), ("blazefl",)),
}
_ONLY_W2 = {"stacked products, 2 processes"}
_RUN_S, _PEER_S = 300.0, 150.0
"""How long a process may take."""


class Bench:
    """Runs programs, one after the other, and keeps what they measured."""

    def __init__(self, quick: bool, turns: int) -> None:
        self.quick = quick
        self.turns = turns
        self.round_s: dict[tuple[str, str], list[float]] = defaultdict(list)
        """(work, what) to the median round of each turn."""
        self.starts_s: list[float] = []
        self.digests: dict[tuple[str, str], str] = {}
        self.skipped: dict[str, str] = {}

    def engine(
        self, work: str, rounds: int, *settings: str, workers: int = 2, pss: bool = False
    ) -> Found:
        """One simulation; its figures."""
        options = [f"--workers={workers}", f"--rounds={rounds}", *(["--pss"] if pss else [])]
        for setting in settings:
            options += ["--set", setting]
        return _run([sys.executable, "-m", "benchmarks.engine_run", work, *options])

    def turn(self, work: str, rounds: int, seconds: float, variants: dict[str, list[str]]) -> None:
        """Limit, training alone, and each variant of the engine once."""
        kinds = ("eager",) if self.quick and work == "W1" else ("eager", "training")
        command = [sys.executable, "-m", "benchmarks.engine_limit", work, *kinds]
        for kind, round_s in _run([*command, f"--seconds={seconds}"]).items():
            self.round_s[work, kind].append(round_s)
        for name, settings in variants.items():
            found = self.engine(work, rounds, *settings)
            self.round_s[work, name].append(found["round_s"])
            self.starts_s.append(found["start_s"])
            self.digests[work, name] = found["digest"]

    def peers(self, work: str, rounds: int) -> None:
        """Each peer, or the reason why not; the plain loops in every turn, others in the first."""
        for name, peer in PEER_RUNS.items():
            if peer.needs and (work, name) in self.round_s:
                continue
            why = "only for W2" if work != "W2" and name in _ONLY_W2 else _why_not(peer)
            if why:
                self.skipped[name if why != "only for W2" else f"{name}, {work}"] = why
                continue
            command = [sys.executable, peer.script, work.lower(), *peer.arguments]
            done = _finished(command, PEERS, _PEER_S, ROUNDS=str(rounds), OMP_NUM_THREADS="1")
            line = next((x for x in done.stdout.splitlines() if x.startswith("RESULT ")), None)
            if line is None:
                self.skipped[f"{name}, {work}"] = (done.stderr.strip().splitlines() or ["?"])[-1]
                continue
            result = json.loads(line.removeprefix("RESULT "))
            self.round_s[work, name].append(result["steady_s"] / result["rounds"])

    def median_s(self, work: str, what: str) -> float:
        """Over the turns."""
        return statistics.median(self.round_s[work, what])


def speed_rows(bench: Bench) -> Iterator[Bar]:
    """W1 and W2 against the limit and against training alone."""
    seconds = {"W1": 1.0, "W2": 1.0} if bench.quick else {"W1": 12.0, "W2": 5.0}
    rounds = {"W1": 2, "W2": QUICK_ROUNDS} if bench.quick else {"W1": 8, "W2": 100}
    w1 = {"engine": []} if bench.quick else {"engine": [], "as written": [AS_WRITTEN]}
    w1 |= {} if bench.quick else {"codec": [CODEC]}
    for _ in range(bench.turns):
        bench.turn("W2", rounds["W2"], seconds["W2"], {"engine": []})
        bench.turn("W1", rounds["W1"], seconds["W1"], w1)
        if not bench.quick:
            bench.peers("W2", 20)
            bench.peers("W1", 2)
    for work, what, bound in (
        ("W1", "as written", 0.95),
        ("W1", "engine", 1.4),
        ("W2", "engine", 1.5),
    ):
        if (work, what) in bench.round_s:
            speed = bench.median_s(work, "eager") / bench.median_s(work, what)
            yield Bar(f"{work}, {what}: speed over the eager limit", bound, speed, at_least=True)
    if ("W1", "codec") in bench.round_s:
        ratio = bench.median_s("W1", "codec") / bench.median_s("W1", "training")
        yield Bar("W1, topk(0.05)|int8 and error feedback: cost around training", 0.05, ratio - 1)
    for work, bound in (("W1", 1.3), ("W2", 3.0)):
        peers = [name for name, peer in PEER_RUNS.items() if peer.needs]
        times = [bench.median_s(work, name) for name in peers if (work, name) in bench.round_s]
        if times:
            speed = min(times) / bench.median_s(work, "engine")
            yield Bar(f"{work}: speed over the best peer", bound, speed, at_least=True)
    if ("W2", _RAY) in bench.round_s:
        speed = bench.median_s("W2", _RAY) / bench.median_s("W2", "engine")
        yield Bar(f"W2: speed over {_RAY}", 50, speed, at_least=True)
    extra_s = bench.median_s("W2", "engine") - bench.median_s("W2", "training")
    yield Bar("W2: cost around training, ms a client", 0.3, 1e3 * extra_s / 50)
    yield Bar("start-up, s", 3.0, statistics.median(bench.starts_s))


def other_rows(bench: Bench) -> Iterator[Bar]:
    """Equality, virtual time and memory."""
    if bench.quick:
        what = "1 and 2 workers"
        digests = {
            bench.digests["W2", "engine"],
            bench.engine("W2", QUICK_ROUNDS, workers=1)["digest"],
        }
    else:
        what = "1, 2 and 4 workers, and unbatched"
        runs = [bench.engine("W2", 3, workers=workers) for workers in (1, 2, 4)]
        runs.append(bench.engine("W2", 3, "engine.batch=false"))
        digests = {run["digest"] for run in runs}
    yield Bar(f"W2: different results of {what}", 1, len(digests))
    found = bench.engine("W3", 4 if bench.quick else 12)
    rate = 1000 / found["round_s"]
    yield Bar("W3, 10,000 clients on LTE: client rounds a second", 2000, rate, at_least=True)
    if bench.quick:
        return
    memory = bench.engine("W1", 3, pss=True)["pss_mb"]
    yield Bar("W1: memory of all processes, MB", 700, max(memory))
    few = bench.engine("million", 3, "partition.clients=10000", pss=True)["pss_mb"]
    many = bench.engine("million", 3, pss=True)["pss_mb"]
    above = max(many) - MILLION_DATA_MB
    yield Bar("1,000,000 clients: memory above the data, MB", 1000, above)
    yield Bar("1,000,000 clients: memory over that of 10,000", 1.25, max(many) / max(few))
    samples = bench.engine("W2", 1000, pss=True)["pss_mb"]
    # A quarter of the samples: the last few are of a run that saves its model and ends.
    quarter = len(samples) // 4
    early, late = samples[quarter], statistics.median(samples[-quarter:])
    yield Bar("W2: memory after 1,000 rounds over that after 250", 1.05, late / early)


def _why_not(peer: Peer) -> str:
    if not (PEERS / peer.script).is_file():
        return "its script is not here"
    for module in peer.needs:
        found = subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True)
        if found.returncode:
            return f"{module} is not installed"
    return ""


def _run(command: list[str]) -> Found:
    done = _finished(command, ROOT, _RUN_S)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    found: Found = json.loads(done.stdout.splitlines()[-1])
    return found


def _finished(
    command: list[str], folder: Path, limit_s: float, **environment: str
) -> subprocess.CompletedProcess[str]:
    """The command when it has ended; it and all that it started are killed after ``limit_s``."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command,
        cwd=folder,
        env=os.environ | environment,
        stdout=pipe,
        stderr=pipe,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()[0], f"not done after {limit_s:.0f} s"
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def main() -> int:
    """Run everything, print the table, and say whether all bars are reached."""
    parser = parser_for(__doc__, "fewer works, within a minute")
    parser.add_argument("--turns", type=int, default=3, help="of speeds, unless --quick")
    parser.add_argument("--page", type=Path, help="write them as Markdown here")
    options = parser.parse_args()
    bench = Bench(options.quick, 1 if options.quick else options.turns)
    rows = []
    for row in (row for rows_of in (speed_rows, other_rows) for row in rows_of(bench)):
        rows.append(row)
        print(row.line(), flush=True)
    for name, why in bench.skipped.items():
        print(f"     {name}: skipped, {why}")
    medians = {f"{work}, {what}": bench.median_s(work, what) for work, what in bench.round_s}
    for name, round_s in medians.items():
        print(f"     {name:40s} {1e3 * round_s:10.2f} ms a round")
    found = {
        "source": provenance(),
        "load": os.getloadavg()[0],
        "round_s": medians,
        "skipped": bench.skipped,
    }
    if options.page:
        write_page(options.page, found | {"rows": [row.as_json() for row in rows]})
    return finish(rows, found, options.json)


if __name__ == "__main__":
    sys.exit(main())
