"""What a run puts on the disk while it goes on, and how often.

Where clients keep something between rounds, a checkpoint is made after every round, before any of
them goes on: what they keep must never be more than a round ahead of it. Elsewhere a run that is
killed loses some seconds of work and nothing else, and a disk that takes milliseconds for each
flush does not hold up rounds that take no longer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedsys.clock import WallClock
from fedsys.telemetry.checkpoint import Tensors
from fedsys.telemetry.runfolder import RunFolder
from fedsys.types import RoundRecord

INTERVAL_S = 2.0
"""Wall seconds between checkpoints where no client keeps anything."""

Snapshot = tuple[Tensors, Mapping[str, Any]]
"""Tensors and state of a run between two rounds."""


@dataclass(slots=True)
class Saving:
    """The records and checkpoints of one run."""

    folder: RunFolder
    snapshot: Callable[[], Snapshot]
    every_round: bool
    overlap: bool
    """Whether rounds may begin before the one before them is written."""
    stop: Callable[[], bool]
    """Whether the run is to stop after this round."""
    is_stopping: bool = False
    _taken: Snapshot | None = None
    _clock: WallClock = field(default_factory=WallClock)
    _saved_s: float | None = None

    def may_go_on(self, is_last: bool) -> bool:
        """Take what a checkpoint of the round needs; whether the next may begin before it is."""
        self.is_stopping = self.stop()
        late = self._saved_s is None or self._clock.now_s() - self._saved_s >= INTERVAL_S
        is_due = late or self.every_round or self.is_stopping or is_last
        self._taken = self.snapshot() if is_due else None
        return self.overlap and not self.every_round and not self.is_stopping

    def after(self, record: RoundRecord) -> None:
        """Write the round's record, and the checkpoint if one was taken."""
        self.folder.append(record)
        if self._taken is not None:
            self.folder.save_checkpoint(record.round, *self._taken)
            self._saved_s, self._taken = self._clock.now_s(), None
