"""Frames that a blocked loop kept from leaving: they are sent and answered before any call fails because they are late."""

from __future__ import annotations

import asyncio
import time

import pytest

from rmq_async.transport import Connection
from rmq_protocol.command import RemotingCommand

from ..support.fakes import Link, ThreadedPeer, stored
from .support import Sender, connect

pytestmark = pytest.mark.wall_clock


def slowly_stored(link: Link, request: RemotingCommand) -> None:
    """The answer to a send, as a broker on a busy machine gives it."""
    asyncio.get_running_loop().call_later(0.04, stored, link, request)


async def blocked(connection: Connection, count: int) -> None:
    """``count`` sends of 0.2 s, and a loop blocked for 0.5 s before the last of their frames have left."""
    sender = Sender(connection, timeout=0.2)
    answers = [sender.submit(b"%d" % number) for number in range(count)]
    asyncio.get_running_loop().call_soon(time.sleep, 0.5)
    replies = await asyncio.gather(*answers)
    assert [reply.extFields and reply.extFields.msgId for reply in replies] == [str(number) for number in range(count)]


async def test_sends_that_were_gathered_when_the_loop_blocked_are_not_late() -> None:
    with ThreadedPeer(slowly_stored) as peer:
        async with connect(peer) as connection:
            await blocked(connection, 75)  # 1, 64 and 10, which wait for more
