"""FaultProxy between plain byte streams: each fault in each direction, changed under way; nothing is left at the end.

What a fault does to time is seen in virtual time; what ends a connection on sockets of the system, which alone have resets.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rmq_async.testing import Direction, FaultProxy

from ..support.leftovers import start_twice_at_once
from ..support.waiting import spin
from .streams import Client, Echo, until

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
async def echo(nothing_left: None) -> AsyncIterator[Echo]:
    async with Echo() as echo:
        yield echo


@pytest.fixture
async def proxy(echo: Echo) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(echo.address, seed=1) as proxy:
        yield proxy


@pytest.fixture
async def client(proxy: FaultProxy) -> AsyncIterator[Client]:
    async with Client(proxy.address) as client:
        yield client


@pytest.fixture(params=["to_server", "to_client"])
def direction(request: pytest.FixtureRequest, proxy: FaultProxy) -> Direction:
    found: Direction = getattr(proxy, request.param)
    return found


async def seconds(client: Client, data: bytes = b"ping") -> float:
    begin = time.monotonic()
    assert await client.ask(data) == data
    return time.monotonic() - begin


@pytest.mark.virtual_time
async def test_without_faults_bytes_pass_unchanged_and_fast(proxy: FaultProxy, client: Client) -> None:
    data = random.Random(3).randbytes(4 << 20)
    assert await seconds(client, data) < 0.2
    assert proxy.to_server.passed == proxy.to_client.passed == len(data)
    assert not proxy.injected
    assert (proxy.accepted, proxy.connections) == (1, 1)


@pytest.mark.parametrize("end", ["reset", "close"])
async def test_connection_that_ends_in_the_turn_of_its_arrival_is_closed(echo: Echo, end: str) -> None:
    """The task that serves it is cancelled before its first step."""

    def create_task(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        if coro.__qualname__ == "_Link.run":
            loop.call_soon(getattr(proxy, end))
        return asyncio.Task(coro, loop=loop, **options)

    async with FaultProxy(echo.address) as proxy:
        asyncio.get_running_loop().set_task_factory(create_task)
        reader, writer = await asyncio.open_connection(*proxy.address.split(":"))
        try:
            if end == "reset":
                with pytest.raises(ConnectionResetError):
                    await asyncio.wait_for(reader.read(), 60)
            else:
                assert await asyncio.wait_for(reader.read(), 60) == b""
        finally:
            writer.close()
        assert (proxy.accepted, proxy.connections, proxy.injected[end]) == (1, 0, 1)


async def test_stop_during_start_leaves_nothing_that_listens(echo: Echo) -> None:
    for turns in range(1, 5):
        proxy = FaultProxy(echo.address)
        start = asyncio.create_task(proxy.start())
        for _ in range(turns):
            await asyncio.sleep(0)
        await proxy.stop()
        await start
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*proxy.address.split(":"))


async def test_cancelled_start_leaves_its_port_free(echo: Echo) -> None:
    proxy = FaultProxy(echo.address)
    async with proxy:
        address = proxy.address
    for turns in range(1, 4):
        start = asyncio.create_task(proxy.start())
        for _ in range(turns):
            await asyncio.sleep(0)
        start.cancel()
        await asyncio.gather(start, return_exceptions=True)
        await proxy.stop()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address.split(":"))


async def test_two_starts_at_once_are_one(echo: Echo) -> None:
    proxy = FaultProxy(echo.address)
    await start_twice_at_once(proxy, lambda: proxy.address, "this proxy is already running; call stop() first")


@pytest.mark.virtual_time
async def test_an_end_is_passed_on_after_the_last_byte(proxy: FaultProxy, echo: Echo) -> None:
    proxy.to_client.latency(0.05)
    async with Client(proxy.address) as client:
        client.writer.write(b"last words")
        client.writer.write_eof()
        assert await client.rest() == (b"last words", "eof")
    assert echo.ends == ["eof"]
    await until(lambda: not proxy.connections)


@pytest.mark.virtual_time
async def test_latency_delays_each_read_and_does_not_add_up(client: Client, direction: Direction) -> None:
    direction.latency(0.2)
    begin = time.monotonic()
    for number in range(5):
        client.writer.write(b"%d" % number)
        await asyncio.sleep(0.02)
    assert await client.reader.readexactly(5) == b"01234"
    assert time.monotonic() - begin == pytest.approx(0.28, abs=0.01)
    assert direction.injected["latency"] == 5


@pytest.mark.virtual_time
async def test_jitter_varies_the_latency_and_keeps_the_order(client: Client, direction: Direction) -> None:
    direction.latency(0.0, jitter=0.05)
    times = [await seconds(client, b"%02d" % number) for number in range(8)]
    assert max(times) - min(times) > 0.005
    assert max(times) < 0.06
    data = b"".join(b"%03d" % number for number in range(100))
    for number in range(100):
        client.writer.write(b"%03d" % number)
        await asyncio.sleep(0)
    assert await client.reader.readexactly(300) == data


@pytest.mark.virtual_time
async def test_a_bandwidth_paces_bytes(client: Client, direction: Direction) -> None:
    direction.bandwidth(100_000)
    assert await seconds(client, bytes(30_000)) == pytest.approx(0.3, abs=0.02)
    direction.bandwidth(None)
    assert await seconds(client, bytes(100_000)) < 0.02
    assert direction.injected["bandwidth"] > 0


@pytest.mark.virtual_time
async def test_slices_leave_one_by_one(echo: Echo) -> None:
    async with FaultProxy(echo.address) as proxy, Client(proxy.address) as client:
        proxy.to_client.slice(3, pause=0.03)
        client.writer.write(b"0123456789")
        async with asyncio.timeout(60):
            pieces = [await client.reader.read(100) for _ in range(4)]
        assert pieces == [b"012", b"345", b"678", b"9"]
        proxy.to_client.slice(5, pause=0.05)
        assert await seconds(client, bytes(10)) == pytest.approx(0.05, abs=0.01)
        assert proxy.injected["slice"] == 3 + 1


@pytest.mark.virtual_time
async def test_slices_do_not_catch_up_after_a_loop_that_was_late(echo: Echo) -> None:
    async with FaultProxy(echo.address) as proxy, Client(proxy.address) as client:
        proxy.to_client.slice(3, pause=0.03)
        client.writer.write(b"0123456789")
        async with asyncio.timeout(60):
            pieces = [await client.reader.read(100)]
            time.sleep(0.15)
            pieces += [await client.reader.read(100) for _ in range(3)]
        assert pieces == [b"012", b"345", b"678", b"9"]


@pytest.mark.virtual_time
async def test_what_is_stalled_passes_when_resumed(client: Client, direction: Direction) -> None:
    direction.stall()
    client.writer.write(b"held")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.reader.read(100), 0.1)
    direction.resume()
    assert await client.reader.readexactly(4) == b"held"
    assert direction.injected == {"stall": 1}


@pytest.mark.virtual_time
async def test_a_stall_holds_the_sender_up_once_the_buffer_is_full(echo: Echo) -> None:
    size = 4 << 20
    async with FaultProxy(echo.address, buffer=100_000) as proxy, Client(proxy.address) as client:
        proxy.stall()
        client.writer.transport.set_write_buffer_limits(high=0)
        client.writer.write(bytes(size))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.writer.drain(), 0.3)
        left = client.writer.transport.get_write_buffer_size()
        assert left > size - (2 << 20)  # the network took the rest
        proxy.resume()
        await client.reader.readexactly(size)


@pytest.mark.virtual_time
async def test_a_change_holds_for_what_waits_already(proxy: FaultProxy, client: Client, direction: Direction) -> None:
    direction.latency(30)
    client.writer.write(b"waits")
    await asyncio.sleep(0.05)
    direction.latency(0)
    assert await asyncio.wait_for(client.reader.readexactly(5), 60) == b"waits"
    direction.bandwidth(1)
    client.writer.write(b"slowly")
    await asyncio.sleep(0.05)
    proxy.clear()
    assert await asyncio.wait_for(client.reader.readexactly(6), 60) == b"slowly"
    direction.slice(1, pause=30)
    client.writer.write(b"ab")
    assert await asyncio.wait_for(client.reader.read(100), 60) == b"a"
    direction.clear()
    assert await asyncio.wait_for(client.reader.read(100), 60) == b"b"


@pytest.mark.parametrize("count", [0, 1, 7, 20])
@pytest.mark.parametrize("reset", [False, True], ids=["fin", "rst"])
async def test_answers_are_cut_after_so_many_bytes(proxy: FaultProxy, client: Client, count: int, reset: bool) -> None:
    proxy.to_client.cut_after(count, reset=reset)
    data = bytes(range(20))
    client.writer.write(data)
    assert await client.rest() == (data[:count], "reset" if reset else "eof")
    assert proxy.injected == {"cut": 1}
    async with Client(proxy.address) as other:
        assert await other.ask(data) == data


@pytest.mark.parametrize("reset", [False, True], ids=["fin", "rst"])
async def test_requests_are_cut_after_so_many_bytes(nothing_left: None, reset: bool) -> None:
    async with Echo(source=0) as sink, FaultProxy(sink.address) as proxy, Client(proxy.address) as client:
        client.writer.write(b"before")
        await until(lambda: proxy.to_server.passed == 6)
        proxy.to_server.cut_after(4, reset=reset)
        client.writer.write(b"0123456789")
        await client.rest()
        await until(lambda: sink.ends)
        assert (bytes(sink.received[0]), sink.ends) == (b"before0123", ["reset" if reset else "eof"])


async def test_a_cut_comes_as_often_as_it_was_asked_for_and_each_connection_counts_for_itself(proxy: FaultProxy) -> None:
    proxy.to_client.cut_after(3, times=2)
    found = []
    for _ in range(3):
        async with Client(proxy.address) as client:
            client.writer.write(b"12345")
            client.writer.write_eof()
            found.append(await client.rest())
    assert found == [(b"123", "eof"), (b"123", "eof"), (b"12345", "eof")]
    proxy.to_client.cut_after(3, times=None)
    for _ in range(3):
        async with Client(proxy.address) as client:
            client.writer.write(b"12345")
            assert await client.rest() == (b"123", "eof")
    proxy.clear()
    async with Client(proxy.address) as client:
        assert await client.ask(b"12345") == b"12345"
    assert proxy.injected == {"cut": 5}


async def test_a_reset_breaks_both_ends_and_new_connections_are_taken(proxy: FaultProxy, echo: Echo, client: Client) -> None:
    await client.ask(b"x")
    proxy.reset()
    assert await client.rest() == (b"", "reset")
    await until(lambda: echo.ends == ["reset"])
    async with Client(proxy.address) as other:
        assert await other.ask(b"y") == b"y"
        proxy.close()
        assert await other.rest() == (b"", "eof")
    await until(lambda: echo.ends == ["reset", "eof"])
    assert proxy.injected == {"reset": 1, "close": 1}


async def test_a_reset_of_one_end_reaches_the_other(echo: Echo, proxy: FaultProxy) -> None:
    async with Client(proxy.address) as client:
        await client.ask(b"x")
        client.writer.transport.abort()
    await until(lambda: echo.ends)
    async with Echo(source=100) as talker, FaultProxy(talker.address) as other, Client(other.address) as client:
        await client.reader.readexactly(100)
        other.target = "127.0.0.1:1"
        async with Client(other.address) as refused:  # no server listens there
            assert await refused.rest() == (b"", "reset")
        await client.ask(b"")


async def test_too_many_connections_are_reset(echo: Echo) -> None:
    async with FaultProxy(echo.address, max_connections=1) as proxy, Client(proxy.address) as client:
        await client.ask(b"x")
        async with Client(proxy.address) as other:
            assert await other.rest() == (b"", "reset")
        assert (proxy.accepted, proxy.connections) == (1, 1)
        assert await client.ask(b"y") == b"y"


async def test_stopping_ends_every_wait(echo: Echo) -> None:
    proxy = FaultProxy(echo.address)
    await proxy.start()
    with pytest.raises(RuntimeError, match="is already running"):
        await proxy.start()
    address = proxy.address
    async with Client(address) as stalled, Client(address) as late, Client(address) as idle:
        await idle.ask(b"x")
        proxy.to_client.latency(3000)
        await asyncio.sleep(0)
        late.writer.write(b"x")
        await until(lambda: proxy.to_server.passed == 2)
        proxy.stall()
        stalled.writer.write(bytes(1 << 22))
        await spin(50)
        async with asyncio.timeout(60):  # what waits would take longer
            await proxy.stop()
            await proxy.stop()
        assert proxy.connections == 0
        for client in (stalled, late, idle):
            assert await client.rest() == (b"", "reset")
        with pytest.raises(ConnectionError):
            await Client(address).__aenter__()
    proxy.clear()
    async with proxy, Client(proxy.address) as again:  # on the port it had
        assert proxy.address == address
        assert await again.ask(b"x") == b"x"


@pytest.mark.virtual_time
async def test_a_peer_that_does_not_read_does_not_hold_up_a_close(echo: Echo) -> None:
    async with Echo(source=32 << 20) as talker, FaultProxy(talker.address) as proxy, Client(proxy.address) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await until(lambda: proxy.to_client.passed > 100_000)
        await asyncio.sleep(0.05)
        proxy.close()
        await until(lambda: not proxy.connections)
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda way: way.latency(-1), "latency must be a finite, non-negative number of seconds, not -1"),
        (lambda way: way.latency(0, jitter=float("nan")), "jitter must be a finite, non-negative number of seconds, not nan"),
        (lambda way: way.bandwidth(0), "a positive, finite number, or None for no limit, not 0"),
        (lambda way: way.slice(0), "at least 1 byte, or None for no limit, not 0"),
        (lambda way: way.cut_after(-1), "must not be negative, it is -1"),
        (lambda way: way.cut_after(1, times=0), "times must be at least 1, or None for all connections, not 0"),
        (lambda way: FaultProxy("nowhere"), "has no valid host"),
        (lambda way: FaultProxy("127.0.0.1:99999"), "no port in 1..65535"),
        (lambda way: FaultProxy("127.0.0.1:1", buffer=0), "buffer and max_connections must be at least 1"),
    ],
)
def test_values_that_mean_nothing_are_refused(call: object, words: str) -> None:
    with pytest.raises(Exception, match=words):
        call(Direction())  # type: ignore[operator]


def test_a_proxy_has_an_address_once_it_was_started() -> None:
    with pytest.raises(RuntimeError, match="has no address before"):
        _ = FaultProxy("127.0.0.1:1").address
