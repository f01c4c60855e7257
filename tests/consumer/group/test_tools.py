"""Requests of tools that brokers pass on to a member, and conflicts of subscriptions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmq_async import ConfigError, Consumer, MessageExt, MessageQueue, SubscriptionConflictError
from rmq_async.client import ClientInstance
from rmq_async.config import ClientConfig
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    GetConsumerStatusBody,
    ResetOffsetBody,
    decode_body,
    encode_body,
)
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode, ResponseCode

from ...support.instances import registered
from .support import Seen, create, member, send, until

pytestmark = pytest.mark.virtual_time

Q0 = MessageQueue("T", "broker-a", 0)


async def ask(address: str, code: RequestCode, ext: dict[str, str | None], body: bytes = b"") -> RemotingCommand:
    """Asks a broker as a tool does."""
    instance = await ClientInstance.acquire(ClientConfig(namesrv=address, instance_name="tool"))
    try:
        broker = await instance.routes.get("T", 3.0)
        return await instance.pool.request(
            broker.master_address("broker-a") or "", RemotingCommand(code=code, ext_fields=ext, body=body), 5.0
        )
    finally:
        await instance.release()


def served(consumer: Consumer, command: RemotingCommand) -> object:
    """Gives a request to the member as its broker would, at once."""
    instance = next(each for each in registered().values() if each.client_id == member_id(consumer))
    (handler,) = {instance.handlers[command.code]}
    return handler(next(iter(instance.pool.connections)), command)


def member_id(consumer: Consumer) -> str:
    return f"127.0.0.1@{consumer.client_config.instance_name}"


async def test_running_info_of_a_member() -> None:
    """As ``mqadmin consumerStatus`` asks for it."""
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        consumer = member("g", server.namesrv, "one", Seen())
        async with consumer:
            await send(server.namesrv, b"1", b"2")
            await consumer.wait_idle()
            response = await ask(
                server.namesrv, RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "g", "clientId": member_id(consumer)}
            )
        assert response.code == ResponseCode.SUCCESS, response.remark
        info = decode_body(ConsumerRunningInfo, response.body)
        assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        assert {each.topic for each in info.subscription_set} == {"T", "%RETRY%g"}
        assert info.mq_table[Q0].commit_offset == 2
        assert info.mq_table[Q0].locked


async def test_positions_of_a_member() -> None:
    """As ``mqadmin getConsumerStatus`` asks for them."""
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        consumer = member("g", server.namesrv, "one", Seen())
        async with consumer:
            await send(server.namesrv, b"1", b"2")
            await consumer.wait_idle()
            command = RemotingCommand(code=RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, ext_fields={"topic": "T", "group": "g"})
            response = served(consumer, command)
            assert isinstance(response, RemotingCommand)
            assert decode_body(GetConsumerStatusBody, response.body).message_queue_table == {Q0: 2}


async def test_waits_of_tests_with_a_wrong_number_or_a_very_long_time() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        async with member("g", server.namesrv, "one", Seen()) as consumer:
            wrong: list[Any] = [-1, 1.5, "1", None, True]
            for number in wrong:
                with pytest.raises(ConfigError, match="n must be a whole number from 0 to"):
                    await consumer.wait_settled(number)
            await consumer.wait_idle(timeout=10**400)


async def test_message_that_a_tool_sends_to_a_member() -> None:
    """As ``mqadmin queryMsgByUniqueKey -g -d`` does; nothing is settled by it."""
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        fails = False

        async def work(message: MessageExt) -> None:
            if fails:
                raise ValueError("no such account")

        seen = Seen(work)
        consumer = member("g", server.namesrv, "one", seen)
        async with consumer:
            await send(server.namesrv, b"1")
            (settled,) = await consumer.wait_settled(1)
            ext: dict[str, str | None] = {
                "consumerGroup": "g",
                "clientId": member_id(consumer),
                "msgId": settled.message.offset_msg_id,
                "brokerName": "broker-a",
            }
            response = await ask(server.namesrv, RequestCode.CONSUME_MESSAGE_DIRECTLY, ext)
            assert response.code == ResponseCode.SUCCESS, response.remark
            assert decode_body(ConsumeMessageDirectlyResult, response.body).consume_result == "CR_SUCCESS"
            fails = True
            response = await ask(server.namesrv, RequestCode.CONSUME_MESSAGE_DIRECTLY, ext)
            result = decode_body(ConsumeMessageDirectlyResult, response.body)
            assert (result.consume_result, result.remark) == ("CR_THROW_EXCEPTION", "ValueError('no such account')")
            assert consumer.position(Q0) == 1
            assert consumer.stats().handled == 1
        assert seen.bodies == {b"1": 2}


async def test_message_that_a_tool_sends_to_a_member_that_reads_by_hand() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        async with Consumer("g", namesrv=server.namesrv, instance_name="one", topics="T") as consumer:
            await send(server.namesrv, b"1")
            (message,) = await consumer.receive()
            ext: dict[str, str | None] = {
                "consumerGroup": "g",
                "clientId": member_id(consumer),
                "msgId": message.offset_msg_id,
                "brokerName": "broker-a",
            }
            response = await ask(server.namesrv, RequestCode.CONSUME_MESSAGE_DIRECTLY, ext)
            result = decode_body(ConsumeMessageDirectlyResult, response.body)
            assert result.consume_result == "CR_THROW_EXCEPTION"
            assert "reads by hand" in (result.remark or "")
            assert consumer.done(message)


async def test_reset_of_a_members_offset() -> None:
    """The request of brokers before 5.2; offsets that are not this member's are ignored."""
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        seen = Seen()
        consumer = member("g", server.namesrv, "one", seen)
        async with consumer:
            await send(server.namesrv, b"1", b"2", b"3")
            await consumer.wait_settled(3)
            body = encode_body(ResetOffsetBody({Q0: 1, MessageQueue("T", "broker-z", 0): 0}))
            command = RemotingCommand(
                code=RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ext_fields={"topic": "T", "group": "g"}, body=body
            )
            assert served(consumer, command) is None
            await consumer.wait_settled(2)
            await until(lambda: consumer.position(Q0) == 3)
        assert seen.bodies == {b"1": 1, b"2": 2, b"3": 2}


async def test_reset_of_a_queue_that_has_stopped() -> None:
    """It is what an operator does about ``out_of_range="stop"``: the queue is read again."""
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        seen = Seen()
        await send(server.namesrv, b"1", b"2", b"3")
        async with member("g", server.namesrv, "one", seen, start_from="earliest") as first:
            await first.wait_settled(3)
        await send(server.namesrv, b"4", b"5", b"6")
        server.expire(Q0, 5)
        consumer = member("g", server.namesrv, "two", seen, out_of_range="stop")
        async with consumer:
            await until(lambda: [problem.code for problem in consumer.health().problems] == ["queue_stopped"])
            command = RemotingCommand(
                code=RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
                ext_fields={"topic": "T", "group": "g"},
                body=encode_body(ResetOffsetBody({Q0: 5})),
            )
            served(consumer, command)
            served(consumer, command)
            await consumer.wait_settled(1)
            assert consumer.health().problems == ()
        assert seen.bodies[b"6"] == 1


async def test_group_with_different_subscriptions(caplog: pytest.LogCaptureFixture) -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        first = Consumer("g", namesrv=server.namesrv, instance_name="one")
        first.subscribe("T", Seen(), tags="a")
        second = Consumer("g", namesrv=server.namesrv, instance_name="two")
        second.subscribe("T", Seen(), tags="b")
        strict = Consumer("g", namesrv=server.namesrv, instance_name="three", on_conflict="raise")
        strict.subscribe("T", Seen(), tags="c")
        async with first:
            await asyncio.sleep(0.01)
            with pytest.raises(SubscriptionConflictError, match=r"topic T: this member subscribes to 'c', another one to 'a'"):
                await strict.start()
            async with second:
                assert "subscription_conflict" in [problem.code for problem in second.health().problems]
        assert "members miss messages; give all members the same subscriptions" in caplog.text
