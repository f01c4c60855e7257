"""How a connection ends: once, with a reason, and with an error of its own for each request that was under way."""

from __future__ import annotations

import asyncio
import gc
import struct
import tracemalloc
from collections.abc import Callable
from time import monotonic

import pytest

from rmq_async.errors import ConnectionLostError, RemoteProtocolError, RequestTimeoutError
from rmq_async.transport import CloseReason, Connection, ConnectionSettings, ConnectionState, Pending
from rmq_async.transport.states import next_state
from rmq_protocol.command import RemotingCommand

from ..support.fakes import Link, Peer, frame, response, silence
from .support import FRAME, Notes, Sender, connect, ping, spin, until

pytestmark = pytest.mark.interpreters

ONEWAY = frame(RemotingCommand(code=10, flag=2))
Ending = Callable[[Connection, Link], None]
ENDINGS: dict[CloseReason, Ending] = {
    CloseReason.LOCAL: lambda connection, link: connection.close(CloseReason.LOCAL),
    CloseReason.IDLE: lambda connection, link: connection.close(CloseReason.IDLE),
    CloseReason.DEAD: lambda connection, link: connection.close(CloseReason.DEAD),
    CloseReason.PEER: lambda connection, link: link.close(),
    CloseReason.RESET: lambda connection, link: link.reset(),
    CloseReason.PROTOCOL: lambda connection, link: link.write(b"\xff" * 8),
}


@pytest.mark.parametrize("reason", list(ENDINGS))
async def test_every_request_under_way_gets_an_error_of_its_own(reason: CloseReason) -> None:
    async with Peer(silence) as peer, connect(peer) as connection:
        sender = Sender(connection, window=3)
        futures = [sender.submit(b"%d" % number) for number in range(6)]
        await until(lambda: peer.received == 3)
        ENDINGS[reason](connection, peer.link)
        errors = await asyncio.gather(*futures, return_exceptions=True)
        assert len({id(error) for error in errors}) == 6
        for error in errors:
            assert isinstance(error, ConnectionLostError)
            assert reason.value in str(error)
            assert "SEND_MESSAGE_V2" in str(error)
            assert error.address == peer.address
            assert error.retriable
        assert [error.maybe_stored for error in errors] == [True] * 3 + [False] * 3  # type: ignore[union-attr]
        assert connection.close_reason is reason
        assert connection.state is ConnectionState.CLOSED
        assert not connection.is_open


@pytest.mark.parametrize("reason", list(ENDINGS))
async def test_frames_still_gathered_count_as_unwritten_unless_we_close(reason: CloseReason) -> None:
    async with Peer(silence) as peer, connect(peer) as connection:
        await peer.accepted()
        sender = Sender(connection)
        futures = [sender.submit(b"%d" % number) for number in range(3)]
        connection.close(reason)
        errors = await asyncio.gather(*futures, return_exceptions=True)
        written = reason is CloseReason.LOCAL
        assert [error.maybe_stored for error in errors] == [True, written, written]  # type: ignore[union-attr]
        await asyncio.wait([peer.link.lost])
        assert peer.received == (3 if written else peer.received)
        assert peer.received <= (3 if written else 1)


@pytest.mark.parametrize("reason", list(ENDINGS))
async def test_a_closed_connection_takes_nothing(reason: CloseReason) -> None:
    async with Peer(silence) as peer, connect(peer) as connection:
        await peer.accepted()
        ENDINGS[reason](connection, peer.link)
        await connection.closed
        for attempt in (
            lambda: connection.requests.submit_oneway(FRAME, lambda cost: None, 1),
            lambda: Sender(connection).submit(b"m"),
        ):
            with pytest.raises(ConnectionLostError, match=reason.value) as caught:
                attempt()
            assert not caught.value.maybe_stored
        with pytest.raises(ConnectionLostError):
            await connection.request(ping(), 60)


async def test_the_first_reason_stays_and_listeners_are_called_once() -> None:
    reasons: list[CloseReason | None] = []
    async with Peer() as peer, connect(peer, on_closed=lambda closed: reasons.append(closed.close_reason)) as connection:
        connection.close(CloseReason.DEAD)
        connection.close(CloseReason.LOCAL)
        await connection.closed
        connection.close(CloseReason.IDLE)
        assert connection.close_reason is CloseReason.DEAD
        assert reasons == [CloseReason.DEAD]


async def test_a_drained_connection_takes_nothing_new_and_answers_what_it_has() -> None:
    requests: list[RemotingCommand] = []
    async with Peer(lambda link, request: requests.append(request)) as peer, connect(peer) as connection:
        sender = Sender(connection, window=1)
        futures = [sender.submit(b"%d" % number) for number in range(3)]
        connection.drain()
        connection.drain()
        assert connection.state is ConnectionState.DRAINING
        with pytest.raises(ConnectionLostError, match="closing"):
            sender.submit(b"late")
        for number in range(3):
            await until(lambda number=number: len(requests) == number + 1)
            peer.link.reply(requests[number])
        await asyncio.gather(*futures)


@pytest.mark.parametrize("now", list(ConnectionState))
def test_a_closed_connection_never_opens_again(now: ConnectionState) -> None:
    with pytest.raises(RuntimeError, match=now.value):
        next_state(now, ConnectionState.CONNECTING)
    with pytest.raises(RuntimeError):
        next_state(ConnectionState.CLOSED, now)


async def test_closing_before_the_socket_is_there_leaves_no_socket() -> None:
    async with Peer() as peer:
        connection = Connection(peer.address, ConnectionSettings(1 << 20))
        connection.close(CloseReason.LOCAL)
        await asyncio.get_running_loop().create_connection(lambda: connection, peer.host, peer.port)
        await connection.closed
        assert not connection.is_open


async def test_fin_ends_a_connection_whose_peer_reads_no_more() -> None:
    async with Peer(reading=False) as peer, connect(peer) as connection:
        link = await peer.accepted()
        future = Sender(connection).submit(bytes(8 << 20))
        assert not connection.requests.takes_oneways()
        link.transport.write_eof()  # FIN while the other direction is stuck
        with pytest.raises(ConnectionLostError, match=CloseReason.PEER.value):
            await asyncio.wait_for(future, 60)
        await asyncio.wait_for(connection.closed, 60)


async def test_a_receiver_may_use_the_transport_while_it_is_called() -> None:
    """A send that retries at once does so from inside close() and data_received()."""
    outcomes: list[str] = []

    class Retrying(Notes):
        def set_exception(self, exception: BaseException) -> None:
            try:
                Sender(connection).submit(b"again")
            except ConnectionLostError:
                outcomes.append(type(exception).__name__)

    async with Peer(silence) as peer, connect(peer) as connection:
        for deadline in (0.0, float("inf")):
            pending = Pending(Retrying(), deadline, deadline, 310)
            connection.requests.start_request(connection.requests.next_opaque(), frame(ping()), pending)
        connection.close(CloseReason.DEAD)
        assert outcomes == ["ConnectionLostError"] * 2


@pytest.mark.parametrize("late", [False, True])
async def test_gathered_frame_of_paused_connection_leaves_as_written(late: bool) -> None:
    """uvloop calls ``pause_writing`` some time after the write that filled the kernel's buffer: frames are gathered by then."""
    async with Peer(silence) as peer, connect(peer) as connection:
        owner, deadline = object(), monotonic() + 0.05 if late else float("inf")
        notes = [Notes(), Notes()]
        for each in notes:
            pending = Pending(each, deadline, deadline, 310, owner=owner)
            connection.requests.start_request(connection.requests.next_opaque(), frame(ping(b"x")), pending)
        connection.pause_writing()
        if not late:
            connection.requests.abandon(owner, lambda written: ConnectionLostError("over", maybe_stored=written))
        await until(lambda: all(each.outcomes for each in notes))
        assert [each.outcomes[0].maybe_stored for each in notes] == [True, True]
        connection.resume_writing()
        await until(lambda: peer.received == 2)


async def test_requests_of_one_owner_end_together() -> None:
    async with Peer(silence) as peer, connect(peer) as connection:
        mine, others, written = [Notes() for _ in range(6)], Notes(), list[bool]()

        def over(was_written: bool) -> RequestTimeoutError:
            written.append(was_written)
            return RequestTimeoutError("over")

        owner = object()
        for notes in [*mine[:3], others, *mine[3:]]:
            pending = Pending(notes, float("inf"), float("inf"), 310, owner=owner if notes is not others else None)
            opaque = connection.requests.next_opaque()
            connection.requests.start_send(opaque, frame(ping(b"%d" % (connection.pending + 1))), pending, 2)
        connection.requests.abandon(owner, over)
        assert sorted(written) == [False] * 4 + [True] * 2, "what was gathered has left"
        assert connection.pending == 1
        assert len({id(notes.outcomes[0]) for notes in mine}) == 6
        await until(lambda: peer.received == 3)
        assert [request.body for request in peer.requests] == [b"1", b"2", b"4"], "what was held and abandoned never leaves"
        assert not others.outcomes
        connection.close(CloseReason.LOCAL)
        assert len(others.outcomes) == 1


# -- what the peer may do to the stream


def framed(header: bytes, form: int = 0) -> bytes:
    return struct.pack(">ii", 4 + len(header), form << 24 | len(header)) + header


BROKEN = {
    "length 0": b"\0\0\0\0",
    "length 3": b"\0\0\0\3",
    "length -1": b"\xff\xff\xff\xff",
    "length 2^31-1": b"\x7f\xff\xff\xff",
    "length 16 MiB": struct.pack(">i", 16 * 1024 * 1024),
    "header beyond its frame": b"\0\0\0\x08\0\0\0\x05{}12",
    "unknown form": framed(b"{}", form=2),
    "no header": framed(b""),
    "JSON that ends early": framed(b"{"),
    "JSON that is no object": framed(b"[]"),
    "JSON without a code": framed(b"{}"),
    "JSON that is not UTF-8": framed(b'{"code":0,"flag":1,"remark":"\xff\xfe"}'),
    "a code of 11 digits": framed(b'{"code":99999999999,"flag":1,"opaque":1}'),
    "a field of 5,000 digits": framed(b'{"code":0,"flag":1,"extFields":{"a":' + b"9" * 5000 + b"}}"),
    "10,000 open brackets": framed(b'{"code":0,"extFields":' + b"[" * 10_000),
    "binary that is too short": framed(b"abcd", form=1),
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN.keys())
async def test_a_broken_frame_ends_the_connection_after_the_good_ones(broken: bytes) -> None:
    requests: list[RemotingCommand] = []
    async with Peer(lambda link, request: requests.append(request)) as peer, connect(peer) as connection:
        good, bad = [asyncio.ensure_future(connection.request(ping(b"%d" % number), 60)) for number in range(2)]
        await until(lambda: len(requests) == 2)
        peer.link.write(frame(response(requests[0])) + broken + frame(response(requests[1])))
        assert (await good).body == b"0"
        with pytest.raises(ConnectionLostError, match=CloseReason.PROTOCOL.value) as caught:
            await bad
        assert caught.value.maybe_stored
        assert isinstance(caught.value.__cause__, RemoteProtocolError)
        assert str(caught.value.__cause__) in str(caught.value)
        assert connection.close_reason is CloseReason.PROTOCOL


async def test_an_announced_length_costs_nothing_before_it_is_believed() -> None:
    async with Peer(silence) as peer, connect(peer) as connection:
        link = await peer.accepted()
        gc.collect()
        tracemalloc.start()
        try:
            base = tracemalloc.get_traced_memory()[0]
            link.write(b"\x7f\xff\xff\xff")
            await connection.closed
            assert tracemalloc.get_traced_memory()[1] - base < 768 * 1024, (
                "asyncio reads into 256 KiB, and may have two of them"
            )
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_a_reply_cut_at_any_byte_is_a_lost_connection(how: str) -> None:
    """By a real kernel, which is given 2 ms to send what comes before a reset."""
    whole = len(frame(response(ping(b"body"), opaque=1_000_000_001)))
    cut = 0

    def answer(link: Link, request: RemotingCommand) -> None:
        getattr(link, how)(frame(response(request))[:cut])

    async with Peer(answer) as peer:
        for cut in range(whole):  # noqa: B007 - answer() reads it
            async with connect(peer) as connection:
                with pytest.raises(ConnectionLostError) as caught:
                    await connection.request(ping(b"body"), 60)
                assert caught.value.maybe_stored
                assert connection.close_reason in (CloseReason.PEER, CloseReason.RESET)
        cut = whole
        async with connect(peer) as connection:
            assert (await connection.request(ping(b"body"), 60)).body == b"body"


async def test_a_reset_in_the_middle_of_a_frame_fails_all_of_1000() -> None:
    def answer(link: Link, request: RemotingCommand) -> None:
        if request.body == b"999":
            link.rst(frame(response(request))[:50])

    async with Peer(answer) as peer, connect(peer) as connection:
        tasks = [asyncio.ensure_future(connection.request(ping(b"%d" % number), 60)) for number in range(1000)]
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(error, ConnectionLostError) and error.maybe_stored for error in errors)
        assert len({id(error) for error in errors}) == 1000
        assert connection.pending == 0


@pytest.mark.parametrize("size", [10, 100_000])
@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_sending_into_an_ending_connection_raises_our_errors_only(how: str, size: int) -> None:
    """Between the end of the socket and the loop's report of it every write goes to a transport that is broken already."""
    body = bytes(size)
    for delay in (0.0, 0.001, 0.003):
        async with Peer(silence) as peer, connect(peer) as connection:
            sender = Sender(connection, timeout=60, window=50)
            link = await peer.accepted()
            asyncio.get_running_loop().call_later(delay, getattr(link, how))
            futures = []
            with pytest.raises(ConnectionLostError):
                while True:
                    for _ in range(5):
                        futures.append(sender.submit(body))
                        connection.requests.submit_oneway(ONEWAY, lambda cost: None, 1)
                    await spin()
            errors = await asyncio.gather(*futures, return_exceptions=True)
            assert all(isinstance(error, ConnectionLostError) for error in errors)


@pytest.mark.usefixtures("wide_window")
async def test_closing_with_10_000_in_flight_ends_all_of_them() -> None:
    async with Peer(silence, keep=False) as peer, connect(peer) as connection:
        sender = Sender(connection, window=5000)
        futures = [sender.submit(b"m") for _ in range(10_000)]
        await until(lambda: peer.received == 5000)
        connection.close(CloseReason.LOCAL)
        errors = await asyncio.gather(*futures, return_exceptions=True)
        assert sum(error.maybe_stored for error in errors) == 5000  # type: ignore[union-attr]
