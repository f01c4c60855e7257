"""Both ways in which a broker keeps what was popped, and both names of retry topics; a version without pops."""

from __future__ import annotations

import pytest

from rmq_async.embedded import EmbeddedRocketMQ, ManualClock
from rmq_protocol.bodies import SetMessageRequestModeRequestBody, encode_body
from rmq_protocol.constants import RequestCode
from rmq_protocol.message import MessageQueue

from ..inside import START
from .support import PopClient, bodies

QUEUE = MessageQueue("T", "broker-a", 0)


@pytest.mark.parametrize("retry_v2", [False, True])
@pytest.mark.parametrize("store", ["log", "kv"])
async def test_retries_have_the_topic_and_handle_of_their_store(store: str, retry_v2: bool) -> None:
    clock = ManualClock(START)
    server = EmbeddedRocketMQ(clock=clock, pop_store=store, pop_retry_v2=retry_v2)  # type: ignore[arg-type]
    async with server, PopClient(server.brokers["broker-a"]) as broker:
        await broker.stored("a")
        await broker.popped(invisibleTime=1000)
        await clock.advance(3 if store == "log" else 1.5)
        name = "%RETRY%G+T" if retry_v2 else "%RETRY%G_T"
        assert [message.topic for message in server.retries("G")] == [name]
        fields = {"consumerGroup": "G", "topic": "T", "queueId": "-1", "pollTime": "0", "bornTime": str(clock.now_ms())}
        assert (await broker.ask(RequestCode.NOTIFICATION, fields)).ext_fields["hasMsg"] == "true"
        (again, *none) = [each for _ in range(2) for each in await broker.popped()]
        assert (none, again.handle.retry) == ([], "2" if retry_v2 else "1")
        topic = "T" if store == "log" else name
        assert ("POP_CK" in again.message.properties, again.message.topic) == (store == "log", topic)
        assert (await broker.ack("T", again)).code == 0
        await clock.advance(60)
        assert bodies(await broker.popped()) == []


async def test_kv_pops_commit_where_they_began_and_retries_need_the_fifth_pop_of_one_queue() -> None:
    clock = ManualClock(START)
    async with EmbeddedRocketMQ(clock=clock, pop_store="kv") as server, PopClient(server.brokers["broker-a"]) as broker:
        await broker.stored(*"abc")
        popped = await broker.popped(queueId=0, maxMsgNums=2, invisibleTime=1000)
        assert (server.progress("G")[QUEUE], [each.handle.revive_qid for each in popped]) == (0, [0, 0])
        await clock.advance(1.5)
        assert bodies(await broker.popped(queueId=0)) == [b"c"]
        assert server.progress("G")[QUEUE] == 2
        assert [len(await broker.popped(queueId=0)) for _ in range(4)] == [0, 0, 0, 2]


async def test_kv_acks_find_a_message_by_its_end() -> None:
    clock = ManualClock(START)
    async with EmbeddedRocketMQ(clock=clock, pop_store="kv") as server, PopClient(server.brokers["broker-a"]) as broker:
        await broker.stored("a")
        (popped,) = await broker.popped(invisibleTime=1000)
        moved = popped.handle._replace(pop_time=popped.handle.pop_time + 400, invisible_time=600, ck_queue_offset=7)
        assert (await broker.ack("T", popped._replace(handle=moved))).code == 0
        assert server.in_flight("G") == []


async def test_4_9_7_knows_nothing_of_pops() -> None:
    codes = (361, 400, 401, 402, 200050, 200051, 200052, 200053, 200054, 200055, 200056, 200070, 200071, 200151)
    async with EmbeddedRocketMQ(version="4.9.7") as server, PopClient(server.brokers["broker-a"]) as broker:
        await broker.stored("a")
        for code in codes:
            response = await broker.ask(code, broker.pop_fields("T"))
            assert (response.code, response.remark) == (3, f" request type {code} not supported")
        assert b'"V4_9_7"' in (await broker.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body


def test_unknown_versions_and_stores_are_refused() -> None:
    with pytest.raises(ValueError, match=r"version must be one of 5\.5\.0, 4\.9\.7, not '4'"):
        EmbeddedRocketMQ(version="4")
    with pytest.raises(ValueError, match="pop_store must be one of log, kv, not 'disk'"):
        EmbeddedRocketMQ(pop_store="disk")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="pop_revive_delay must be from 0"):
        EmbeddedRocketMQ(pop_revive_delay=-1)


async def test_modes_outlive_a_restart_and_are_listed(broker: PopClient, server: EmbeddedRocketMQ) -> None:
    await broker.stored("a")
    body = encode_body(SetMessageRequestModeRequestBody("T", "G", "POP", 2))
    assert (await broker.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, None, body)).code == 0
    await server.stop()
    await server.start()
    async with PopClient(server.brokers["broker-a"]) as again:
        found = (await again.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)).body
    assert found == b'{"messageRequestModeMap":{"T":{"G":%s}}}' % body


async def test_retries_come_also_where_two_topics_are_popped_in_turns() -> None:
    """Each of them has a turn of its own between the two names: simulated seed 721676."""
    clock = ManualClock(START)
    server = EmbeddedRocketMQ(clock=clock, pop_retry_v2=True)
    async with server, PopClient(server.brokers["broker-a"]) as broker:
        for topic in ("T", "U"):
            await broker.stored("a", topic=topic)
            await broker.popped(topic, invisibleTime=1000)
        await clock.advance(3)
        again = [each.body for _ in range(2) for topic in ("T", "U") for each in await broker.popped(topic)]
        assert again == [b"a", b"a"]
