"""Dead letters of real groups, which can be read a moment after they are stored."""

from __future__ import annotations

import asyncio

from rmq_async import Admin, MessageExt


async def readable_dead_letters(admin: Admin, group: str, count: int) -> tuple[MessageExt, ...]:
    """Returns the dead letters of ``group`` when ``count`` of them can be read. Raises TimeoutError after 10 s.

    A broker answers before a name server has the route of a new dead-letter topic (4.9 registers it by a one-way request), and
    before it has entered the message into the queue.
    """
    async with asyncio.timeout(10.0):
        while len(found := await admin.dead_letters(group)) < count:
            await asyncio.sleep(0.01)
    return found
