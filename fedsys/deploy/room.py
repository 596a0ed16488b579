"""How much of what devices send is in a server's memory at once."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator


class Room:
    """So many bytes, given to those who wait in the order in which they came."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._free_bytes = size_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @contextlib.asynccontextmanager
    async def taken(self, size_bytes: int) -> AsyncIterator[None]:
        """Wait for as much, or for all of it where it is more, and have it for the block."""
        wanted_bytes = min(size_bytes, self._size_bytes)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((wanted_bytes, turn))
        self._give()
        try:
            await turn
            yield
        finally:
            if turn.done() and not turn.cancelled():
                self._free_bytes += wanted_bytes
            else:
                with contextlib.suppress(ValueError):
                    self._waiting.remove((wanted_bytes, turn))
            self._give()

    def _give(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._free_bytes:
            wanted_bytes, turn = self._waiting.popleft()
            if not turn.cancelled():
                self._free_bytes -= wanted_bytes
                turn.set_result(None)
