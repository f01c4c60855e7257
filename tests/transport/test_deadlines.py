"""Time: deadlines of attempts and calls, after a blocked loop too; connections that have died."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Any

import pytest

from rmq_async.errors import ConnectionLostError, RequestTimeoutError
from rmq_async.transport import CloseReason, Connection, Pending
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode

from ..support.fakes import Link, Peer, echo, silence, stored
from .support import ALLOWED, BORN, FRAME, Notes, Sender, connect, ping, spin, takes, template, until

pytestmark = pytest.mark.virtual_time


def submit_attempt(connection: Connection, notes: Notes, attempt: float, call: float, body: bytes = b"m") -> None:
    opaque, now = connection.requests.next_opaque(), monotonic()
    pending = Pending(notes, now + attempt, now + call, RequestCode.SEND_MESSAGE_V2)
    connection.requests.start_send(opaque, template().parts(opaque, BORN, "", body), pending, 8192)


async def test_a_request_without_an_answer_ends_at_its_deadline() -> None:
    async with Peer(silence) as peer, connect(peer) as connection:
        with takes(0.1), pytest.raises(RequestTimeoutError) as caught:
            await connection.request(ping(), 0.1)
        assert caught.value.maybe_stored
        assert caught.value.address == peer.address
        assert isinstance(caught.value, TimeoutError)
        assert "HEART_BEAT" in str(caught.value)
        assert connection.is_open
        assert connection.pending == 0


async def test_mixed_deadlines_are_exact_to_50_ms() -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    draw = random.Random(seed)

    async def ask(connection: Connection, delay: float, timeout: float) -> None:
        await asyncio.sleep(delay)
        with takes(timeout), pytest.raises(RequestTimeoutError):
            await connection.request(ping(), timeout)

    async with Peer(silence, keep=False) as peer, connect(peer) as connection:
        await asyncio.gather(*[ask(connection, draw.uniform(0, 0.3), draw.uniform(0.01, 1.0)) for _ in range(300)])


async def test_a_shorter_deadline_is_kept_behind_a_longer_one() -> None:
    async with Peer(silence) as peer, connect(peer) as connection:
        long = asyncio.ensure_future(connection.request(ping(), 30))
        await spin()
        with takes(0.05), pytest.raises(RequestTimeoutError):
            await connection.request(ping(), 0.05)
        long.cancel()
        await asyncio.wait([long])


async def test_a_deadline_that_has_passed_already_ends_at_once() -> None:
    async with Peer(silence) as peer, connect(peer) as connection:
        for timeout in (0.0, -1.0):
            with takes(0), pytest.raises(RequestTimeoutError):
                await connection.request(ping(), timeout)


async def test_an_attempt_that_is_late_is_reported_and_its_answer_still_taken() -> None:
    requests: list[RemotingCommand] = []
    async with Peer(lambda link, request: requests.append(request)) as peer, connect(peer) as connection:
        notes = Notes()
        with takes(0.05):
            submit_attempt(connection, notes, 0.05, 5)
            await until(lambda: notes.outcomes)
        assert isinstance(notes.outcomes[0], RequestTimeoutError)
        assert connection.pending == 1
        peer.answer = stored
        stored(peer.link, requests[0])
        await until(lambda: len(notes.outcomes) == 2)
        assert notes.outcomes[1].extFields.msgId == "m"
        assert connection.pending == 0


async def test_an_attempt_is_reported_again_at_the_end_of_its_call_and_then_is_gone() -> None:
    requests: list[RemotingCommand] = []
    async with Peer(lambda link, request: requests.append(request)) as peer, connect(peer) as connection:
        notes = Notes()
        with takes(0.2):
            submit_attempt(connection, notes, 0.05, 0.2)
            await until(lambda: len(notes.outcomes) == 2)
        assert all(isinstance(each, RequestTimeoutError) and each.maybe_stored for each in notes.outcomes)
        assert notes.outcomes[0] is not notes.outcomes[1]
        assert connection.pending == 0
        stored(peer.link, requests[0])
        await until(lambda: connection.strays == 1)
        assert len(notes.outcomes) == 2


async def test_a_late_attempt_hears_of_the_end_of_its_connection() -> None:
    async with Peer(silence) as peer, connect(peer) as connection:
        notes = Notes()
        submit_attempt(connection, notes, 0.02, 5)
        await until(lambda: notes.outcomes)
        (await peer.accepted()).reset()
        await until(lambda: len(notes.outcomes) == 2)
        assert isinstance(notes.outcomes[1], ConnectionLostError)
        assert notes.outcomes[1].maybe_stored


async def test_an_attempt_that_never_left_does_not_leave_after_its_time() -> None:
    async with Peer(silence) as peer, connect(peer) as connection:
        sender = Sender(connection, window=1)
        first, notes = sender.submit(b"first"), Notes()
        opaque, now = connection.requests.next_opaque(), monotonic()
        pending = Pending(notes, now + 0.05, now + 5, RequestCode.SEND_MESSAGE_V2)
        connection.requests.start_send(opaque, template().parts(opaque, BORN, "", b"held"), pending, 1)
        await until(lambda: notes.outcomes)
        assert not notes.outcomes[0].maybe_stored
        assert not connection.requests.knows(opaque)
        stored(peer.link, peer.requests[0])
        await first
        await asyncio.sleep(0.02)
        assert [request.body for request in peer.requests] == [b"first"]


async def test_what_is_called_unwritten_is_not_written_later() -> None:
    async with Peer(silence) as peer, connect(peer) as connection:
        sender = Sender(connection, timeout=0.01)
        futures = [sender.submit(b"%d" % number) for number in range(3)]
        time.sleep(0.05)  # the frames of the second and third are gathered, the flush and the timer are both due
        answers = await asyncio.gather(*futures, return_exceptions=True)
        outcomes = [answer.maybe_stored for answer in answers]  # type: ignore[union-attr]
        await asyncio.sleep(0.02)
        assert outcomes == [True, True, True]
        assert peer.received == 3


async def test_a_cancelled_request_leaves_the_table_and_its_answer_is_a_stray() -> None:
    async with Peer(silence) as peer, connect(peer) as connection:
        task = asyncio.ensure_future(connection.request(ping(), 5))
        await until(lambda: peer.received == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert connection.pending == 0
        echo(peer.link, peer.requests[0])
        await until(lambda: connection.strays == 1)


# -- what a request may not cost


@pytest.mark.parametrize("depth", [1, 64])
async def test_no_timer_and_no_task_per_message(depth: int) -> None:
    loop = asyncio.get_running_loop()
    counts = {"timers": 0, "tasks": 0}

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return call(*args, **kwargs)

        return counting

    async with Peer(stored, keep=False) as peer, connect(peer) as connection:
        sender = Sender(connection)

        async def work() -> None:
            for _ in range(10_000 // depth):
                await sender.send(b"m")

        workers = [loop.create_task(work()) for _ in range(depth)]
        for name in ("call_later", "call_at"):
            setattr(loop, name, counted("timers", getattr(loop, name)))
        loop.set_task_factory(counted("tasks", lambda loop, coro, **kwargs: asyncio.Task(coro, loop=loop, **kwargs)))
        started = monotonic()
        try:
            await asyncio.wait(workers)
        finally:
            loop.set_task_factory(None)
            del loop.call_later, loop.call_at
        for worker in workers:
            worker.result()
        assert peer.received == 10_000 // depth * depth
        assert counts["tasks"] == 0
        seconds = monotonic() - started
        assert counts["timers"] <= 10 + 100 * seconds, "scans, and a gathering write that no answer came for"
        assert counts["timers"] <= 10_000 / 20


async def test_a_late_answer_never_completes_a_newer_call() -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    draw = random.Random(seed)

    def answer(link: Link, request: RemotingCommand) -> None:
        if draw.random() < 0.1:
            link.reply_later(draw.uniform(0.04, 0.1), request, body=request.body)
        else:
            echo(link, request)

    late = good = 0
    async with Peer(answer, keep=False) as peer, connect(peer) as connection:

        async def work(worker: int) -> None:
            nonlocal late, good
            for turn in range(100):
                body = b"%d-%d" % (worker, turn)
                try:
                    assert (await connection.request(ping(body), 0.04)).body == body
                    good += 1
                except RequestTimeoutError:
                    late += 1

        await asyncio.gather(*[work(worker) for worker in range(100)])
        assert late + good == 10_000
        assert late > 100, "the run was to make answers late"
        assert good > 1000
        await until(lambda: connection.strays + good + connection.pending >= 10_000 or peer.received < 10_000)
        assert connection.strays <= late


# -- a blocked loop


async def test_sends_without_an_answer_end_soon_after_a_blocked_loop() -> None:
    async with Peer(silence) as peer, connect(peer) as connection:
        task = asyncio.ensure_future(connection.request(ping(), 0.05))
        await spin(2)
        time.sleep(0.3)
        with takes(0), pytest.raises(RequestTimeoutError):
            await task


async def test_a_steady_load_does_not_put_off_what_a_blocked_loop_made_late() -> None:
    """What is written after the loop went on is no reason to wait for answers to what was written long before it stopped."""

    async def ask(connection: Connection, longest: float) -> None:
        began = monotonic()
        with pytest.raises(RequestTimeoutError):
            await connection.request(ping(), 0.3)
        assert 0.299 < monotonic() - began <= longest

    async with Peer(silence, keep=False) as peer, connect(peer) as connection:
        tasks = []
        for number in range(120):
            tasks.append(asyncio.ensure_future(ask(connection, 0.3 + ALLOWED + (0.2 if number <= 50 else 0.0))))
            await asyncio.sleep(0.005)
            if number == 50:
                time.sleep(0.2)
        await asyncio.gather(*tasks)


async def test_the_wall_clock_may_jump(monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time
    async with Peer() as peer, connect(peer, dead_after=0.2) as connection:
        for jump in (3600, -3600, 0):
            with monkeypatch.context() as patch:
                patch.setattr(time, "time", lambda jump=jump: real() + jump)
                assert (await connection.request(ping(b"m"), 0.1)).body == b"m"


# -- a dead peer


async def test_a_silent_peer_is_found_dead() -> None:
    async with Peer(silence) as peer, connect(peer, dead_after=0.3) as connection:
        with takes(0.3):
            with pytest.raises(RequestTimeoutError):
                await connection.request(ping(), 0.1)
            with pytest.raises(ConnectionLostError) as caught:
                await connection.request(ping(), 5)
        assert caught.value.maybe_stored
        assert CloseReason.DEAD.value in str(caught.value)
        assert connection.close_reason is CloseReason.DEAD


async def test_a_dead_peer_is_found_though_no_request_waits_any_more() -> None:
    async with Peer(silence) as peer, connect(peer, dead_after=0.2) as connection:
        with takes(0.2):
            task = asyncio.ensure_future(connection.request(ping(), 5))
            await spin(2)
            task.cancel()
            await asyncio.wait([task])
            await connection.closed
        assert connection.close_reason is CloseReason.DEAD


async def test_silence_counts_from_the_first_request_after_the_last_byte() -> None:
    async with Peer() as peer, connect(peer, dead_after=0.2) as connection:
        await connection.request(ping(), 1)
        await asyncio.sleep(0.3)
        assert connection.is_open, "nothing was asked"
        peer.answer = silence
        with takes(0.2):
            while connection.is_open:
                with pytest.raises((RequestTimeoutError, ConnectionLostError)):
                    await connection.request(ping(), 0.08)
        assert connection.close_reason is CloseReason.DEAD


async def test_one_slow_request_among_answered_ones_is_not_death() -> None:
    def answer(link: Link, request: RemotingCommand) -> None:
        if request.body != b"slow":
            echo(link, request)

    async with Peer(answer) as peer, connect(peer, dead_after=0.1) as connection:
        slow = asyncio.ensure_future(connection.request(ping(b"slow"), 0.5))
        while not slow.done():
            await connection.request(ping(), 1)
            await asyncio.sleep(0.02)
        with pytest.raises(RequestTimeoutError):
            await slow
        await asyncio.sleep(0.15)
        assert connection.is_open, "an earlier time-out is forgotten once a byte came after it"


async def test_long_polls_and_oneways_expect_no_byte() -> None:
    async with Peer(silence) as peer, connect(peer, dead_after=0.1) as connection:
        connection.requests.submit_oneway(FRAME, lambda cost: None, 1)
        with pytest.raises(RequestTimeoutError):
            await connection.request(ping(), 0.3, long_poll=True)
        assert connection.is_open
        with pytest.raises(ConnectionLostError):
            await connection.request(ping(), 1)


async def test_any_byte_is_a_sign_of_life() -> None:
    async with Peer(silence) as peer, connect(peer, dead_after=0.15) as connection:
        link = await peer.accepted()
        link.dribble(b"\x00\x00\x10\x00" + bytes(50), 0.02)
        with pytest.raises(RequestTimeoutError):
            await connection.request(ping(), 0.5)
        assert connection.is_open


async def test_a_stream_of_single_bytes_delays_no_deadline_and_no_other_connection() -> None:
    async with Peer(silence) as peer, connect(peer) as connection:
        (await peer.accepted()).dribble(b"\x00\x00\x10\x00" + bytes(400), 0.002)
        with takes(0.2), pytest.raises(RequestTimeoutError):
            await connection.request(ping(), 0.2)
        peer.answer = echo
        async with connect(peer) as other:
            assert (await other.request(ping(b"m"), 1)).body == b"m"


async def test_a_request_may_wait_for_ever() -> None:
    async with Peer(silence) as peer, connect(peer) as connection:
        task = asyncio.ensure_future(connection.request(ping(b"m"), inf))
        await until(lambda: peer.received == 1)
        echo(peer.link, peer.requests[0])
        assert (await task).body == b"m"
