"""What a pool needs of those who do its work: worker processes here, or actors in a cluster."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from fedsys.engine.serving import Service
from fedsys.engine.shared import Segment


class Hand(Protocol):
    """One that works; jobs are done in the order in which they were handed over."""

    jobs: list[int]
    """Keys of those that it has not answered."""
    depth: int
    """Jobs that it is given at once."""


class Workforce(Protocol):
    """All of them. A hand that is lost is replaced when the pool asks for one."""

    @property
    def workers(self) -> Sequence[Any]:
        """Those that work now, each a ``Hand``."""
        ...

    def wait_ready(self) -> None:
        """Return once all can be given jobs; WorkerDied if they cannot be."""
        ...

    def hire(self) -> None:
        """One more, if there is room."""
        ...

    def post(
        self, worker: Any, key: int, segment: Segment | None, filling: int, body: bytes
    ) -> None:
        """Hand a job over: what ``shared.dump`` made, with its large bytes in ``segment``."""
        ...

    def drop(self, segment: Segment) -> None:
        """The segment is used no more."""
        ...

    def events(self, timeout_s: float | None) -> tuple[Sequence[Any], Sequence[Any]]:
        """Answers as (worker, key, is_well, (elapsed_s, outcome)), and workers that were lost.

        Waits for the first one. The lost are no longer among ``workers``.
        """
        ...

    def close(self) -> None:
        """End; what is still being computed is lost."""
        ...


Hiring = Callable[[Service], Workforce]
"""Begins to start a workforce for a service."""
