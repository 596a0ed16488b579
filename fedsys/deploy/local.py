"""A server and its devices as threads of one process; what they start ends with it."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from fedsys.clock import WallClock
from fedsys.deploy.client import Client, Place
from fedsys.deploy.enrolment import Enrolment
from fedsys.deploy.home import ServerHome
from fedsys.deploy.server import Server
from fedsys.errors import DeployError

READY_S = 90.0


class LocalFleet:
    """``with LocalFleet(home, enrolments, states) as fleet``: all of them run while the block does.

    Raises DeployError on entry where the server does not start.
    """

    def __init__(
        self,
        home: ServerHome,
        enrolments: Mapping[str, Enrolment],
        states: Path,
        *,
        threads: int = 1,
        say: Callable[[str], None],
    ) -> None:
        self._home = home
        self._enrolments = enrolments
        self._states = states
        self._threads_per_node = threads
        self._say = say
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._threads: list[threading.Thread] = []
        self._faults: list[str] = []

    def __enter__(self) -> Self:
        server = Server(self._home, host="127.0.0.1", say=self._say)
        self._start("server", lambda: server.serve(self._stop.is_set, self._ready.set))
        clock = WallClock()
        until_s = clock.now_s() + READY_S
        while not self._ready.is_set():
            if self._faults or clock.now_s() > until_s:
                self.__exit__(None, None, None)
                raise DeployError(self.fault or "the server does not start")
            clock.sleep_s(0.05)
        for name, enrolment in self._enrolments.items():
            place = Place(state=self._states / name, threads=self._threads_per_node)
            client = Client(enrolment, place, say=self._named(name))
            self._start(name, lambda client=client: client.serve(self._stop.is_set))  # type: ignore[misc]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    @property
    def fault(self) -> str:
        """What the first part to give up said; empty while none has."""
        return self._faults[0] if self._faults else ""

    def _start(self, name: str, serve: Callable[[], None]) -> None:
        def run() -> None:
            try:
                serve()
            except Exception as error:
                self._faults.append(f"{name}: {error}")
                self._say(self._faults[-1])

        self._threads.append(threading.Thread(target=run, name=name, daemon=True))
        self._threads[-1].start()

    def _named(self, name: str) -> Callable[[str], None]:
        return lambda line: self._say(f"{name}: {line}")
