"""A real loop that stood still while the kernel went on: what it finds then is not late.

The tests are about what a loop looks at first, its sockets or its timers, so none runs in virtual time, and each blocks the loop
for longer than the client takes a timer for punctual.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from time import monotonic

import pytest
import uvloop

from rmq_async._asyncio import WaitTable
from rmq_async.errors import RequestTimeoutError
from rmq_async.transport import Connection
from rmq_async.transport.connection import unread
from rmq_protocol.command import RemotingCommand

from ..support.fakes import Link, Peer, ThreadedPeer, echo, silence, stored
from .support import Recorder, Sender, connect, ping, pool_of, spin

LONGEST = 60.0


def block(seconds: float, condition: Callable[[], bool] = lambda: True) -> None:
    """Blocks the running loop for so long, and until the condition holds."""
    began = monotonic()
    while monotonic() < began + seconds or not condition():
        assert monotonic() < began + LONGEST, "what the test waits for did not happen"
        time.sleep(0.005)


class Held:
    """The peer in another thread that keeps requests until it is to answer them, all at once."""

    def __init__(self) -> None:
        self.requests: list[tuple[Link, RemotingCommand]] = []
        self.threaded = ThreadedPeer(lambda link, request: self.requests.append((link, request)))

    def answer(self) -> None:
        self.threaded.loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
        for link, request in self.requests:
            echo(link, request)

    async def asked(self, connection: Connection, count: int, body: bytes) -> list[asyncio.Future[RemotingCommand]]:
        """Requests that it has, and whose time is not over; a busy machine gets more time."""
        for timeout in (0.2, 2.0, 20.0):
            self.requests.clear()
            tasks = [asyncio.ensure_future(connection.request(ping(body), timeout)) for _ in range(count)]
            began = monotonic()
            while len(self.requests) < count and monotonic() < began + timeout / 2:
                await asyncio.sleep(0.001)
            if len(self.requests) == count:
                self.over = began + timeout
                return tasks
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        raise AssertionError("the peer did not get the requests within 10 s")


async def test_a_deadline_is_not_before_its_time() -> None:
    async with Peer(silence) as peer, connect(peer) as connection:
        began = monotonic()
        with pytest.raises(RequestTimeoutError):
            await connection.request(ping(), 0.04)
        assert monotonic() - began > 0.038  # timers of uvloop count whole milliseconds


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graces after a block last a minute in place of 20 or 100 ms: the test, or its peer, may get little of the machine."""
    monkeypatch.setattr("rmq_async._asyncio.GRACE", LONGEST)
    monkeypatch.setattr("rmq_async.transport.request_table.GRACE_AFTER_WRITE", LONGEST)


@pytest.mark.parametrize(("count", "size", "seconds"), [(200, 10, 0.05), (60, 5000, 0.05), (60, 5000, 1.2)])
async def test_answers_that_wait_in_the_socket_are_not_late(count: int, size: int, seconds: float) -> None:
    """Also more of them than one read takes, and after a block that is longer than all graces."""
    held, recorder = Held(), Recorder()
    with held.threaded as peer:
        async with connect(peer, recorder=recorder) as connection:
            recorder.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            tasks = await held.asked(connection, count, b"x" * size)
            held.answer()
            block(held.over + seconds - monotonic(), lambda: unread(recorder) >= count * size)
            assert [answer.body for answer in await asyncio.gather(*tasks)] == [b"x" * size] * count


@pytest.mark.usefixtures("patience", "wide_window")
async def test_frames_that_a_block_kept_from_leaving_are_not_late() -> None:
    """They leave afterwards, and their answers have a time of their own."""
    recorder = Recorder()
    with ThreadedPeer(stored) as peer:
        async with connect(peer, recorder=recorder) as connection:
            sender = Sender(connection, timeout=0.2)
            answers = [sender.submit(b"%d" % number) for number in range(75)]  # 1, 64 and 10, which wait for more
            loop = asyncio.get_running_loop()
            leave_later = isinstance(loop, uvloop.Loop)  # all of them: it writes at the end of an iteration
            loop.call_soon(block, 0.3, lambda: leave_later or (peer.received >= 65 and unread(recorder) > 65 * 60))
            replies = await asyncio.gather(*answers)
            assert [reply.extFields and reply.extFields.msgId for reply in replies] == [str(number) for number in range(75)]


@pytest.mark.usefixtures("patience")
async def test_a_connect_that_a_block_made_late_is_used() -> None:
    """The kernel has made the connection meanwhile."""
    with ThreadedPeer() as peer:
        async with pool_of() as pool:
            task = asyncio.ensure_future(pool.connect(peer.address, 0.05))
            await spin(2)
            block(0.2, lambda: bool(peer.links))
            assert (await task).is_open


async def test_a_blocked_loop_does_not_make_a_living_peer_dead() -> None:
    recorder = Recorder()
    with ThreadedPeer() as peer:
        async with connect(peer, recorder=recorder, dead_after=0.2) as connection:
            for seconds in (0.21, 0.28):
                task = asyncio.ensure_future(connection.request(ping(b"m"), LONGEST))
                await spin(2)
                block(seconds, lambda: unread(recorder) > 0 or not connection.requests.in_flight)
                assert (await task).body == b"m"


@pytest.mark.usefixtures("patience")
async def test_a_result_after_a_block_comes_before_the_deadline_that_has_passed() -> None:
    table, loop = WaitTable[int](), asyncio.get_running_loop()
    reader, writer = socket.socketpair()
    with reader, writer:
        reader.setblocking(False)
        loop.add_reader(reader, table.resolve, 1)
        wait = asyncio.ensure_future(table.wait(monotonic() + 0.02))
        await spin()
        writer.send(b"x")
        block(0.15)
        assert await wait == 1
        loop.remove_reader(reader)
