"""The proxy for code that is not asyncio: a thread with an event loop of its own."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from types import TracebackType
from typing import TypeVar

from netem.proxy.server import ShapingProxy

T = TypeVar("T")


class ProxyThread:
    """``with ProxyThread(ShapingProxy(...)) as thread`` listens while the block runs.

    Raises on entry what the proxy raises on entry.
    """

    def __init__(self, proxy: ShapingProxy) -> None:
        self.proxy = proxy
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="shaping-proxy", daemon=True)

    def __enter__(self) -> "ProxyThread":
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def call(self, function: Callable[[ShapingProxy], T | Awaitable[T]]) -> T:
        """What ``function(proxy)`` returns in the proxy's thread, awaited where it has to be."""

        async def inside() -> T:
            result = function(self.proxy)
            return await result if isawaitable(result) else result

        if self._loop is None:
            raise RuntimeError("the proxy is not running")
        return asyncio.run_coroutine_threadsafe(inside(), self._loop).result()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._loop = None
            self._ready.set()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        async with self.proxy:
            self._loop = asyncio.get_running_loop()
            self._ready.set()
            await self._stop.wait()
