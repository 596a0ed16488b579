"""Waiting until something happens elsewhere in this process, in place of looking all the time."""

import asyncio
import contextlib
import threading


class Bell:
    """Rung by any thread; threads and coroutines wait for it.

    Whoever waits says how often it had been rung when they looked last, so that none is missed.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._rung = 0
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    @property
    def rung(self) -> int:
        """How often, so far."""
        return self._rung

    def ring(self) -> None:
        """Wake all who wait."""
        with self._condition:
            self._rung += 1
            self._condition.notify_all()
            waiting, self._waiting = self._waiting, set()
        for loop, event in waiting:
            with contextlib.suppress(RuntimeError):  # that loop has ended
                loop.call_soon_threadsafe(event.set)

    def wait(self, seen: int, timeout_s: float) -> None:
        """Sleep in a thread until it was rung more often than ``seen``, or time is up."""
        with self._condition:
            self._condition.wait_for(lambda: self._rung != seen, timeout_s)

    async def heard(self, seen: int, timeout_s: float) -> None:
        """The same in a coroutine."""
        event = asyncio.Event()
        me = (asyncio.get_running_loop(), event)
        with self._condition:
            if self._rung != seen:
                return
            self._waiting.add(me)
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            pass
        finally:
            with self._condition:
                self._waiting.discard(me)
