"""ThreadedRocketMQ: the whole of EmbeddedRocketMQ, from any thread, with any loop or none."""

from __future__ import annotations

import asyncio
import inspect
import socket
import threading

import pytest

import rmq_async
from rmq_async import Message, Producer
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.testing import ThreadedRocketMQ

from ..support.leftovers import sockets


@pytest.fixture(autouse=True)
def nothing_left_of_the_thread() -> object:
    before, open_before = threading.active_count(), sockets()
    yield
    assert threading.active_count() == before
    assert sockets() <= open_before


async def send(namesrv: str, body: bytes) -> int:
    async with Producer("shop", namesrv=namesrv) as producer:
        return (await producer.send(Message("T", body))).attempts


def test_plain_code_uses_it_without_a_loop_of_its_own() -> None:
    with ThreadedRocketMQ(brokers=2) as server:
        assert isinstance(server, EmbeddedRocketMQ)
        assert server.brokers.keys() == {"broker-a", "broker-b"}
        assert rmq_async.run(send(server.namesrv, b"one")) == 1
        server.fail_next(2, request=310)
        assert asyncio.run(send(server.namesrv, b"two")) == 2
        assert [message.body for message in server.messages("T")] == [b"one", b"two"]
        assert server.requests[310] == 3
        server.clear()
        assert server.messages("T") == []
        with pytest.raises(ValueError, match="there is no server 'missing'"):
            server.statistics("missing")


async def test_async_code_uses_it_while_its_own_loop_runs() -> None:
    with ThreadedRocketMQ() as server:
        assert await send(server.namesrv, b"one") == 1
        async with Producer("shop", namesrv=server.namesrv, timeout=5) as producer:
            server.stall()
            task = asyncio.create_task(producer.send(Message("T", b"two")))
            await asyncio.sleep(0.05)
            assert not task.done()
            server.resume()
            assert (await task).attempts == 1
        assert len(server.messages("T")) == 2


async def test_its_coroutine_methods_are_awaited_on_any_loop() -> None:
    with ThreadedRocketMQ() as server:
        await send(server.namesrv, b"kept")
        address = server.namesrv
        await server.stop()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address.split(":"))
        await server.start()
        assert server.namesrv == address
        assert [message.body for message in server.messages("T")] == [b"kept"]
        with pytest.raises(RuntimeError, match="is already running"):
            await server.start()
        assert server.run(asyncio.sleep(0, "from the server's loop")) == "from the server's loop"


def test_outside_of_with_every_call_says_so() -> None:
    server = ThreadedRocketMQ()
    for call in (
        lambda: server.namesrv,
        server.clear,
        lambda: server.run(asyncio.sleep(0)),
        lambda: asyncio.run(server.start()),
    ):
        with pytest.raises(RuntimeError, match="the server is not running; call it inside its `with` block"):
            call()
    with server:
        assert server.connections == 0
        with pytest.raises(RuntimeError, match="is already running"):
            server.__enter__()
    with pytest.raises(RuntimeError, match="the server is not running; call it inside its `with` block"):
        _ = server.connections
    with server:
        assert server.messages("T") == []


def test_a_start_that_fails_raises_and_leaves_no_thread() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        ThreadedRocketMQ(port=taken.getsockname()[1]).__enter__()


def test_nothing_public_was_forgotten() -> None:
    for name, member in inspect.getmembers_static(EmbeddedRocketMQ):
        if name.startswith("_") or not (inspect.isfunction(member) or isinstance(member, property)):
            continue
        own = inspect.getattr_static(ThreadedRocketMQ, name)
        assert own is not member, name
        assert inspect.iscoroutinefunction(own) == inspect.iscoroutinefunction(member)
        if inspect.isfunction(member):
            assert inspect.signature(own) == inspect.signature(member)


def test_run_in_the_thread_of_the_server_is_refused() -> None:
    async def waits_for_itself(server: ThreadedRocketMQ) -> None:
        server.run(asyncio.sleep(0))

    with (
        ThreadedRocketMQ() as server,
        pytest.raises(RuntimeError, match=r"run\(\) in the server's own thread would wait for itself; await"),
    ):
        server.run(waits_for_itself(server))
