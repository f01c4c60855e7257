"""Start, stop, statistics, several brokers, the memory bound: the object a test holds in its hands."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
import time

import pytest

from rmq_async.embedded import EmbeddedRocketMQ, ManualClock
from rmq_protocol.constants import RequestCode

from ..support.fakes import RawClient, pull_fields, send_fields
from ..support.leftovers import start_twice_at_once
from ..support.waiting import until

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
MAX = RequestCode.GET_MAX_OFFSET
MIN = RequestCode.GET_MIN_OFFSET


async def test_addresses_before_and_after_the_start() -> None:
    server = EmbeddedRocketMQ(brokers=3)
    with pytest.raises(RuntimeError):
        _ = server.namesrv
    assert server.brokers == {}
    async with server:
        addresses = [server.namesrv, *server.brokers.values()]
        assert list(server.brokers) == ["broker-a", "broker-b", "broker-c"]
        assert len(set(addresses)) == 4
        assert all(address.startswith("127.0.0.1:") for address in addresses)
        with pytest.raises(RuntimeError):
            await server.start()


async def test_a_name_is_looked_up() -> None:
    async with EmbeddedRocketMQ(host="localhost") as server, RawClient(server.namesrv) as names:
        assert server.namesrv.startswith("127.0.0.1:")
        assert (await names.ask(ROUTE, {"topic": "TBW102"})).code == 0


@pytest.mark.parametrize(
    "options",
    [
        *({"brokers": 0}, {"brokers": 65}, {"max_memory": 0}, {"port": -1}, {"port": 65_536}),
        *({"broker_port": -1}, {"broker_port": 2}, {"broker_port": 65_536}, {"broker_port": 65_526, "brokers": 2}),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        EmbeddedRocketMQ(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"brokers": None},
        {"brokers": True},
        {"port": "9876"},
        {"max_memory": 1.5},
        {"delay_levels": 1},
        {"transaction_timeout": "6"},
        {"transaction_check_interval": None},
        {"transaction_check_max": 1.5},
        {"host": 7},
        *({name: "no"} for name in ("auto_create_topics", "auto_create_groups", "server_side_reset", "property_filter")),
        *({name: 0} for name in ("order_conf", "pop_retry_v2")),
    ],
)
def test_options_of_a_wrong_type_are_refused(options: dict[str, object]) -> None:
    (name,) = options
    with pytest.raises(TypeError, match=f"^{name} must be .*, not {options[name]!r}$"):
        EmbeddedRocketMQ(**options)  # type: ignore[arg-type]


def test_code_of_refused_give_backs_of_a_wrong_type_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^code must be a whole number, .*, not 'busy'$"):
        EmbeddedRocketMQ().refuse_give_backs("busy")  # type: ignore[arg-type]


def test_an_unknown_broker_is_refused_by_the_names_of_all_before_the_first_start() -> None:
    with pytest.raises(ValueError, match=r"^there is no broker 'broker-z'; there are broker-a, broker-b$"):
        EmbeddedRocketMQ(brokers=2).truncate("broker-z", 1)


def test_a_clock_that_is_none_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^clock must have the methods of a Clock; 1 lacks now_ms and call_at$"):
        EmbeddedRocketMQ(clock=1)  # type: ignore[arg-type]
    with pytest.raises(
        TypeError, match=r"^clock must be an object .*; <class '.*ManualClock'> is a class, give an object of it$"
    ):
        EmbeddedRocketMQ(clock=ManualClock)  # type: ignore[arg-type]


def test_a_delay_level_of_a_wrong_type_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^delay level 2 must be a number, not 'x'$"):
        EmbeddedRocketMQ(delay_levels=(1, "x"))  # type: ignore[arg-type]


async def assert_refused(*addresses: str) -> None:
    for address in addresses:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address.split(":"))


@pytest.mark.parametrize("turns", range(12))
async def test_stop_during_start_leaves_nothing_that_listens(turns: int) -> None:
    server = EmbeddedRocketMQ(brokers=2)
    start = asyncio.create_task(server.start())
    for _ in range(turns + 1):
        await asyncio.sleep(0)
    await server.stop()
    await start
    await assert_refused(server.namesrv, *server.brokers.values())
    async with server, RawClient(server.namesrv) as names:
        assert (await names.ask(ROUTE, {"topic": "TBW102"})).code == 0


@pytest.mark.parametrize("turns", range(8))
async def test_cancelled_start_leaves_its_ports_free(turns: int) -> None:
    server = EmbeddedRocketMQ()
    async with server:
        ports = [int(address.rpartition(":")[2]) for address in (server.namesrv, server.brokers["broker-a"])]
    start = asyncio.create_task(server.start())
    for _ in range(turns):
        await asyncio.sleep(0)
    start.cancel()
    await asyncio.gather(start, return_exceptions=True)
    await server.stop()
    await asyncio.sleep(0)
    for port in (*ports, ports[1] - 2):
        socket.create_server(("127.0.0.1", port)).close()


async def test_two_starts_at_once_are_one() -> None:
    server = EmbeddedRocketMQ()
    await start_twice_at_once(server, lambda: server.namesrv, "this server is already running; call stop() first")


async def test_start_during_stop_waits_for_its_end() -> None:
    server = EmbeddedRocketMQ()
    await server.start()
    async with RawClient(server.brokers["broker-a"]) as broker:
        await broker.send("T", b"kept")
        stop = asyncio.create_task(server.stop())
        await asyncio.sleep(0)
        await server.start()
        assert stop.done()
    async with RawClient(server.brokers["broker-a"]) as broker:
        await broker.send("T", b"new")
    assert [message.body for message in server.messages("T")] == [b"kept", b"new"]
    await server.stop()


def test_stop_and_start_on_another_loop_are_independent_of_the_first() -> None:
    server = EmbeddedRocketMQ()

    async def race() -> None:
        start = asyncio.create_task(server.start())
        await asyncio.sleep(0)
        await server.stop()
        await start

    for _ in range(2):
        asyncio.run(race())


async def test_a_taken_port_is_an_error_that_leaves_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = EmbeddedRocketMQ(port=taken.getsockname()[1])
        with pytest.raises(OSError, match="in use"):
            await server.start()
        assert server.connections == 0
        await server.stop()


async def test_host_that_is_no_name_is_an_error_that_leaves_nothing() -> None:
    server = EmbeddedRocketMQ(host="a..b")
    with pytest.raises(OSError, match=r"host must be a name or an IP address, not 'a\.\.b'"):
        await server.start()
    assert server.connections == 0
    await server.stop()


@pytest.mark.virtual_time
async def test_stop_closes_every_connection_and_may_be_repeated(
    server: EmbeddedRocketMQ, broker: RawClient, names: RawClient
) -> None:
    await broker.create_topic("T")
    broker.write(11, pull_fields("T", sysFlag="6", suspendTimeoutMillis="20000"))
    await asyncio.sleep(0.02)
    assert server.connections == 2
    await asyncio.gather(server.stop(), server.stop())
    await server.stop()
    assert server.connections == 0
    assert await broker.is_closed()
    assert await names.is_closed()
    with pytest.raises(OSError):
        async with RawClient(server.namesrv):
            pass


@pytest.mark.parametrize("turns", range(5))
def test_connections_made_while_it_stops_are_closed(turns: int) -> None:
    """asyncio's server loses one that it has accepted in the turn in which it is closed."""

    async def main() -> None:
        server = EmbeddedRocketMQ()
        await server.start()
        host, _, port = server.namesrv.rpartition(":")
        connecting = [asyncio.create_task(asyncio.open_connection(host, int(port))) for _ in range(20)]
        for _ in range(turns):
            await asyncio.sleep(0)
        await server.stop()
        for ended in await asyncio.gather(*connecting, return_exceptions=True):
            if not isinstance(ended, BaseException):
                reader, writer = ended
                with contextlib.suppress(ConnectionError):
                    assert await asyncio.wait_for(reader.read(), 60) == b""
                writer.close()

    asyncio.run(main())
    gc.collect()


@pytest.mark.parametrize("turns", range(1, 5))
async def test_stop_that_is_cancelled_closes_its_ports(turns: int) -> None:
    server = EmbeddedRocketMQ()
    await server.start()
    addresses = [server.namesrv, *server.brokers.values()]
    stopping = asyncio.create_task(server.stop())
    for _ in range(turns):
        await asyncio.sleep(0)
    stopping.cancel()
    await asyncio.gather(stopping, return_exceptions=True)
    await server.stop()
    await assert_refused(*addresses)


async def test_answers_already_made_leave_before_the_end(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    await broker.send("T", bytes(1_000_000))
    broker.write(11, pull_fields("T"))
    while not server.requests[11]:
        await asyncio.sleep(0)
    _, response = await asyncio.gather(server.stop(), broker.read())
    assert len(response.body) > 1_000_000


@pytest.mark.virtual_time
async def test_stop_does_not_wait_for_a_peer_that_does_not_read(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    await broker.send("T", bytes(4_000_000))
    for _ in range(3):
        broker.write(11, pull_fields("T"))
    await until(lambda: server.requests[11] > 0)
    began = time.monotonic()
    await server.stop()
    assert time.monotonic() - began == pytest.approx(0.5, abs=0.01)


async def test_a_restart_keeps_ports_and_messages(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    await broker.send("T")
    before = (server.namesrv, server.brokers)
    await server.stop()
    await server.start()
    assert (server.namesrv, server.brokers) == before
    async with RawClient(server.brokers["broker-a"]) as again:
        assert (await again.pull("T")).code == 0
        assert ((await again.send("T")).ext_fields or {})["queueOffset"] == "1"


async def test_two_servers_know_nothing_of_each_other() -> None:
    async with EmbeddedRocketMQ() as one, EmbeddedRocketMQ() as two, RawClient(one.brokers["broker-a"]) as client:
        await client.send("T")
        assert (len(one.messages("T")), len(two.messages("T"))) == (1, 0)


async def test_statistics_count_requests_and_connections_by_server(
    server: EmbeddedRocketMQ, broker: RawClient, names: RawClient
) -> None:
    await names.ask(ROUTE, {"topic": "nope"})
    await names.ask(ROUTE, {"topic": "TBW102"})
    await broker.send("T")
    await broker.send("a b")
    await broker.ask(9999)
    async with RawClient(server.brokers["broker-a"]) as other:
        await other.send("T", code=320, m="false")
        assert server.connections == 3
    await broker.ask(9999)
    assert server.requests == {ROUTE: 2, 310: 2, 320: 1, 9999: 2}
    by_broker = server.statistics("broker-a")
    assert by_broker.requests == {310: 2, 320: 1, 9999: 2}
    assert (by_broker.connections, by_broker.accepted, by_broker.refused) == (1, 2, 0)
    assert server.statistics("namesrv").requests == {ROUTE: 2}


async def test_messages_of_all_brokers_come_in_store_order() -> None:
    async with EmbeddedRocketMQ(brokers=2) as server:
        clients = [RawClient(address) for address in server.brokers.values()]
        async with clients[0], clients[1]:
            for index in range(20):
                await clients[index % 3 % 2].send("T", b"%d" % index, queue=index % 4)
                await clients[0].send("other")
        assert [message.body for message in server.messages("T")] == [b"%d" % index for index in range(20)]
        assert server.messages("nope") == []


async def test_clear_forgets_messages_and_counts_on(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    for _ in range(3):
        await broker.send("T")
    server.clear()
    assert server.messages("T") == []
    assert [await broker.offset(code, "T") for code in (MIN, MAX)] == [3, 3]
    assert (await broker.pull("T", offset=0)).code == 21
    await broker.send("T", b"new")
    assert [message.queue_offset for message in server.messages("T")] == [3]
    assert (await broker.pull("T", offset=3)).code == 0


@pytest.mark.virtual_time
async def test_above_the_memory_bound_the_oldest_go_and_the_minimum_moves() -> None:
    async with EmbeddedRocketMQ(max_memory=200_000) as server, RawClient(server.brokers["broker-a"]) as broker:
        await broker.send("old", b"first")
        for index in range(3000):
            broker.write(310, send_fields("T", queue=index % 2), b"%04d" % index + bytes(96))
            if index % 100 == 99:
                for _ in range(100):
                    assert (await broker.read()).code == 0
        kept = server.messages("T")
        assert server.messages("old") == []
        assert [message.body[:4] for message in kept] == [b"%04d" % index for index in range(3000 - len(kept), 3000)]
        assert 0.8 * 200_000 < sum(message.store_size + 128 for message in kept) <= 200_000
        for queue_id in (0, 1):
            low, high = [await broker.offset(code, "T", queue_id) for code in (MIN, MAX)]
            assert high == 1500
            assert low == min(message.queue_offset for message in kept if message.queue.queue_id == queue_id)
            too_small = await broker.pull("T", queue_id, low - 1)
            assert (too_small.code, (too_small.ext_fields or {})["nextBeginOffset"]) == (21, str(low))
            assert (await broker.pull("T", queue_id, low)).code == 0
        gone = await broker.ask(RequestCode.QUERY_CONSUMER_OFFSET, {"consumerGroup": "CG", "topic": "T", "queueId": "0"})
        assert gone.code == 22
        earliest = await broker.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, {"topic": "T", "queueId": "0"})
        first = next(message for message in kept if message.queue.queue_id == 0)
        assert earliest.ext_fields == {"timestamp": str(first.store_time_ms)}


async def test_one_message_above_the_bound_is_kept_alone() -> None:
    async with EmbeddedRocketMQ(max_memory=1000) as server, RawClient(server.brokers["broker-a"]) as broker:
        await broker.send("T", b"small")
        assert (await broker.send("T", bytes(100_000))).code == 0
        assert [len(message.body) for message in server.messages("T")] == [100_000]


async def test_other_than_loopback_is_bound_only_when_asked_and_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="rmq_async.embedded"):
        async with EmbeddedRocketMQ():
            pass
        assert not caplog.records
        async with EmbeddedRocketMQ(host="0.0.0.0") as server:
            assert server.namesrv.startswith("127.0.0.1:")
            async with RawClient(server.namesrv) as names:
                body = (await names.ask(ROUTE, {"topic": "TBW102"})).body
        assert b'"127.0.0.1:' in body
    assert "0.0.0.0" in caplog.text
