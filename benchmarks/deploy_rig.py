"""Real commands of fedsys for the benchmark of deployments, and the rows that it prints."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.deploy_task import hidden_for

ROOT = Path(__file__).parents[1]
TASK = "benchmarks.deploy_task:Wide"

EXPERIMENT = """\
[run]
name = "{name}"
[run.budget]
rounds = {rounds}
[task]
name = "{task}"
options = {{ hidden = {hidden} }}
[partition]
clients = {clients}
kind = "iid"
[training]
batch_size = 16
lr = 0.1
[strategy]
name = "fixed"
options = {{ local_steps = 1 }}
[codec]
uplink = "{uplink}"
downlink = "{downlink}"
[network]
link = "{link}"
options = {options}
[devices]
profile = "instant"
options = {{ overhead_ms = {overhead_ms} }}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One bar: ``measured`` must not exceed ``bound``, or fall short of it where ``at_least``.

    ``bound`` is None for a figure that is only told, ``measured`` for one that could not be had.
    """

    section: str
    name: str
    bound: float | None
    measured: float | None
    at_least: bool = False
    unit: str = ""
    note: str = ""

    @property
    def ok(self) -> bool:
        """Whether the bar is reached."""
        if self.bound is None:
            return True
        if self.measured is None:
            return False
        return self.measured >= self.bound if self.at_least else self.measured <= self.bound

    def line(self) -> str:
        """For the terminal."""
        sign = "" if self.bound is None else ">=" if self.at_least else "<="
        bound = "" if self.bound is None else f"{self.bound:g}"
        measured = "failed" if self.measured is None else f"{self.measured:.4g}"
        state = "" if self.bound is None else "ok" if self.ok else "MISSED"
        note = f"  ({self.note})" if self.note else ""
        return f"  {self.name:<62} {measured:>9} {self.unit:<3} {sign:>2} {bound:<6} {state}{note}"

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return asdict(self) | {"ok": self.ok}


def experiment(
    *,
    name: str,
    link: str,
    options: Mapping[str, Any],
    model_bytes: int,
    clients: int,
    rounds: int,
    overhead_ms: float = 0.0,
    uplink: str = "none",
    downlink: str = "none",
) -> str:
    """An experiment with one local step a round, as TOML."""
    return EXPERIMENT.format(
        name=name,
        rounds=rounds,
        task=TASK,
        hidden=hidden_for(model_bytes),
        clients=clients,
        uplink=uplink,
        downlink=downlink,
        link=link,
        options=_inline(options),
        overhead_ms=float(overhead_ms),
    )


def _inline(options: Mapping[str, Any]) -> str:
    """As a table of TOML in one line; JSON has the same text for numbers and strings."""
    return f"{{ {', '.join(f'{key} = {json.dumps(value)}' for key, value in options.items())} }}"


@dataclass(frozen=True, slots=True)
class Done:
    """What a command left behind."""

    figures: dict[str, Any]
    """Of ``--json``."""
    rounds: list[dict[str, Any]]
    """The records of all rounds."""

    @property
    def lengths_s(self) -> list[float]:
        """Seconds of each round."""
        return [record["end_s"] - record["start_s"] for record in self.rounds]


def fedsys(command: str, text: str, folder: Path, *more: str, timeout_s: float) -> Done:
    """``fedsys COMMAND`` on an experiment, in ``folder``; RuntimeError where it fails."""
    folder.mkdir(parents=True, exist_ok=True)
    file, figures = folder / f"{command}.toml", folder / f"{command}.json"
    file.write_text(text, encoding="utf-8")
    arguments = [command, str(file), "--out", str(folder / command), "--json", str(figures)]
    run([sys.executable, "-m", "fedsys.cli.main", *arguments, "--quiet", *more], timeout_s)
    lines = next((folder / command).glob("*/rounds.jsonl")).read_text().splitlines()
    return Done(json.loads(figures.read_text()), [json.loads(line) for line in lines])


def run(command: list[str], timeout_s: float) -> str:
    """A command to its end, and all that it started with it; what it printed."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        printed, _ = process.communicate()
        raise RuntimeError(f"not done after {timeout_s:.0f} s:\n{printed[-2000:]}") from None
    except BaseException:
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate()
        raise
    if process.returncode:
        raise RuntimeError(f"exit code {process.returncode}:\n{printed[-2000:]}")
    return printed
