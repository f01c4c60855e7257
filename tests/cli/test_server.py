"""``rmq server``: a broker for other processes."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from typing import Any

import pytest

from rmq_async import Admin, Consumer, Message, MessageExt, Producer, PullConsumer
from rmq_async.testing._ports import find_ports

from .support import Rmq, end, one_line, start

FREE = ("--port", "0", "--json")


async def address(process: asyncio.subprocess.Process) -> dict[str, Any]:
    assert process.stdout is not None
    announced: dict[str, Any] = json.loads(await asyncio.wait_for(process.stdout.readline(), 60))
    return announced


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.deep)])
async def test_clients_use_it_until_a_signal_ends_it_also_while_they_are_connected(number: signal.Signals) -> None:
    process = await start("server", *FREE)
    try:
        namesrv = (await address(process))["namesrv"]
        async with Producer("g", namesrv=namesrv) as producer, PullConsumer("g", namesrv=namesrv) as consumer:
            await producer.send(Message("t", b"hello"))
            assert [message.body async for message in consumer.read("t")] == [b"hello"]
        idle = await asyncio.open_connection(*namesrv.split(":"))
        process.send_signal(number)
        ended = await end(process)
        assert (ended.code, ended.err) == (0, "")
        idle[1].close()
    finally:
        if process.returncode is None:
            process.kill()


async def test_it_says_where_its_name_server_and_brokers_are() -> None:
    process = await start("server", *FREE, "--brokers", "3")
    announced = await address(process)
    assert list(announced["brokers"]) == ["broker-a", "broker-b", "broker-c"]
    assert len({announced["namesrv"], *announced["brokers"].values()}) == 4
    process.terminate()
    assert (await end(process)).code == 0


async def test_people_read_the_address_first() -> None:
    process = await start("server", "--port", "0")
    assert process.stdout is not None
    first = (await process.stdout.readline()).decode().split()
    assert first[:2] == ["name", "server"]
    host, port = first[2].split(":")
    (await asyncio.open_connection(host, int(port)))[1].close()
    process.terminate()
    assert (await end(process)).code == 0


def test_a_port_that_is_taken_is_one_line_and_code_1(rmq_alone: Rmq) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = rmq_alone("server", "--port", str(port))
    assert (ended.code, ended.out) == (1, "")
    assert f"cannot listen on 127.0.0.1:{port}: " in one_line(ended.err)
    assert one_line(ended.err).endswith("; give another --port (0: a free one) or --host")


async def test_running_clients_go_on_with_a_server_that_is_started_again_on_the_same_ports() -> None:
    port, broker_port = find_ports([(0,), (0, -2)])
    arguments = ("server", "--json", "--port", str(port), "--broker-port", str(broker_port), "--topic", "OrderTopic")
    handled: asyncio.Queue[bytes] = asyncio.Queue()

    async def handle(message: MessageExt) -> None:
        handled.put_nowait(message.body)

    worker = Consumer("billing", namesrv=f"127.0.0.1:{port}", start_from="earliest", stop_timeout=0.0)
    worker.subscribe("OrderTopic", handle)
    process = await start(*arguments)
    try:
        assert (await address(process))["brokers"] == {"broker-a": f"127.0.0.1:{broker_port}"}
        async with Producer("shop", namesrv=f"127.0.0.1:{port}", topics=["OrderTopic"]) as shop, worker:
            await shop.send(Message("OrderTopic", b"before"))
            assert await asyncio.wait_for(handled.get(), 60) == b"before"
            process.terminate()
            await end(process)
            process = await start(*arguments)
            await address(process)
            async with asyncio.timeout(60):
                while handled.empty():
                    await shop.send(Message("OrderTopic", b"after"), timeout=10.0)
                    await asyncio.sleep(0.01)
            assert handled.get_nowait() == b"after"
        process.terminate()
        assert (await end(process)).code == 0
    finally:
        if process.returncode is None:
            process.kill()


async def test_a_topic_that_is_given_has_four_queues_on_each_broker() -> None:
    process = await start("server", *FREE, "--brokers", "2", "--topic", "OrderTopic", "--topic", "PaidTopic")
    try:
        async with Admin(namesrv=(await address(process))["namesrv"]) as admin:
            for topic in ("OrderTopic", "PaidTopic"):
                queues = (await admin.topic_route(topic)).queue_datas
                assert {data.broker_name: data.write_queue_nums for data in queues} == {"broker-a": 4, "broker-b": 4}
    finally:
        process.terminate()
        assert (await end(process)).code == 0


def test_a_topic_whose_name_is_invalid_is_one_line_and_code_2(rmq_alone: Rmq) -> None:
    ended = rmq_alone("server", *FREE, "--topic", "a b")
    assert (ended.code, ended.out) == (2, "")
    assert "'a b'" in one_line(ended.err)


@pytest.mark.parametrize("taken_below", [0, 2])
def test_a_port_of_a_broker_that_is_taken_is_one_line_and_code_1(taken_below: int, rmq_alone: Rmq) -> None:
    (port,) = find_ports([(0, -2, 8, 10)])
    with socket.create_server(("127.0.0.1", port + 10 - taken_below)):
        ended = rmq_alone("server", *FREE, "--brokers", "2", "--broker-port", str(port))
    assert (ended.code, ended.out) == (1, "")
    assert f"cannot listen on 127.0.0.1:{port + 10} and {port + 8}, the ports of a broker: " in one_line(ended.err)
    assert one_line(ended.err).endswith("; give another --broker-port (0: free ones) or --host")


def test_a_host_that_is_none_of_ours_is_one_line_and_code_1(rmq_alone: Rmq) -> None:
    ended = rmq_alone("server", "--host", "192.0.2.1", "--port", "0")
    assert ended.code == 1
    assert "cannot listen on 192.0.2.1:0" in one_line(ended.err)


async def test_an_address_that_others_can_reach_earns_a_warning() -> None:
    process = await start("server", *FREE, "--host", "0.0.0.0")
    announced = await address(process)
    assert announced["namesrv"].startswith("127.0.0.1:")
    process.terminate()
    ended = await end(process)
    assert ended.code == 0
    assert "without access control" in one_line(ended.err)


@pytest.mark.parametrize(
    "wrong",
    [
        *(("--brokers", "0"), ("--brokers", "65"), ("--port", "70000"), ("--port", "x"), ("--max-memory", "0")),
        *(("--broker-port", "2"), ("--broker-port", "65530", "--brokers", "2")),
    ],
)
def test_wrong_numbers_are_wrong_use(wrong: tuple[str, ...], rmq_alone: Rmq) -> None:
    ended = rmq_alone("server", *wrong)
    assert (ended.code, ended.out) == (2, "")
    assert wrong[0] in one_line(ended.err)
