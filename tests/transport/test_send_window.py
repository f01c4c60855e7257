"""The window that answers widen and narrow: its size by what is reported, and what a connection reports."""

from __future__ import annotations

import asyncio

import pytest

from rmq_async.broker_answers import is_busy
from rmq_async.errors import RequestTimeoutError
from rmq_async.transport import CloseReason, Connection
from rmq_async.transport.send_window import FIRST_SIZE, LEAST_SIZE, LONG, SOON, SendWindow
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode

from ..support.fakes import Peer, refuse, silence, stored
from .support import FRAME, Sender, connect, ping, until

pytestmark = pytest.mark.virtual_time

WAY = 0.002
"""Seconds to the broker and back."""


def window(size: int = FIRST_SIZE, way: float = WAY) -> SendWindow:
    made = SendWindow()
    made.measured(way)
    made.size = size
    return made


def test_window_doubles_with_each_round_of_quick_answers() -> None:
    grown = SendWindow()
    sizes = []
    for _ in range(4):
        grown.answered(grown.size)
        grown.measured(WAY)
        sizes.append(grown.size)
    assert sizes == [2 * FIRST_SIZE, 4 * FIRST_SIZE, 8 * FIRST_SIZE, 16 * FIRST_SIZE]


def test_window_stays_while_the_queue_of_the_broker_is_in_use() -> None:
    held = window(500)
    held.measured(WAY + SOON)
    held.answered(500)
    assert held.size == 500
    held.measured(WAY + SOON / 2)
    held.answered(500)
    assert held.size == 1000


def test_long_queue_halves_the_window_down_to_the_least() -> None:
    narrowed = window(4 * LEAST_SIZE)
    sizes = []
    for _ in range(3):
        narrowed.measured(WAY + LONG)
        narrowed.answered(narrowed.size)
        sizes.append(narrowed.size)
    assert sizes == [2 * LEAST_SIZE, LEAST_SIZE, LEAST_SIZE]


def test_blocked_loop_narrows_no_window() -> None:
    blocked = window(500)
    blocked.measured(2.01, paused=2.0)
    blocked.answered(500)
    assert blocked.size == 1000


def test_window_of_a_distant_broker_grows() -> None:
    far = window(way=0.2)
    for _ in range(3):
        far.measured(0.2)
        far.answered(far.size)
    assert far.size == 8 * FIRST_SIZE


def test_way_that_became_longer_stops_no_window_for_good() -> None:
    """A tunnel moved: no queue makes the answers late, and the window grows on from its least."""
    moved = window(4 * LEAST_SIZE)
    for _ in range(3):
        moved.measured(WAY + 2 * LONG)
    assert moved.size == LEAST_SIZE
    moved.measured(WAY + 2 * LONG)
    moved.answered(LEAST_SIZE)
    assert moved.size == 2 * LEAST_SIZE


def test_busy_answers_of_one_round_halve_the_window_once() -> None:
    busy = window(1000)
    for number in range(1, 1001):
        busy.busy(number, 1000, 1001 - number)
    assert busy.size == 500
    busy.answered(500)
    assert busy.size == 500, "it does not grow before an answer to a send that left later came soon"
    busy.busy(1001, 1400, 500)
    assert busy.size == 250


def test_busy_answer_counts_what_was_on_the_wire() -> None:
    wide = window(8192)
    wide.busy(1, 100, 100)
    assert wide.size == 50
    for number in range(101, 110):
        wide.busy(number, number, wide.size)
    assert wide.size == LEAST_SIZE


def test_send_that_was_answered_while_none_were_held_is_not_timed_later() -> None:
    idle = window()
    idle.time(1, 10.0)
    idle.timed = 0
    idle.holds(64, 3600.0, [2])
    idle.came(70, 3600.001, {3})
    assert idle.size == FIRST_SIZE + 6


def test_oldest_send_is_timed_first() -> None:
    """Its answer shows the way without a queue, so that the next ones show how long a slow broker's queue is."""
    slow = SendWindow()
    slow.holds(0, 1.0, [1, 2])
    slow.came(1, 1.002, {2, 3})
    slow.time(65, 1.002)
    for step in range(1, 64):
        slow.came(1 + step, 1.002 + 0.002 * step, {65})
    grown = slow.size
    slow.came(65, 1.13, set())
    assert (grown, slow.size) == (FIRST_SIZE + 64, (FIRST_SIZE + 64) // 2)


@pytest.mark.parametrize(
    ("code", "remark", "busy"),
    [
        (2, "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while", True),
        (2, "[REJECTREQUEST]system busy, start flow control for a while", True),
        (215, "flow control", True),
        (1, "[PC_SYNCHRONIZED]broker busy, start flow control for a while", True),
        (1, "in-sync replicas not enough", False),
        (1, None, False),
        (14, "service not available now", False),
        (0, None, False),
    ],
)
def test_answers_that_say_busy(code: int, remark: str | None, busy: bool) -> None:
    assert is_busy(code, remark) is busy


# -- on a connection


def submit(connection: Connection, count: int, *, plain: bool = True, timeout: float = 3.0) -> list[asyncio.Future[object]]:
    sender = Sender(connection, timeout=timeout)
    sender.plain = plain
    return [sender.submit(b"%d" % number) for number in range(count)]


@pytest.mark.parametrize("plain", [True, False])
async def test_connection_begins_with_the_first_size_and_widens(plain: bool) -> None:
    async with Peer(silence) as peer, connect(peer) as connection:
        futures = submit(connection, 2000, plain=plain)
        await until(lambda: peer.received == FIRST_SIZE)
        seen, limits = 0, []
        while seen < 2000:
            answered, seen = peer.requests[seen:], peer.received
            for request in answered:
                stored(peer.link, request)
            left = 2000 - seen
            await until(lambda seen=seen, left=left: peer.received - seen == min(left, connection.requests.limit))
            limits.append(connection.requests.limit)
        await asyncio.gather(*futures)
        assert limits[:4] == [128, 256, 512, 1024]
        assert [request.body for request in peer.requests] == [b"%d" % number for number in range(2000)]


async def test_one_way_message_that_is_held_first_counts_no_earlier_answers() -> None:
    async with Peer(stored) as peer, connect(peer) as connection:
        for _ in range(4):
            await asyncio.gather(*submit(connection, FIRST_SIZE))
        peer.answer = silence
        (last,) = submit(connection, 1)
        await until(lambda: peer.received == 4 * FIRST_SIZE + 1)
        connection.pause_writing()
        connection.requests.submit_oneway(FRAME, lambda cost: None, 1)
        stored(peer.link, peer.requests[-1])
        await last
        assert connection.requests.limit == FIRST_SIZE + 1
        connection.resume_writing()
        await until(lambda: peer.received == 4 * FIRST_SIZE + 2)


async def test_busy_answer_narrows_the_window_of_a_connection() -> None:
    async with Peer(silence) as peer, connect(peer) as connection:
        futures = submit(connection, 200)
        await until(lambda: peer.received == FIRST_SIZE)
        for request in peer.requests[:FIRST_SIZE]:
            refuse(2, "[TIMEOUT_CLEAN_QUEUE]broker busy")(peer.link, request)
        await until(lambda: peer.received > FIRST_SIZE)
        assert peer.received == FIRST_SIZE + FIRST_SIZE // 2 == FIRST_SIZE + connection.requests.limit
        connection.close(CloseReason.LOCAL)
        await asyncio.gather(*futures, return_exceptions=True)


async def test_busy_answer_to_a_message_given_back_narrows_the_window() -> None:
    async with Peer(refuse(2, "busy")) as peer, connect(peer) as connection:
        await connection.request(RemotingCommand(code=RequestCode.PULL_MESSAGE), 1.0)
        assert connection.requests.limit == FIRST_SIZE
        await connection.request(RemotingCommand(code=RequestCode.CONSUMER_SEND_MSG_BACK), 1.0)
        assert connection.requests.limit == LEAST_SIZE


async def test_other_requests_pass_a_full_window() -> None:
    async with Peer(silence) as peer, connect(peer) as connection:
        futures = submit(connection, FIRST_SIZE + 10)
        other = asyncio.ensure_future(connection.request(ping(), 1.0))
        await until(lambda: peer.received == FIRST_SIZE + 1)
        peer.link.reply(peer.requests[-1])
        await other
        assert len(connection.requests.held) == 10
        assert connection.requests.limit == FIRST_SIZE, "the answer to another request widens nothing"
        connection.close(CloseReason.LOCAL)
        await asyncio.gather(*futures, return_exceptions=True)


async def test_sends_without_an_answer_widen_nothing() -> None:
    async with Peer(silence) as peer, connect(peer) as connection:
        futures = submit(connection, FIRST_SIZE + 10, timeout=0.1)
        late = await asyncio.gather(*futures, return_exceptions=True)
        assert [type(error) for error in late] == [RequestTimeoutError] * (FIRST_SIZE + 10)
        assert [error.maybe_stored for error in late] == [True] * FIRST_SIZE + [False] * 10  # type: ignore[union-attr]
        assert "64 earlier sends are unanswered and the broker takes 64 at a time" in str(late[-1])
        more = submit(connection, FIRST_SIZE + 10)
        await until(lambda: peer.received == 2 * FIRST_SIZE)
        stored(peer.link, peer.requests[-1])
        await until(lambda: peer.received > 2 * FIRST_SIZE)
        assert connection.requests.limit == FIRST_SIZE + 1
        connection.close(CloseReason.LOCAL)
        await asyncio.gather(*more, return_exceptions=True)
