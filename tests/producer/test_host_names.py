"""Name servers and brokers whose host name leads to a machine that is gone first, and to a living one next."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from rmq_async import Producer
from rmq_async.testing import ScriptedPeer, routes_to
from rmq_async.testing.scripted import HEARTBEATS, Answer, Expect
from rmq_protocol.constants import RequestCode

from ..support.virtual_time import BLACK_HOLE
from .support import message, timed

pytestmark = pytest.mark.virtual_time

DEAD = BLACK_HOLE.partition(":")[0]
STORED = {"msgId": "7F00000100002A9F0000000000000001", "queueId": "0", "queueOffset": "0"}


async def test_send_behind_dead_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    async def look_up(host: str, port: int | None, **_: Any) -> list[Any]:
        assert host in ("names.example", "broker.example")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in (DEAD, "127.0.0.1")]

    async with ScriptedPeer(Expect(RequestCode.SEND_MESSAGE_V2), Answer(ext_fields=STORED), aside=HEARTBEATS) as broker:
        broker_port = int(broker.address.rpartition(":")[2])
        async with ScriptedPeer(aside=routes_to(f"broker.example:{broker_port}")) as names:
            names_port = int(names.address.rpartition(":")[2])
            monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", look_up)
            with timed(most=1.0):
                async with Producer("group", namesrv=f"names.example:{names_port}") as producer:
                    assert (await producer.send(message())).attempts == 1
