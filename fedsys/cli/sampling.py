"""Where this process is, looked at again and again: seconds of each stage of a round.

A timer interrupts the main thread, and the innermost of our files that it is in says what it is
doing, because folders are divided by what they do. Nothing that is measured has to know of it.
"""

import signal
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import fedsys

PERIOD_S = 0.001
WAITING = "waiting"
STAGES = {
    "fedsys/engine/crew.py:events": WAITING,
    "fedsys/engine/": "messages",
    "fedsys/_flwr_private.py": "messages",
    "fedsys/codecs/": "codec",
    "fedsys/wire/": "codec",
    "fedsys/middleware/": "codec",
    "fedsys/partial.py": "codec",
    "netem/": "links",
    "strategies/": "plan",
    "fedsys/nodes.py": "plan",
    "fedsys/telemetry/": "records",
    "fedsys/cli/": "records",
}
"""Beginnings of a file's path and function to the stage; the first that fits counts."""
_ROOT = f"{Path(fedsys.__file__).parents[1]}/"
_OWN = ("fedsys/", "netem/", "strategies/", "clients/")


@dataclass(slots=True)
class StageSampler:
    """Counts stages from ``start`` to ``stop``, in the main thread."""

    counts: Counter[str] = field(default_factory=Counter)
    _before: Any = None

    def start(self) -> None:
        """Begin; the alarm clock of this process is taken until ``stop``."""
        self._before = signal.signal(signal.SIGALRM, self._look)
        signal.setitimer(signal.ITIMER_REAL, PERIOD_S, PERIOD_S)

    def stop(self) -> None:
        """End, and give the alarm clock back."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        if self._before is not None:
            signal.signal(signal.SIGALRM, self._before)
            self._before = None

    def fractions(self) -> dict[str, float]:
        """Share of each stage in the time between; empty where that was too short to see any."""
        total = self.counts.total()
        return {stage: seen / total for stage, seen in self.counts.items()} if total else {}

    def _look(self, number: int, frame: FrameType | None) -> None:
        self.counts[stage_of(frame)] += 1


def stage_of(frame: FrameType | None) -> str:
    """The stage that the innermost of our files in the stack belongs to."""
    while frame is not None:
        path = frame.f_code.co_filename
        ours = path.startswith(_ROOT) and path.startswith(_OWN, len(_ROOT))
        if ours and path != __file__:
            place = f"{path[len(_ROOT) :]}:{frame.f_code.co_name}"
            return next((stage for key, stage in STAGES.items() if place.startswith(key)), "other")
        frame = frame.f_back
    return "other"
