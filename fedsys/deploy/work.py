"""Which devices have work, told to each question that a server keeps, by looks that all share."""

import asyncio
from collections.abc import Callable

from fedsys.deploy.bell import Bell

LOOK_S = 0.02
"""Between two looks, at least, however often there is news."""
CHECK_S = 1.0
"""Between two looks, at most, while anybody waits."""


class Work:
    """One look at the database for all devices, each time that there may be more for them."""

    def __init__(self, look: Callable[[], set[int]], news: Bell) -> None:
        """``look`` says for which devices work waits; ``news`` is rung when there may be some."""
        self._look = look
        self._news = news
        self._waiting: dict[int, set[asyncio.Event]] = {}
        self._watching: asyncio.Task[None] | None = None

    async def wait(self, node: int, timeout_s: float) -> bool:
        """Whether there is work for the device, as soon as there is, or when time is up."""
        event = asyncio.Event()
        self._waiting.setdefault(node, set()).add(event)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())
        else:
            self._news.ring()  # the last look was made without this device
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            return False
        finally:
            self._waiting[node].discard(event)
            if not self._waiting[node]:
                del self._waiting[node]
        return True

    async def _watch(self) -> None:
        while self._waiting:
            seen = self._news.rung
            for node in await asyncio.to_thread(self._look):
                for event in self._waiting.get(node, ()):
                    event.set()
            await asyncio.sleep(LOOK_S)
            await self._news.heard(seen, CHECK_S)
