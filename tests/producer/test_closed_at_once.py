"""Brokers that accept a connection and close it at once, as a load balancer without a backend does, and sends that go on."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

import pytest

from rmq_async import Producer, RocketMQError
from rmq_async.testing import ScriptedPeer, routes_to

from ..support.loops import unblocked
from .support import message


@contextmanager
def closing_at_once() -> Iterator[str]:
    """The address of a listener that closes each connection in the turn of this loop that accepts it: in order, or by a reset."""
    loop, accepted = asyncio.get_running_loop(), 0

    def accept() -> None:
        nonlocal accepted
        connection, _ = listener.accept()
        accepted += 1
        if accepted % 2:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        loop.add_reader(listener, accept)
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            loop.remove_reader(listener)


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_loop_turns_beside_closing_broker() -> None:
    """Sends that begin in each turn of the loop meet every step of a connect that ends with the peer's close."""
    ended = 0
    with closing_at_once() as broker:
        async with (
            ScriptedPeer(aside=routes_to(broker)) as names,
            Producer("group", namesrv=names.address, timeout=0.1, stop_timeout=0) as producer,
        ):

            async def send() -> None:
                nonlocal ended
                try:
                    await producer.send(message())
                except RocketMQError:
                    ended += 1

            with unblocked():
                end, sends = monotonic() + 0.5, []
                while monotonic() < end:
                    if len(sends) - ended < 1000:
                        sends.append(asyncio.ensure_future(send()))
                    await asyncio.sleep(0)
                await asyncio.gather(*sends)
            assert ended == len(sends)
