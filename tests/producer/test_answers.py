"""From a broker's answer to a result or an error."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

from rmq_async import Message, MessageQueue, SendError, SendResult, errors
from rmq_async.results import BatchSendResult, SendStatus
from rmq_protocol.constants import ResponseCode, SerializeType

from ..support.fakes import TOPIC, Cluster, each, fields, raw, refuse, status, stored
from .support import Send, every_way, message, messages, producer

pytestmark = pytest.mark.virtual_time

STORED = {
    ResponseCode.SUCCESS: SendStatus.SEND_OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
}
RETRIED = {1, 2, 14, 16, 17, 204, 205, 1500}
CLASSES = {
    1: errors.BrokerSystemError,
    2: errors.SystemBusyError,
    3: errors.RequestCodeNotSupportedError,
    13: errors.MessageIllegalError,
    14: errors.ServiceNotAvailableError,
    16: errors.NoPermissionError,
    17: errors.TopicNotExistError,
    21: errors.OffsetRangeError,
    22: errors.QueryNotFoundError,
    215: errors.FlowControlError,
    1500: errors.GoAwayError,
}


@every_way(1)
async def test_every_response_code_has_its_outcome(cluster: Cluster, send: Send) -> None:
    async with producer(cluster, timeout=5.0) as sender:
        for code in ResponseCode:
            before = len(cluster.sends)
            cluster.a.answer = status(code) if code in STORED else each(refuse(code, "because"), stored)
            if code in STORED:
                result = await send(sender)
                assert (result.status, result.attempts) == (STORED[code], 1)
            elif code in RETRIED:
                result = await send(sender)
                assert (result.status, result.attempts) == (SendStatus.SEND_OK, 2)
            else:
                with pytest.raises(errors.BrokerError, match="because") as caught:
                    await send(sender)
                error = caught.value
                assert type(error) is CLASSES.get(code, type(error))
                assert (error.code, error.remark, error.maybe_stored) == (code, "because", False)
                assert code.name in str(error)
                assert len(cluster.sends) == before + 1


async def test_a_code_that_is_retried_and_stays(cluster: Cluster) -> None:
    async with producer(cluster, retries=1) as sender:
        for code in RETRIED:
            cluster.a.answer = refuse(code, "again")
            with pytest.raises(SendError) as caught:
                await sender.send(message(), timeout=0.5)
            error = caught.value
            attempts = [*error.attempts]
            if code == ResponseCode.GO_AWAY and isinstance(attempts[-1].error, errors.RequestTimeoutError):
                attempts.pop()  # of those until the time is over the last one may find a busy machine
            else:
                assert error.code == code
            assert {type(attempt.error) for attempt in attempts} == {CLASSES.get(code, type(error.__cause__))}
            assert len(attempts) == 2 or code == ResponseCode.GO_AWAY, "of these no number is too many"


async def test_an_unknown_code(cluster: Cluster) -> None:
    for code in (-1, 9999, 2**31 - 1):
        cluster.a.answer = refuse(code, None)
        async with producer(cluster) as sender:
            with pytest.raises(errors.BrokerError, match=f"{code} unknown code") as caught:
                await sender.send(message())
        assert (caught.value.code, caught.value.remark) == (code, "")
    assert len(cluster.sends) == 3


async def test_what_a_broker_says_is_made_printable(cluster: Cluster) -> None:
    remark = "a\nb\x1b[31m" + "x" * 100_000
    cluster.a.answer = refuse(13, remark)
    async with producer(cluster) as sender:
        with pytest.raises(errors.MessageIllegalError) as caught:
            await sender.send(message())
    assert caught.value.remark == remark
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 2000


@every_way(1)
async def test_stored_without_the_fields_that_prove_it(cluster: Cluster, send: Send) -> None:
    bad: list[dict[str, str | None]] = [
        {"msgId": None},
        {"queueId": None},
        {"queueOffset": None},
        {"queueId": "one"},
        {"queueOffset": "1e400"},
        {"queueOffset": ""},
        {"msgId": None, "queueId": None, "queueOffset": None},
    ]
    async with producer(cluster) as sender:
        for wrong in bad:
            cluster.a.answer = fields(**wrong)
            with pytest.raises(errors.RemoteProtocolError) as caught:
                await send(sender)
            assert caught.value.maybe_stored, wrong
            assert caught.value.address == cluster.a.address
            assert caught.value.broker == "a"
        for code in STORED:
            cluster.a.answer = refuse(code)
            with pytest.raises(errors.RemoteProtocolError, match=str(int(code))) as caught:
                await send(sender)
            assert caught.value.maybe_stored
    assert len(cluster.sends) == len(bad) + len(STORED), "none of them is sent again"


async def test_garbage_instead_of_an_answer_breaks_the_connection(pair: Cluster) -> None:
    pair.a.answer = raw(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    async with producer(pair) as sender:
        results = await asyncio.gather(*[sender.send(item) for item in messages(4)])
    assert {result.queue.broker_name for result in results} == {"b"}


async def test_a_result_says_what_the_broker_said(cluster: Cluster) -> None:
    cluster.a.answer = fields(
        msgId="0A", queueId="1", queueOffset="77", transactionId="TX", MSG_REGION="here", TRACE_ON="false", recallHandle="H"
    )
    async with producer(cluster) as sender:
        result = await sender.send(message(unique_id="OWN"), queue=cluster.queue(queue_id=0))
    assert result == SendResult(
        SendStatus.SEND_OK, "OWN", "0A", MessageQueue(TOPIC, "a", 1), 77, "TX", "here", False, "H", 1
    )  # fmt: skip
    with pytest.raises(AttributeError):
        result.msg_id = "x"  # type: ignore[misc]


async def test_a_result_with_no_more_than_it_must_have(cluster: Cluster) -> None:
    cluster.a.answer = fields(MSG_REGION=None, TRACE_ON=None)
    async with producer(cluster) as sender:
        result = await sender.send(message())
    assert (result.transaction_id, result.region_id, result.trace_on, result.recall_handle) == (None, None, True, None)


async def test_each_call_gives_its_message_a_new_id(cluster: Cluster) -> None:
    one = message()
    async with producer(cluster) as sender:
        ids = {(await sender.send(one)).msg_id for _ in range(100)}
        ids |= {result.msg_id for result in await asyncio.gather(*[sender.send(one) for _ in range(100)])}
        own = await sender.send(message(unique_id="MINE"))
    assert len(ids) == 200
    assert own.msg_id == "MINE"
    assert {sent.unique_id for sent in cluster.sends} == ids | {"MINE"}


async def test_a_batch_is_taken_apart(cluster: Cluster) -> None:
    async with producer(cluster) as sender:
        await sender.send(message())
        batch = await sender.send_batch(messages(3, tags="t"))
    assert isinstance(batch, BatchSendResult)
    sent = cluster.sends[1]
    assert sent.code == 320
    assert [record.body for record in sent.batch] == [b"000000", b"000001", b"000002"]
    assert (batch.queue_offset, batch.attempts, len(set(batch.msg_ids)), len(set(batch.offset_msg_ids))) == (1, 1, 3, 3)
    single = batch.results
    assert [one.queue_offset for one in single] == [1, 2, 3]
    assert [one.msg_id for one in single] == list(batch.msg_ids)
    assert [one.offset_msg_id for one in single] == list(batch.offset_msg_ids)
    for one, record in zip(single, sent.batch, strict=True):
        assert b"UNIQ_KEY\x01%b\x02" % one.msg_id.encode() in record.properties
    assert {one.queue for one in single} == {sent.queue}


async def test_a_batch_that_is_stored_as_one_record_has_one_offset_id(cluster: Cluster) -> None:
    cluster.a.answer = fields(msgId="ONE")
    async with producer(cluster) as sender:
        batch = await sender.send_batch(messages(3))
        assert batch.offset_msg_ids == ("ONE",) * 3
        cluster.a.answer = fields(msgId="ONE,TWO")
        with pytest.raises(errors.RemoteProtocolError) as caught:
            await sender.send_batch(messages(3))
        assert caught.value.maybe_stored


@pytest.mark.parametrize("form", ["json", "rocketmq"])
@pytest.mark.parametrize("answers", list(SerializeType))
async def test_both_forms_of_headers(form: str, answers: SerializeType) -> None:
    async with Cluster(1) as cluster:
        cluster.a.form = answers
        async with producer(cluster, serialize_type=form) as sender:
            result = await sender.send(message(b"x", tags="tag", flag=3, keys=["k1", "k2"], properties={"p": "ü"}))
            batch = await sender.send_batch(messages(2))
            await sender.send_oneway(message(b"y"))
            await sender.flush()
    single, double, oneway = cluster.sends
    assert single.unique_id == result.msg_id
    assert {"TAGS": "tag", "KEYS": "k1 k2", "p": "ü", "WAIT": "true"}.items() <= single.properties.items()
    assert (single.fields["h"], single.fields["f"], single.fields["a"], single.fields["c"]) == ("3", "0", "group", "TBW102")
    assert [record.body for record in double.batch] == [b"000000", b"000001"]
    assert len(batch.msg_ids) == 2
    assert (oneway.oneway, oneway.body) == (True, b"y")


async def test_the_message_of_the_caller_is_not_touched(pair: Cluster) -> None:
    pair.answer(each(refuse(1), stored))
    made = Message(
        TOPIC, b"z" * 10_000, tags="a", keys=["k"], flag=1, properties={"p": "v"}, sharding_key="s", wait_store=False
    )
    before = copy.deepcopy(made)
    options: list[dict[str, Any]] = [{}, {"queue": pair.queue()}, {"key": 1}]
    async with producer(pair, compress_over=1, retry_same_queue=True) as sender:
        for given in options:
            await sender.send(made, **given)
            await (await sender.send_async(made, **given))
            await sender.send_oneway(made, **given)
        await sender.send_batch([made, made])
    assert made == before
    assert made.properties is not None
    assert made.properties == {"p": "v"}
    with pytest.raises(AttributeError):
        made.body = b""  # type: ignore[misc]
