"""What a test sees and does of a group: progress, retries and dead letters, members and notices, resets of both kinds."""

from __future__ import annotations

import asyncio

import pytest

from rmq_async.embedded import EmbeddedRocketMQ, ManualClock
from rmq_protocol.bodies import (
    GetConsumerListByGroupResponseBody,
    GetConsumerStatusBody,
    LockBatchRequestBody,
    LockBatchResponseBody,
    ResetOffsetBody,
    decode_body,
    decode_reset_offsets,
    encode_body,
)
from rmq_protocol.command import RemotingCommand, encode_command
from rmq_protocol.constants import LanguageCode, RequestCode
from rmq_protocol.heartbeat import ConsumerData, HeartbeatData, SubscriptionData, encode_heartbeat
from rmq_protocol.message import MessageQueue

from ..support.fakes import RawClient
from .inside import START, broker_of

LIST, RESET, UNREGISTER = RequestCode.GET_CONSUMER_LIST_BY_GROUP, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, 35
NOTIFY = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
STATUS, STATUS_FROM_CLIENT = (
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
)
QUEUE = MessageQueue("T", "broker-a", 0)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


async def beat(client: RawClient, client_id: str, *topics: str, sub_version: int = 1) -> None:
    subscriptions = tuple(SubscriptionData(topic, sub_version=sub_version) for topic in topics)
    data = HeartbeatData(client_id, consumer_data_set=(ConsumerData("CG", subscription_data_set=subscriptions),))
    assert (await client.ask(RequestCode.HEART_BEAT, None, encode_heartbeat(data))).code == 0


async def members(client: RawClient) -> tuple[str, ...] | int:
    response = await client.ask(LIST, {"consumerGroup": "CG"})
    return response.code or decode_body(GetConsumerListByGroupResponseBody, response.body).consumer_id_list


async def commit(client: RawClient, offset: int, topic: str = "T", group: str = "CG") -> None:
    ext = {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": str(offset)}
    assert (await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext)).code == 0


async def give_back(client: RawClient, offset: int, **over: str) -> None:
    ext = {"offset": str(offset), "group": "CG", "delayLevel": "0", "originTopic": "T", **over}
    assert (await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext)).code == 0


async def reset(client: RawClient, *, language: LanguageCode = LanguageCode.JAVA, **over: str) -> RemotingCommand:
    ext: dict[str, str | None] = {"topic": "T", "group": "CG", "timestamp": "0", "isForce": "true", **over}
    command = RemotingCommand(code=RESET, opaque=next(client.opaques), language=language, ext_fields=ext)
    client.writer.writelines(encode_command(command, client.serialize_type))
    while not (answer := await client.read()).is_response:
        client.pushed.append(answer)
    return answer


# -- what a test sees


async def test_progress_is_what_the_group_has_committed(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    for topic in ("T", "U"):
        await broker.send(topic)
    await beat(broker, "c1", "T")
    assert server.progress("CG") == {}
    await commit(broker, 1)
    await commit(broker, 0, "U")
    await commit(broker, 0, "%RETRY%CG")
    expected = {MessageQueue("%RETRY%CG", "broker-a", 0): 0, QUEUE: 1, MessageQueue("U", "broker-a", 0): 0}
    assert server.progress("CG") == expected
    assert server.progress("other") == {}


async def test_retries_wait_and_come_with_the_clock(server: EmbeddedRocketMQ, broker: RawClient, clock: ManualClock) -> None:
    await beat(broker, "c1", "T")
    for body in (b"one", b"two"):
        await broker.send("T", body)
    first, second = server.messages("T")
    await give_back(broker, first.commit_log_offset, delayLevel="4")
    await give_back(broker, second.commit_log_offset)
    waiting = server.retries("CG")
    assert [(each.body, each.topic, each.reconsume_times, each.queue_offset) for each in waiting] == [
        (b"two", "%RETRY%CG", 1, -1),
        (b"one", "%RETRY%CG", 1, -1),
    ]
    assert waiting[0].queue == MessageQueue("%RETRY%CG", "broker-a", 0)

    broker.write(11, {**_pull_fields("%RETRY%CG"), "sysFlag": "6", "suspendTimeoutMillis": "15000"})
    await clock.advance(10)
    pulled = await broker.read()
    assert (pulled.code, b"two" in pulled.body) == (0, True), "a held pull gets it"
    assert [(each.body, each.queue_offset) for each in server.retries("CG")] == [(b"two", 0), (b"one", -1)]

    await give_back(broker, server.messages("%RETRY%CG")[0].commit_log_offset)
    assert [(each.body, each.reconsume_times) for each in server.retries("CG")] == [(b"two", 1), (b"one", 1), (b"two", 2)]
    await clock.advance(30)
    assert [(each.body, each.queue_offset) for each in server.retries("CG")] == [(b"two", 0), (b"one", 1), (b"two", 2)]
    assert server.retries("other") == []


async def test_dead_letters_are_those_of_the_group(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    await broker.send("T", b"bad")
    await give_back(broker, server.messages("T")[0].commit_log_offset, delayLevel="-1")
    assert [(each.body, each.topic) for each in server.dead_letters("CG")] == [(b"bad", "%DLQ%CG")]
    assert server.retries("CG") == []
    assert server.dead_letters("other") == []


# -- members


async def test_rebalance_notifies_the_members(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    await beat(broker, "c1", "T")
    assert (await broker.request()).code == NOTIFY
    for _ in range(2):
        server.rebalance("CG")
        server.rebalance("other")
        notice = await broker.request()
        assert (notice.code, notice.is_oneway, notice.ext_fields) == (NOTIFY, True, {"consumerGroup": "CG"})
    await broker.ask(9999)
    assert broker.pushed == []


async def test_lists_of_members_may_be_false(clock: ManualClock) -> None:
    async with EmbeddedRocketMQ(brokers=2, clock=clock) as server:
        addresses = server.brokers
        async with RawClient(addresses["broker-a"]) as a, RawClient(addresses["broker-b"]) as b:
            for client in (a, b):
                await beat(client, "c1", "T")
            server.list_members("CG", ["c2", "c1", "c1"])
            assert [await members(a), await members(b)] == [("c2", "c1", "c1")] * 2
            server.list_members("CG", [], broker="broker-b")
            assert [await members(a), await members(b)] == [("c2", "c1", "c1"), 1]
            server.list_members("CG", None)
            assert [await members(a), await members(b)] == [("c1",), ("c1",)]
            server.list_members("nope", ["c3"])
            with pytest.raises(TypeError, match="client_ids must be a sequence of ids, not 'c1'"):
                server.list_members("CG", "c1")
            with pytest.raises(ValueError, match="there is no broker 'broker-z'"):
                server.list_members("CG", ["c1"], broker="broker-z")


async def test_a_client_with_two_connections_is_listed_twice(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    await beat(broker, "c1", "T")
    async with RawClient(server.brokers["broker-a"]) as second:
        await beat(second, "c1", "T")
        assert await members(second) == ("c1", "c1")
        await broker.ask(UNREGISTER, {"clientID": "c1", "consumerGroup": "CG"})
        assert await members(second) == ("c1",), "a client leaves on the connection on which it says so"
        await broker.ask(UNREGISTER, {"clientID": "c1", "consumerGroup": "CG"})
        assert await members(second) == ("c1",)
    await asyncio.sleep(0)
    assert await members(broker) == 1


# -- pulls that are held


def _pull_fields(topic: str = "T", offset: int = 0) -> dict[str, str]:
    return {
        "consumerGroup": "CG", "topic": topic, "queueId": "0", "queueOffset": str(offset), "maxMsgNums": "32", "commitOffset": "0",
        "subscription": "A", "subVersion": "1", "expressionType": "TAG",
    }  # fmt: skip


async def held(client: RawClient, server: EmbeddedRocketMQ, *, offset: int, flags: int) -> None:
    """Leaves a pull of queue 0 at the broker."""
    client.write(11, {**_pull_fields(offset=offset), "sysFlag": str(flags), "suspendTimeoutMillis": "15000"})
    while not len(broker_of(server).held):
        await asyncio.sleep(0)


async def test_a_held_pull_that_wakes_takes_a_reset(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    await beat(broker, "c1", "T")
    async with RawClient(server.brokers["broker-a"]) as other:
        await other.send("T")
        await held(broker, server, offset=1, flags=6)
        assert (await reset(other, queueId="0", offset="0")).code == 0
        await other.send("T")
        woken = await _response(broker)
        assert (woken.code, woken.remark, (woken.ext_fields or {})["nextBeginOffset"]) == (21, "OFFSET_RESET", "0")
        assert server.progress("CG") == {QUEUE: 0}
        await commit(other, 2)
        assert server.progress("CG") == {QUEUE: 2}


@pytest.mark.parametrize(("topics", "sub_version", "code"), [((), 1, 24), (("U",), 1, 24), (("T",), 2, 0)])
async def test_a_held_pull_that_wakes_finds_its_subscription_changed(
    server: EmbeddedRocketMQ, broker: RawClient, topics: tuple[str, ...], sub_version: int, code: int
) -> None:
    await beat(broker, "c1", "T")
    async with RawClient(server.brokers["broker-a"]) as other:
        await other.send("T")
        await held(broker, server, offset=1, flags=2)
        if topics:
            await beat(other, "c2", *topics, sub_version=sub_version)
        else:
            await other.ask(UNREGISTER, {"clientID": "c1", "consumerGroup": "CG"})
            await _leave(broker)
        await other.send("T")
        assert (await _response(broker)).code == code


async def test_a_held_pull_that_passed_over_something_is_answered_at_the_next_look(
    server: EmbeddedRocketMQ, broker: RawClient
) -> None:
    async with RawClient(server.brokers["broker-a"]) as other:
        await other.send("T")
        await held(broker, server, offset=1, flags=6)
        broker_of(server).tick()
        assert len(broker_of(server).held) == 1
        await other.send("T", properties={"TAGS": "B"})
        await other.ask(9999)
        assert len(broker_of(server).held) == 1
        broker_of(server).tick()
        woken = await _response(broker)
        assert (woken.code, (woken.ext_fields or {})["nextBeginOffset"]) == (20, "2")


async def _leave(client: RawClient) -> None:
    client.write(UNREGISTER, {"clientID": "c1", "consumerGroup": "CG"})
    assert (await _response(client)).code == 0


async def _response(client: RawClient) -> RemotingCommand:
    """The next response; requests of the server before it are dropped."""
    while not (answer := await client.read()).is_response:
        pass
    return answer


# -- resets that are sent to the members, and what they answer


@pytest.mark.parametrize("language", [LanguageCode.JAVA, LanguageCode.CPP])
async def test_a_reset_of_the_old_way_is_sent_to_every_member(language: LanguageCode) -> None:
    async with EmbeddedRocketMQ(server_side_reset=False) as server:
        address = server.brokers["broker-a"]
        async with RawClient(address) as admin, RawClient(address) as first, RawClient(address) as second:
            await admin.create_topic("T", 2)
            for _ in range(3):
                await admin.send("T")
            unknown = await reset(admin)
            assert (unknown.code, unknown.remark) == (1, "THe consumer group <CG> not exist")
            await beat(first, "c1", "T")
            for queue_id in ("0", "1"):
                ext = {"consumerGroup": "CG", "topic": "T", "queueId": queue_id, "commitOffset": "2"}
                await admin.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext)
            await _leave(first)
            alone = await reset(admin)
            assert (alone.code, "Consumer not online" in (alone.remark or "")) == (206, True)

            await beat(first, "c1", "T")
            await beat(second, "c2", "T")
            for over, expected in (
                ({}, {0: 0, 1: 0}),
                ({"timestamp": "-1"}, {0: 3, 1: 0}),
                ({"isForce": "false"}, {0: 0, 1: 0}),
            ):
                table = {MessageQueue("T", "broker-a", queue_id): offset for queue_id, offset in expected.items()}
                answer = await reset(admin, language=language, **over)
                assert decode_body(ResetOffsetBody, answer.body).offset_table == table
                for member in (first, second):
                    while (sent := await member.request()).code == NOTIFY:
                        pass
                    assert (sent.code, sent.is_oneway) == (RequestCode.RESET_CONSUMER_CLIENT_OFFSET, True)
                    assert ((sent.ext_fields or {})["group"], (sent.ext_fields or {})["topic"]) == ("CG", "T")
                    assert decode_reset_offsets(sent.body) == table
                    assert (b'"offsetTable":[' in sent.body) == (language is LanguageCode.CPP)
            assert set(server.progress("CG").values()) == {2}, "the members have to commit it"
            later = await reset(admin, timestamp="-1", isForce="false")
            assert set(decode_body(ResetOffsetBody, later.body).offset_table.values()) == {2, 0}, "only backwards"


async def test_offsets_in_memory_come_from_the_members(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    fields = {"topic": "T", "group": "CG"}
    refused = await broker.ask(STATUS, fields)
    assert (refused.code, refused.remark) == (1, "No Any Consumer online in the consumer group: [CG]")
    address = server.brokers["broker-a"]
    async with RawClient(address) as first, RawClient(address) as second, RawClient(address) as broken:
        for client_id, client in (("c1", first), ("c2", second), ("c3", broken)):
            await beat(client, client_id, "T")
        broker.write(STATUS, fields)
        for offset, client in ((5, first), (7, second), (0, broken)):
            while (asked := await client.request()).code == NOTIFY:
                pass
            assert (asked.code, asked.ext_fields) == (STATUS_FROM_CLIENT, fields)
            body = encode_body(GetConsumerStatusBody({QUEUE: offset})) if offset else b"["
            client.answer(asked, body=body)
        table = decode_body(GetConsumerStatusBody, (await broker.read()).body).consumer_table
        assert table == {"c1": {QUEUE: 5}, "c2": {QUEUE: 7}}

        broker.write(STATUS, {**fields, "clientAddr": "c2"})
        second.answer(await second.request(), 1, "no")
        assert decode_body(GetConsumerStatusBody, (await broker.read()).body) == GetConsumerStatusBody()
        none = await broker.ask(STATUS, {**fields, "clientAddr": "c9"})
        assert decode_body(GetConsumerStatusBody, none.body) == GetConsumerStatusBody()


# -- memory


async def test_a_restart_forgets_locks_and_resets_and_keeps_offsets(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    async def lock(client_id: str) -> int:
        async with RawClient(server.brokers["broker-a"]) as client:
            body = encode_body(LockBatchRequestBody("CG", client_id, mq_set=(QUEUE,)))
            answer = await client.ask(RequestCode.LOCK_BATCH_MQ, None, body)
            return len(decode_body(LockBatchResponseBody, answer.body).lock_ok_mq_set)

    await broker.send("T")
    await beat(broker, "c1", "T")
    assert [await lock("c1"), await lock("c2")] == [1, 0]
    assert (await reset(broker, queueId="0", offset="0")).code == 0
    await server.stop()
    await server.start()
    assert server.progress("CG") == {QUEUE: 0}
    assert await lock("c2") == 1
    async with RawClient(server.brokers["broker-a"]) as client:
        await commit(client, 1)
        assert server.progress("CG") == {QUEUE: 1}
