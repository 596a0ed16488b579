"""Memory is given in the order of asking, and comes back however a block ends."""

import asyncio
import contextlib

from hypothesis import given
from hypothesis import strategies as st

from fedsys.deploy.room import Room


@given(st.lists(st.tuples(st.integers(0, 150), st.booleans()), max_size=20))
def test_never_more_than_there_is_and_all_of_it_back(asked):
    """Some of those who wait give up."""

    async def all_of_it():
        room, taken, most, order = Room(100), 0, 0, []

        async def use(number, size_bytes):
            nonlocal taken, most
            async with room.taken(size_bytes):
                order.append(number)
                taken += min(size_bytes, 100)
                most = max(most, taken)
                try:
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)
                finally:
                    taken -= min(size_bytes, 100)

        tasks = [asyncio.create_task(use(n, size)) for n, (size, _) in enumerate(asked)]
        await asyncio.sleep(0)
        for task, (_, gives_up) in zip(tasks, asked, strict=True):
            if gives_up:
                task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait_for(task, 5)
        async with asyncio.timeout(5), room.taken(100):
            return most, order

    most, order = asyncio.run(all_of_it())

    assert most <= 100
    assert order == sorted(order)
    assert {number for number, (_, gives_up) in enumerate(asked) if not gives_up} <= set(order)
