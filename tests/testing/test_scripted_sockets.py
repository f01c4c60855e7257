"""ScriptedPeer on sockets of the system, which alone have resets before the first byte."""

from __future__ import annotations

import pytest

from rmq_async.testing import Close, Reset, ScriptedPeer, Write

from .streams import Client

pytestmark = pytest.mark.usefixtures("nothing_left")


async def test_a_connection_may_be_greeted_or_closed_before_it_says_anything() -> None:
    async with ScriptedPeer(Close(), Write(b"hello"), Reset()) as peer:
        ends = []
        for _ in range(2):
            async with Client(peer.address) as client:
                ends.append(await client.rest())
        assert ends[0] == (b"", "eof")
        assert ends[1][1] == "reset"
