"""Host names are looked up in threads of the library's own, for which nothing has to wait."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvloop

from rmq_async import ConnectError, Message, NameServerError, Producer
from rmq_async._lookups import MAX_THREADS, look_up
from rmq_async.config import ClientConfig
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.testing import ScriptedPeer, routes_to
from rmq_async.transport import ConnectionPool

from ..support.fakes import Names, resolving
from ..support.waiting import until

pytestmark = pytest.mark.interpreters


@pytest.fixture
def resolver() -> Iterator[Names]:
    with resolving(**{"unknown.example": []}) as names:
        yield names


def named(address: str, host: str = "host.example") -> str:
    return f"{host}:{address.rpartition(':')[2]}"


async def test_names_are_found_while_blocking_calls_fill_the_default_executor(resolver: Names) -> None:
    stop = threading.Event()
    async with EmbeddedRocketMQ() as server, ScriptedPeer(aside=routes_to(named(server.brokers["broker-a"]))) as names:
        jobs = [asyncio.ensure_future(asyncio.to_thread(stop.wait, 600)) for _ in range(40)]
        try:
            async with Producer("group", namesrv=named(names.address), request_timeout=60) as producer:
                assert (await producer.send(Message("T", b"x"), timeout=60)).attempts == 1
        finally:
            stop.set()
            await asyncio.gather(*jobs)
    assert all(thread.name.startswith("rmq_async look-up") for thread in resolver.threads)
    assert all(thread.daemon for thread in resolver.threads)


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
async def test_loop_ends_while_a_look_up_hangs(factory: Callable[[], asyncio.AbstractEventLoop], resolver: Names) -> None:
    # Real time: the look-up hangs in a thread.
    resolver.hanging.add("host.example")

    async def main() -> None:
        with pytest.raises(NameServerError, match="no connection in its share of the time"):
            await Producer("group", namesrv="host.example:9876", request_timeout=0.05).start()

    def runs() -> list[bool]:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main())
        return [thread.is_alive() for thread in resolver.threads]

    assert await asyncio.to_thread(runs) == [True]


async def test_callers_of_one_name_share_a_look_up(resolver: Names) -> None:
    resolver.hanging.add("host.example")
    calls = [asyncio.ensure_future(look_up("host.example")) for _ in range(100)]
    await until(lambda: resolver.asked, 5.0)
    calls.append(asyncio.ensure_future(look_up("host.example")))
    calls[0].cancel()
    await asyncio.sleep(0)
    resolver.go.set()
    found = await asyncio.gather(*calls[1:])
    assert {infos[0][4][0] for infos in found} == {"127.0.0.1"}
    assert resolver.asked == ["host.example"]


async def test_each_caller_gets_an_error_of_its_own(resolver: Names) -> None:
    errors = await asyncio.gather(*[look_up("unknown.example") for _ in range(2)], return_exceptions=True)
    assert [type(error) for error in errors] == [socket.gaierror] * 2
    assert errors[0] is not errors[1]
    assert errors[0].args == errors[1].args  # type: ignore[union-attr]


async def test_names_that_hang_stop_no_other(resolver: Names) -> None:
    """As long as they leave a thread; then another name waits for the first of them that ends."""
    hanging = [f"host{number}.example" for number in range(MAX_THREADS)]
    resolver.hanging.update(hanging)
    calls = [asyncio.ensure_future(look_up(name)) for name in hanging[1:]]
    await until(lambda: len(resolver.asked) == MAX_THREADS - 1, 5.0)
    for _ in range(3):
        assert await look_up("quick.example")
    calls.append(asyncio.ensure_future(look_up(hanging[0])))
    late = asyncio.ensure_future(look_up("late.example"))
    await until(lambda: hanging[0] in resolver.asked, 5.0)
    await asyncio.sleep(0.01)
    assert "late.example" not in resolver.asked
    resolver.go.set()
    await asyncio.gather(*calls, late)


async def test_addresses_need_no_thread(resolver: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_threads(monkeypatch)
    assert (await look_up("127.0.0.1", 80))[0][4] == ("127.0.0.1", 80)
    assert (await look_up("::1"))[0][4][0] == "::1"
    assert not resolver.asked


def refuse_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)


async def test_threads_are_refused(resolver: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    config = ClientConfig(namesrv="host.example:9876", request_timeout=0.3)
    async with EmbeddedRocketMQ() as server:
        with monkeypatch.context() as refused:
            refuse_threads(refused)
            pool = ConnectionPool(config)
            with pytest.raises(ConnectError, match=r"no thread can be started .*raise the limit of threads") as caught:
                await pool.connect("host.example:10911", 1.0)
            assert not caught.value.maybe_stored
            await pool.aclose()
            with pytest.raises(NameServerError, match="no thread can be started"):
                await Producer("group", client=config).start()
        async with Producer("group", namesrv=named(server.namesrv)) as producer:
            assert (await producer.send(Message("T", b"x"))).attempts == 1


async def test_embedded_server_by_name(resolver: Names) -> None:
    async with EmbeddedRocketMQ(host="host.example") as server:
        assert server.namesrv.startswith("127.0.0.1:")
    assert resolver.asked


async def test_loop_that_resolves_by_itself_is_asked(resolver: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    async def own(host: str, port: int | None, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.9", port or 0))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", own)
    assert (await look_up("host.example"))[0][4] == ("127.0.0.9", 0)
    assert not resolver.asked
