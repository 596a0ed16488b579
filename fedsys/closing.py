"""When a round ends that does not wait for everyone."""

import math
from dataclasses import dataclass, field

from fedsys.types import Quorum


@dataclass(slots=True)
class Closing:
    """Follows the replies of one round; ``until_s`` is when it ends at the latest."""

    quorum: Quorum | None
    """None: the round waits for everyone it asked."""
    begin_s: float
    asked: int
    """Clients that the round asked."""
    late: int = 0
    """Clients still at work for earlier rounds."""
    until_s: float = math.inf
    _own: int = field(default=0, init=False)
    _all: int = field(default=0, init=False)
    _has_quorum: bool = field(default=False, init=False)

    @property
    def is_waiting(self) -> bool:
        """Whether a reply that is to come is worth waiting for."""
        return self._own < self.asked or self._all < self._least

    def answered(self, now_s: float, *, own: int = 0, late: int = 0) -> None:
        """Take note of so many more replies at ``now_s``: to this round, and to earlier ones."""
        self._own += own
        self._all += own + late
        self._close(now_s)

    def failed(self, now_s: float, *, own: int = 0, late: int = 0) -> None:
        """Take note of so many clients that will bring nothing: they are not counted any more."""
        self.asked -= own
        self.late -= late
        self._close(now_s)

    def _close(self, now_s: float) -> None:
        if self.quorum is None or self._has_quorum or self._all < self._least:
            return
        if self._own and self._own >= self.quorum.share * self.asked:
            self._has_quorum = True
            lasted_s = now_s - self.begin_s
            self.until_s = min(self.until_s, self.begin_s + max(1.0, self.quorum.factor) * lasted_s)

    @property
    def _least(self) -> int:
        return 0 if self.quorum is None else min(self.quorum.least, self.asked + self.late)
