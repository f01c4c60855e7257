"""Message traces: a record of each attempt in the trace topic, never at a send's expense."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from time import monotonic, time
from typing import Any

import msgspec
import pytest

from rmq_async import Admin, Message, Producer, TransactionProducer, TransactionStatus, errors
from rmq_async.client import trace_records as trace
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.message import MessageExt
from rmq_protocol.properties import decode_properties
from rmq_protocol.trace import TRACE_TOPIC, MessageType, TraceContext, TraceType, decode_trace

from ..support.fakes import TOPIC, Cluster, Sent, each, fields, late, refuse, silence, status, stored
from .support import core_of, message, messages, outcomes, producer, timed, until

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def server() -> AsyncIterator[EmbeddedRocketMQ]:
    async with EmbeddedRocketMQ() as running:
        yield running


def records(bodies: Iterable[bytes]) -> list[TraceContext]:
    return [context for body in bodies for context in decode_trace(body.decode())]


def traces(cluster: Cluster) -> list[Sent]:
    """The trace messages that brokers were sent."""
    return [sent for sent in cluster.sends if sent.fields["b"] == TRACE_TOPIC]


async def traced(cluster: Cluster, *, stored_as: Any = stored, **options: Any) -> tuple[list[Any], list[TraceContext]]:
    """What became of one send, and the records of it."""
    cluster.name_server.routes[TRACE_TOPIC] = cluster.route()
    cluster.answer(lambda link, sent: (stored if sent.fields["b"] == TRACE_TOPIC else stored_as)(link, sent))
    async with producer(cluster, trace=True, **options) as sender:
        results = await outcomes(sender.send(message()))
    return results, records(sent.body for sent in traces(cluster))


async def test_a_send_is_found_by_its_id_and_by_its_keys(server: EmbeddedRocketMQ) -> None:
    began = time() * 1000
    async with Producer("orders", namesrv=server.namesrv, trace=True) as sender:
        result = await sender.send(Message(TOPIC, b"12345", tags="paid", keys=["order-17", "eu"]))
        address = server.messages(TOPIC)[0].store_host
    async with Admin(namesrv=server.namesrv) as admin:
        for key in (result.msg_id, "order-17", "eu"):
            (found,) = await admin.query_message(TRACE_TOPIC, key)
            assert found.msg_id != result.msg_id
            (record,) = records([found.body])
            (bean,) = record.beans
            assert (record.trace_type, record.group_name, record.region_id) == (TraceType.PUB, "orders", "DefaultRegion")
            assert (bean.topic, bean.msg_id, bean.offset_msg_id) == (TOPIC, result.msg_id, result.offset_msg_id)
            assert (bean.tags, bean.keys, bean.store_host, bean.body_length) == ("paid", "order-17 eu", address, 5)
            assert record.success
            assert began - 2 <= record.time_stamp <= record.time_stamp + record.cost_time <= time() * 1000 + 2


async def test_records_are_exact_where_nothing_is_said() -> None:
    async with Cluster(1) as cluster:
        await traced(cluster)
        (sent,) = traces(cluster)
        ours = next(sent for sent in cluster.sends if sent.fields["b"] == TOPIC)
        kind, stamp, *rest = sent.body.decode().split("\x01")
        assert kind == "Pub"
        assert len(stamp) == 13
        assert rest[:6] == ["DefaultRegion", "group", TOPIC, ours.unique_id, "null", "null"]
        assert (rest[6], rest[7], rest[9], rest[11]) == (cluster.a.address, "4", "0", "true\x02")
        assert rest[10] == f"{cluster.a.port:016X}{0:016X}"


async def test_each_message_of_a_batch_has_a_record(server: EmbeddedRocketMQ) -> None:
    async with Producer("group", namesrv=server.namesrv, trace=True) as sender:
        result = await sender.send_batch(messages(3))
        with pytest.raises(errors.RocketMQError):
            server.fail_next(16)
            await sender.send_batch(messages(2), queue=result.queue)
    found = records(each.body for each in server.messages(TRACE_TOPIC))
    assert [record.beans[0].msg_id for record in found[:3]] == list(result.msg_ids)
    assert [record.beans[0].offset_msg_id for record in found[:3]] == list(result.offset_msg_ids)
    assert [record.success for record in found] == [True] * 3 + [False] * 2
    assert len({record.beans[0].msg_id for record in found}) == 5


async def test_the_kind_of_message_is_reported_as_in_java(server: EmbeddedRocketMQ) -> None:
    async with Producer("group", namesrv=server.namesrv, trace="traces-of-ours") as sender:
        for options in ({}, {"delay_level": 1}, {"sharding_key": "a"}):
            await sender.send(message(**options))
    found = records(each.body for each in server.messages("traces-of-ours"))
    assert [record.beans[0].msg_type for record in found] == [MessageType.NORMAL, MessageType.DELAY, MessageType.NORMAL]
    assert not server.messages(TRACE_TOPIC)


async def test_the_end_of_a_transaction_and_a_recall_are_reported(server: EmbeddedRocketMQ) -> None:
    def commit(*_: Any) -> TransactionStatus:
        return TransactionStatus.COMMIT

    async with TransactionProducer("group", namesrv=server.namesrv, trace=True, execute=commit, check=commit) as sender:
        sent = await sender.send_in_transaction(message(tags="t", keys=["a", "b"]))
        delayed = await sender.send(message(delay=60.0))
        assert delayed.recall_handle is not None
        await sender.recall(TOPIC, delayed.recall_handle)
        server.fail_next(16)
        with pytest.raises(errors.BrokerError):
            await sender.recall(TOPIC, delayed.recall_handle)
    found = records(each.body for each in server.messages(TRACE_TOPIC))
    half, end, timer, recalled, again = found
    assert [record.trace_type for record in found] == ["Pub", "EndTransaction", "Pub", "Recall", "Recall"]
    assert [record.beans[0].msg_id for record in found] == [sent.msg_id] * 2 + [delayed.msg_id] * 3
    assert (half.beans[0].msg_type, timer.beans[0].msg_type) == (MessageType.TRANSACTION_HALF, MessageType.DELAY)
    assert msgspec.structs.asdict(end.beans[0]) | {
        "tags": "t", "keys": "a b", "msg_type": MessageType.TRANSACTION_COMMIT, "transaction_id": sent.transaction_id,
        "transaction_state": "COMMIT_MESSAGE", "from_transaction_check": False, "store_host": half.beans[0].store_host,
    } == msgspec.structs.asdict(end.beans[0])  # fmt: skip
    assert (recalled.success, again.success) == (True, False)
    assert {record.group_name for record in found} == {"group"}


async def test_every_attempt_has_a_record() -> None:
    async with Cluster(2) as cluster:
        (result,), found = await traced(cluster, stored_as=each(refuse(2), stored))
    assert [(record.success, record.beans[0].msg_id) for record in found] == [(False, result.msg_id), (True, result.msg_id)]
    assert len({record.beans[0].store_host for record in found}) == 2
    assert [record.beans[0].offset_msg_id for record in found] == [None, result.offset_msg_id]


async def test_a_send_without_an_answer_has_a_record_too() -> None:
    began = time() * 1000
    async with Cluster(1) as cluster:
        (error,), (record,) = await traced(cluster, stored_as=silence, timeout=0.5)
    assert began - 2 <= record.time_stamp <= time() * 1000 - record.cost_time + 2
    assert isinstance(error, errors.RequestTimeoutError)
    assert not record.success
    assert 100 <= record.cost_time <= 600  # ms of the attempt; the route and the connection had the rest


async def test_record_has_the_milliseconds_of_its_attempt() -> None:
    async with Cluster(1) as cluster:
        _, (record,) = await traced(cluster, stored_as=late(2.5), timeout=5.0)
    assert 2500 <= record.cost_time <= 2501


async def test_stored_without_confirmation_is_no_success() -> None:
    async with Cluster(1) as cluster:
        _, (record,) = await traced(cluster, stored_as=status(10))
    assert not record.success
    assert record.beans[0].offset_msg_id


async def test_a_broker_that_wants_no_traces_gets_none() -> None:
    async with Cluster(1) as cluster:
        cluster.name_server.routes[TRACE_TOPIC] = cluster.route()
        cluster.a.answer = each(fields(TRACE_ON="false"), refuse(13), fields(MSG_REGION="east"), refuse(13))
        async with producer(cluster, trace=True) as sender:
            for _ in range(4):
                await outcomes(sender.send(message()))
    found = records(sent.body for sent in traces(cluster))
    assert [(record.success, record.region_id) for record in found] == [(True, "east"), (False, "east")]


async def test_oneway_sends_and_sends_to_the_trace_topic_have_no_record(server: EmbeddedRocketMQ) -> None:
    async with Producer("group", namesrv=server.namesrv, trace=True) as sender:
        await sender.send_oneway(message())
        await sender.send(message(b"of somebody else", topic=TRACE_TOPIC))
        await sender.flush()
    assert [each.body for each in server.messages(TRACE_TOPIC)] == [b"of somebody else"]


async def test_records_travel_together_a_second_later_or_when_a_message_is_full() -> None:
    async with Cluster(1) as cluster:
        cluster.name_server.routes[TRACE_TOPIC] = cluster.route()
        async with producer(cluster, trace=True) as sender:
            began = monotonic()
            for _ in range(3):
                await sender.send(message())
            await until(lambda: traces(cluster))
            assert 0.9 <= monotonic() - began < 3
            assert len(records([traces(cluster)[0].body])) == 3
            await asyncio.gather(*[sender.send(each) for each in messages(250, keys="k")])
            await until(lambda: len(traces(cluster)) == 3, 0.5)
            assert [len(records([sent.body])) for sent in traces(cluster)[1:]] == [100, 100]
            assert len(decode_properties(traces(cluster)[1].fields["i"])["KEYS"].split(" ")) == 101
        assert len(records([traces(cluster)[3].body])) == 50


async def test_a_trace_message_keeps_to_its_limits() -> None:
    async with Cluster(1) as cluster:
        cluster.name_server.routes[TRACE_TOPIC] = cluster.route()
        async with producer(cluster, trace=True) as sender:
            for _ in range(30):
                await sender.send(message(keys="k" * 15_000))
            result = await sender.send(message(keys="l" * 30_000))
    assert len(records(sent.body for sent in traces(cluster))) == 31
    assert all(len(sent.body) <= trace.BODY_SIZE for sent in traces(cluster))
    assert all(len(sent.fields["i"]) < 20_000 for sent in traces(cluster))
    keys = traces(cluster)[-1].properties["KEYS"].split(" ")
    assert result.msg_id in keys
    assert not [key for key in keys if "l" in key]


async def test_what_is_too_much_is_dropped_and_counted_and_no_send_is_the_worse(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(trace, "MOST_RECORDS", 300)
    async with Cluster(1) as cluster:
        cluster.name_server.routes[TRACE_TOPIC] = cluster.route()
        cluster.a.answer = lambda link, sent: (silence if sent.fields["b"] == TRACE_TOPIC else stored)(link, sent)
        with caplog.at_level(logging.WARNING, "rmq_async.producer.trace"):
            async with producer(cluster, trace=True, stop_timeout=0.1) as sender:
                with timed(most=1.0):
                    results = await asyncio.gather(*[sender.send(each) for each in messages(1000)])
                assert len(results) == 1000
                tracer = core_of(sender).tracer
                assert tracer is not None
                assert tracer.lost == 300  # 400 are on their way, 300 wait
                with timed(most=0.5):
                    await sender.stop()
                assert tracer.lost == 1000
    assert len(traces(cluster)) == 4
    assert 2 <= len(caplog.messages) <= 11
    assert "traces so far were not sent to topic RMQ_SYS_TRACE_TOPIC" in caplog.text


async def test_keys_that_no_message_may_have_are_left_out_and_the_record_stays(server: EmbeddedRocketMQ) -> None:
    """Brokers ask about messages that other clients wrote."""
    asked = MessageExt(topic=TOPIC, body=b"half", properties={"KEYS": "a\x00b good"})
    async with Producer("orders", namesrv=server.namesrv, trace=True) as sender:
        result = await sender.send(Message(TOPIC, b"x"))
        tracer = core_of(sender).tracer
        assert tracer is not None
        tracer.end_transaction(
            asked, msg_id="id", address="127.0.0.1:1", transaction_id=None, state="COMMIT_MESSAGE", from_check=True
        )
    (kept,) = server.messages(TRACE_TOPIC)
    assert set(kept.keys) == {result.msg_id, "id", "good"}
    assert [bean.keys for record in records([kept.body]) for bean in record.beans] == [None, "a\x00b good"]
    assert not tracer.lost


async def test_no_trace_topic_costs_one_warning(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "rmq_async.producer.trace"):
        async with producer(cluster, trace=True) as sender:
            await sender.send(message())
    assert len(caplog.messages) == 1
    assert "1 traces so far were not sent to topic RMQ_SYS_TRACE_TOPIC" in caplog.text


async def test_a_trace_that_one_broker_refuses_goes_to_another() -> None:
    async with Cluster(2) as cluster:
        cluster.name_server.routes[TRACE_TOPIC] = cluster.route()
        answers = each(refuse(2), stored)
        cluster.answer(lambda link, sent: (answers if sent.fields["b"] == TRACE_TOPIC else stored)(link, sent))
        async with producer(cluster, trace=True) as sender:
            await sender.send(message())
            tracer = core_of(sender).tracer
        assert tracer is not None
        assert tracer.lost == 0
    first, second = traces(cluster)
    assert first.body == second.body
    assert first.broker is not second.broker


async def test_traces_are_no_business_of_hooks_selectors_and_credits() -> None:
    seen: list[str] = []

    class Watcher:
        def before_send(self, context: Any) -> None:
            seen.append(context.queue.topic)

    def choose(queues: Any, item: Message, key: Any) -> Any:
        seen.append(item.topic)
        return queues[0]

    async with Cluster(1) as cluster:
        cluster.name_server.routes[TRACE_TOPIC] = cluster.route()
        hanging = lambda link, sent: (silence if sent.fields["b"] == TRACE_TOPIC else stored)(link, sent)  # noqa: E731
        cluster.a.answer = hanging
        options: dict[str, Any] = {"hooks": [Watcher()], "queue_selector": choose, "async_limit": 1, "stop_timeout": 0.05}
        async with producer(cluster, trace=True, **options) as sender:
            for item in messages(101):
                await sender.send(item, timeout=0.5)
            await until(lambda: traces(cluster))
            with timed(most=0.1):
                await sender.flush()
    assert set(seen) == {TOPIC}


@pytest.mark.usefixtures("wide_window")
async def test_nothing_of_a_trace_outlives_its_producer(caplog: pytest.LogCaptureFixture) -> None:
    async with Cluster(1) as cluster:
        cluster.name_server.routes[TRACE_TOPIC] = cluster.route()
        cluster.a.answer = silence
        cluster.a.silent = True
        sender = producer(cluster, trace=True)
        await sender.start()
        sending = [asyncio.create_task(sender.send(each)) for each in messages(500)]
        await until(lambda: len(cluster.sends) == 500)
        with caplog.at_level(logging.WARNING, "rmq_async.producer.trace"):
            await sender.stop(0.0)
        assert not [task for task in asyncio.all_tasks() if task.get_name() == "rmq_async trace"]
        tracer = core_of(sender).tracer
        assert tracer is not None
        assert tracer.lost == 500
        await outcomes(*sending)
    assert len(cluster.sends) == 500


async def test_stop_sends_what_waits_within_its_time(server: EmbeddedRocketMQ) -> None:
    async with Producer("group", namesrv=server.namesrv, trace=True) as sender:
        results = await asyncio.gather(*[sender.send(each) for each in messages(1234)])
        with timed(most=1.0):
            await sender.stop()
    found = [record.beans[0].msg_id for record in records(each.body for each in server.messages(TRACE_TOPIC))]
    assert len(found) == 1234
    assert set(found) == {result.msg_id for result in results}
