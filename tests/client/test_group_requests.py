"""Requests of brokers for consumer groups, served by listeners: through the embedded broker, and from a scripted one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rmq_async.client import ClientInstance
from rmq_async.config import ClientConfig
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.errors import ConfigError
from rmq_protocol.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    GetConsumerStatusBody,
    decode_body,
    encode_body,
)
from rmq_protocol.command import RemotingCommand, make_response
from rmq_protocol.constants import RequestCode
from rmq_protocol.heartbeat import ConsumerData
from rmq_protocol.stored import decode_messages

from ..support.fakes import Link, NameServer, Peer, RawClient, route
from .support import client, until

NOTIFY, RESET, STATUS = 40, RequestCode.RESET_CONSUMER_CLIENT_OFFSET, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
RUNNING, DIRECTLY = RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY


class Member:
    """Answers 307 at once, 309 after ``gate``; keeps what came."""

    def __init__(self) -> None:
        self.notices = 0
        self.served: list[RemotingCommand] = []
        self.gate = asyncio.Event()
        self.broken = False

    def members_changed(self) -> None:
        self.notices += 1
        if self.broken:
            raise ZeroDivisionError("a bug")

    def serve(self, command: RemotingCommand) -> Any:
        self.served.append(command)
        if command.code == RUNNING:
            return make_response(command, 0, body=encode_body(ConsumerRunningInfo({"PROP_CONSUME_TYPE": "CONSUME_PASSIVELY"})))
        return self.consume(command) if command.code == DIRECTLY else None

    async def consume(self, command: RemotingCommand) -> RemotingCommand:
        await self.gate.wait()
        return make_response(command, 0, body=encode_body(ConsumeMessageDirectlyResult("CR_SUCCESS", spent_time_mills=3)))


@pytest.fixture
async def server(nothing_left: list[dict[str, Any]]) -> AsyncIterator[EmbeddedRocketMQ]:
    async with EmbeddedRocketMQ() as server:
        yield server


@pytest.fixture
async def instance(server: EmbeddedRocketMQ) -> AsyncIterator[ClientInstance]:
    """A client that members may join; its heartbeats go to broker-a."""
    instance = await ClientInstance.acquire(ClientConfig(namesrv=server.namesrv, instance_name="c1"))
    try:
        await instance.routes.get("TBW102", 1.0)
        yield instance
    finally:
        await instance.release()


async def join(instance: ClientInstance, group: str) -> Member:
    member = Member()
    instance.group_requests.add(group, member)
    instance.register_consumer(ConsumerData(group))
    await instance.heartbeats.send_first(1.0)
    await until(lambda: member.notices == 1)
    return member


async def test_a_listener_serves_the_requests_for_its_group(server: EmbeddedRocketMQ, instance: ClientInstance) -> None:
    member = await join(instance, "CG")
    async with RawClient(server.brokers["broker-a"]) as admin:
        header = {"consumerGroup": "CG", "clientId": instance.client_id}
        answer = await admin.ask(RUNNING, header)
        assert decode_body(ConsumerRunningInfo, answer.body).properties == {"PROP_CONSUME_TYPE": "CONSUME_PASSIVELY"}

        await admin.send("T", b"again")
        (message,) = server.messages("T")
        admin.write(DIRECTLY, {**header, "msgId": message.offset_msg_id})
        await until(lambda: len(member.served) == 2)
        served = member.served[1]
        assert (served.ext_fields or {})["brokerName"] == "broker-a"
        assert [each.body for each in decode_messages(served.body).messages] == [b"again"]
        member.gate.set()
        answer = await admin.read()
        assert decode_body(ConsumeMessageDirectlyResult, answer.body).consume_result == "CR_SUCCESS"


async def test_a_listener_that_was_removed_serves_nothing(server: EmbeddedRocketMQ, instance: ClientInstance) -> None:
    member = await join(instance, "CG")
    instance.group_requests.remove("CG")
    instance.group_requests.remove("CG")
    async with RawClient(server.brokers["broker-a"]) as admin:
        for code in (RUNNING, DIRECTLY):
            ext = {"consumerGroup": "CG", "clientId": instance.client_id}
            if code == DIRECTLY:
                await admin.send("T")
                ext["msgId"] = server.messages("T")[0].offset_msg_id
            answer = await admin.ask(code, ext)
            assert (answer.code, answer.remark) == (1, "The Consumer Group <CG> not exist in this consumer")
    assert member.served == []


async def test_a_second_listener_of_a_group_is_a_mistake(instance: ClientInstance) -> None:
    instance.group_requests.add("CG", Member())
    with pytest.raises(ConfigError, match="consumer group CG is already in use"):
        instance.group_requests.add("CG", Member())


async def test_notices_go_to_the_group_they_name(nothing_left: list[dict[str, Any]]) -> None:
    def silence(link: Link, request: RemotingCommand) -> None:
        pass

    async with Peer(silence) as broker, NameServer(T=route(broker.address)) as names, client(names) as instance:
        first, second = Member(), Member()
        instance.group_requests.add("A", first)
        instance.group_requests.add("B", second)
        await instance.pool.connect(broker.address, 1.0)
        link = await broker.accepted()
        seen = []
        for ext in ({"consumerGroup": "A"}, {"consumerGroup": "B"}, {"consumerGroup": "C"}, {}, None):
            link.ask(RemotingCommand(code=NOTIFY, opaque=len(seen), flag=2, ext_fields=ext))
            link.ask(RemotingCommand(code=999, opaque=100))
            await until(lambda: len(link.requests) > len(seen))
            seen.append((first.notices, second.notices))
        assert seen == [(1, 0), (1, 1), (1, 1), (2, 2), (3, 3)]

        first.broken = True
        link.ask(RemotingCommand(code=NOTIFY, flag=2))
        await until(lambda: second.notices == 4)
        assert [type(error["exception"]) for error in nothing_left] == [ZeroDivisionError]
        nothing_left.clear()


async def test_requests_for_unknown_groups_are_answered_as_by_java() -> None:
    def silence(link: Link, request: RemotingCommand) -> None:
        pass

    async with Peer(silence) as broker, NameServer(T=route(broker.address)) as names, client(names) as instance:
        member = Member()
        instance.group_requests.add("A", member)
        await instance.pool.connect(broker.address, 1.0)
        link = await broker.accepted()
        link.ask(RemotingCommand(code=RESET, opaque=1, ext_fields={"group": "A", "topic": "T", "timestamp": "1"}))
        link.ask(RemotingCommand(code=RESET, opaque=2, ext_fields={"group": "B", "topic": "T", "timestamp": "1"}))
        link.ask(RemotingCommand(code=STATUS, opaque=3, ext_fields={"group": "B", "topic": "T"}))
        link.ask(RemotingCommand(code=RUNNING, opaque=4, ext_fields={"consumerGroup": "B"}))
        link.ask(RemotingCommand(code=DIRECTLY, opaque=5))
        await until(lambda: len(link.requests) == 3)
        assert [answer.opaque for answer in link.requests] == [3, 4, 5]
        assert decode_body(GetConsumerStatusBody, link.requests[0].body) == GetConsumerStatusBody()
        assert [(answer.code, answer.remark) for answer in link.requests[1:]] == [
            (1, "The Consumer Group <B> not exist in this consumer"),
            (1, "The Consumer Group <> not exist in this consumer"),
        ]
        assert [command.opaque for command in member.served] == [1]
