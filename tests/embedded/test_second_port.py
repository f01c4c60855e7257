"""The second port of brokers, and what unit mode leaves behind: the same on embedded and, in tests/cluster, on real ones."""

from __future__ import annotations

import asyncio
import socket
import uuid

import pytest

from rmq_async import Admin, Message, Producer
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.embedded.sockets import listen
from rmq_async.testing._ports import find_ports
from rmq_protocol.constants import RequestCode, ResponseCode

from ..support.fakes import RawClient


def second(address: str) -> str:
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) - 2}"


async def check_second_port(namesrv: str, address: str) -> None:
    """Messages, heartbeats and questions are taken there, pulls and pops are not."""
    topic = f"vip_{uuid.uuid4().hex[:12]}"
    async with Admin(namesrv=namesrv, request_timeout=10.0) as admin:
        await admin.create_topic(topic, queues=1)
        async with Producer(f"P{topic}", namesrv=namesrv, vip_channel=True) as sender:
            result = await sender.send(Message(topic, b"by the second port"))
            await sender.send_batch([Message(topic, b"1"), Message(topic, b"2")])
        assert await admin.max_offset(result.queue) == 3
    async with RawClient(second(address)) as client:
        for code in (
            RequestCode.PULL_MESSAGE,
            RequestCode.LITE_PULL_MESSAGE,
            RequestCode.POP_MESSAGE,
            RequestCode.NOTIFICATION,
            RequestCode.POLLING_INFO,
        ):
            answer = await client.ask(code, {"topic": topic, "queueId": "0", "consumerGroup": "g"})
            assert (answer.code, answer.remark) == (
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f" request type {int(code)} not supported",
            )
        answer = await client.ask(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": "0"})
        assert (answer.code, (answer.ext_fields or {})["offset"]) == (0, "3")


async def check_unit_flags(namesrv: str) -> None:
    """topicSysFlag of the topics that sends create; those that are there keep theirs."""
    name = uuid.uuid4().hex[:12]
    topics = {f"unit_{name}": 1, f"%RETRY%unit_{name}": 2, f"plain_{name}": 0, f"there_{name}": 0}
    async with (
        Admin(namesrv=namesrv, request_timeout=10.0) as admin,
        Producer("units", namesrv=namesrv, unit_mode=True, unit_name="east") as east,
        Producer("units", namesrv=namesrv) as plain,
    ):
        await admin.create_topic(f"there_{name}", queues=1)
        for topic in topics:
            await (plain if topic.startswith("plain") else east).send(Message(topic, b"x"))
        flags = {topic: (await admin.topic_route(topic)).queue_datas[0].topic_sys_flag for topic in topics}
    assert flags == topics


async def test_second_port_takes_no_pulls_and_pops(server: EmbeddedRocketMQ) -> None:
    await check_second_port(server.namesrv, server.brokers["broker-a"])


async def test_unit_mode_marks_created_topics(server: EmbeddedRocketMQ) -> None:
    await check_unit_flags(server.namesrv)


async def test_second_ports_outlast_restarts() -> None:
    async with EmbeddedRocketMQ(brokers=5) as server:
        addresses = dict(server.brokers)
        for _ in range(2):
            for address in addresses.values():
                async with RawClient(second(address)) as client:
                    assert (await client.ask(RequestCode.GET_MAX_OFFSET, {"topic": "TBW102", "queueId": "0"})).code == 0
            await server.stop()
            for address in addresses.values():
                with socket.socket() as probe:
                    host, _, port = second(address).rpartition(":")
                    assert probe.connect_ex((host, int(port))) != 0, "it is closed with the server"
            await server.start()
            assert server.brokers == addresses


async def test_brokers_with_given_ports_are_ten_apart() -> None:
    (first,) = find_ports([(0, -2, 8, 10)])
    async with EmbeddedRocketMQ(brokers=2, broker_port=first) as server:
        assert server.brokers == {"broker-a": f"127.0.0.1:{first}", "broker-b": f"127.0.0.1:{first + 10}"}
        for address in server.brokers.values():
            async with RawClient(second(address)) as client:
                assert (await client.ask(RequestCode.GET_MAX_OFFSET, {"topic": "TBW102", "queueId": "0"})).code == 0
        with pytest.raises(OSError, match=r"(?i)address already in use"):
            await EmbeddedRocketMQ(broker_port=first + 2).start()


@pytest.mark.virtual_time
async def test_stalled_broker_answers_on_no_port(server: EmbeddedRocketMQ) -> None:
    async with Producer("g", namesrv=server.namesrv, vip_channel=True, retries=0) as sender:
        await sender.send(Message("T", b"x"))
        server.stall("broker-a")
        try:
            await sender.send(Message("T", b"y"), timeout=0.2)
        except TimeoutError:
            stalled = True
        else:
            stalled = False
        server.resume("broker-a")
        assert stalled


class Below:
    """Stands for SECOND_BELOW, and gives these ports instead of one below the first."""

    def __init__(self, *ports: int) -> None:
        self.ports = [*ports]

    def __rsub__(self, first: int) -> int:
        return self.ports.pop(0)


async def test_second_port_is_none_that_another_process_has_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as held, socket.socket() as free:
        for each in (held, free):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.bind(("127.0.0.1", 0))
        ports = [each.getsockname()[1] for each in (held, free)]
        free.close()
        monkeypatch.setattr("rmq_async.embedded.sockets.SECOND_BELOW", Below(*ports))
        first, second = await listen("127.0.0.1", 0, asyncio.Protocol, asyncio.Protocol)
        assert second.sockets[0].getsockname()[1] == ports[1]
        for server in (first, second):
            server.close()
            await server.wait_closed()
