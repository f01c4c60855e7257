"""A loop whose every turn is a block: deadlines are put off for a while, not for ever, and writes stay cheap meanwhile."""

from __future__ import annotations

import asyncio
import time
from time import monotonic

import pytest

from rmq_async.errors import ClientStateError, RequestTimeoutError
from rmq_async.transport import Connection, Pending, Threads
from rmq_async.transport.pending import GRACE_AFTER_WRITE
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode
from rmq_protocol.pull_codec import PullReply, PullTemplate

from ..support.calls import lines_counted
from ..support.fakes import Link, Peer, ThreadedPeer, frame, response, silence
from .support import BORN, Notes, connect, ping, spin, template, until


def flood(link: Link, request: RemotingCommand) -> None:
    """No answer, but more bytes than a busy loop reads."""
    stray = frame(response(request, opaque=-1, body=bytes(1 << 20)))
    loop = asyncio.get_running_loop()

    def more() -> None:
        if not link.transport.is_closing():
            while link.transport.get_write_buffer_size() < len(stray):
                link.transport.write(stray)
            loop.call_later(0.001, more)

    more()


async def turns_until_late(connection: Connection, seconds: float) -> int:
    """How many turns of the loop, each of which takes so long, an unanswered request of 0.05 s lasts."""
    task = asyncio.ensure_future(connection.request(ping(), 0.05))
    for turn in range(200):
        time.sleep(seconds)
        await asyncio.sleep(0)
        if task.done():
            with pytest.raises(RequestTimeoutError):
                await task
            return turn
    raise AssertionError("the deadline is put off for as long as the loop is busy")


@pytest.mark.virtual_time
async def test_deadlines_while_each_turn_blocks() -> None:
    """Nothing waits in the socket: the request ends some second late, and did never."""
    async with Peer(silence, keep=False) as peer, connect(peer) as connection:
        assert await turns_until_late(connection, 0.15) <= 20


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_deadlines_while_reads_fall_behind() -> None:
    """Bytes wait in the socket at each turn: uvloop reads more of them than this peer sends. A real loop is blocked, and real bytes
    wait in its socket."""
    with ThreadedPeer(flood, keep=False) as peer:
        async with connect(peer) as connection:
            assert await turns_until_late(connection, 0.035) <= 100


@pytest.mark.virtual_time
async def test_pulls_after_a_block_cost_the_same() -> None:
    """Each leaves by itself, and the first look after a block is still to come: no pass over the table for each."""
    number = 1000
    template = PullTemplate("g", "t", 0, "broker-a", "*", 15_000)
    async with Peer(silence, keep=False) as peer, connect(peer) as connection:
        futures: list[asyncio.Future[PullReply | RemotingCommand]] = []
        late = asyncio.ensure_future(connection.request(ping(), 0.05))
        await spin(3)

        def pulls() -> int:
            with lines_counted() as lines:
                for _ in range(number):
                    futures.append(asyncio.get_running_loop().create_future())
                    connection.requests.start_pull(template, 0, 32, futures[-1], monotonic() + 30)
            return lines.count

        usual = pulls()
        time.sleep(0.2)
        blocked = pulls()
        for future in futures:
            future.cancel()
        with pytest.raises(RequestTimeoutError):
            await late
    assert usual > number
    assert blocked < 1.1 * usual


@pytest.mark.virtual_time
async def test_a_send_held_over_a_block_gets_its_grace() -> None:
    """It leaves after the block, and is not the newest in the table: a heartbeat has passed it."""
    async with Peer(silence, keep=False) as peer, connect(peer) as connection:
        opaques, notes = [], Notes()
        for number in range(3):
            now = monotonic()
            held = Pending(notes, now + (0.1 if number else 30), now + 30, RequestCode.SEND_MESSAGE_V2)
            opaques.append(connection.requests.next_opaque())
            connection.requests.start_send(opaques[-1], template().parts(opaques[-1], BORN, "", b"m"), held, 1)
        beat = asyncio.ensure_future(connection.request(ping(), 30))
        await until(lambda: peer.received == 2)
        time.sleep(0.3)
        connection.requests.forget(opaques[1])
        connection.requests.forget(opaques[0])
        await until(lambda: peer.received == 3)
        assert held.deadline - now >= 0.3 + GRACE_AFTER_WRITE
        beat.cancel()
        await asyncio.wait([beat])


async def test_work_that_never_began_ends_with_a_stop() -> None:
    """In a thread: with an error of the library, where the last client stops before there was a thread for it."""
    threads, ends = Threads(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def busy() -> None:
        asyncio.run_coroutine_threadsafe(ends.wait(), loop).result()

    tasks = [asyncio.ensure_future(threads.run(busy, monotonic() + 60)) for _ in range(20)]  # more than there are threads
    await spin(3)
    threads.close()
    with pytest.raises(ClientStateError, match="stopped before the work had started"):
        await tasks[-1]
    ends.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(result) for result in results} == {type(None), ClientStateError}
