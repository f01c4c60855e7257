"""A peer that closes a connection in the turn of the loop in which connecting to it ends."""

from __future__ import annotations

import asyncio

from rmq_async.transport import Connection

from ..support.fakes import Peer
from ..support.loops import unblocked
from .support import pool_of


async def test_connect_after_early_close() -> None:
    """The connect task has ended, its callbacks have not run, and the end of the stream has been read."""
    made: list[Connection] = []
    async with Peer(keep=False) as peer, pool_of(callbacks={"on_connected": made.append}) as pool:
        first = asyncio.ensure_future(pool.connect(peer.address, 60))
        while not made:
            await asyncio.sleep(0)
        made[0].eof_received()
        with unblocked():
            second = await pool.connect(peer.address, 60)
        assert second.is_open
        assert await first is second
