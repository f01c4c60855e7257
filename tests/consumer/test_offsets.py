"""Questions about one queue: of queues that are there, in time, and never about others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest

from rmq_async import Message, Producer
from rmq_async.client.offsets import check_queue, epoch_ms
from rmq_async.config import ClientConfig
from rmq_async.consumer import PullConsumer
from rmq_async.errors import (
    BrokerNotFoundError,
    ClientStateError,
    ConfigError,
    SubscriptionGroupNotExistError,
    SystemBusyError,
    TopicNotFoundError,
)
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode, ResponseCode
from rmq_protocol.headers import PullMessageRequestHeader
from rmq_protocol.heartbeat import decode_heartbeat
from rmq_protocol.message import MessageQueue

from ..support.fakes import Link, silence
from .support import TOPIC, embedded, record, scripted

pytestmark = pytest.mark.virtual_time

QUESTIONS: dict[str, Callable[[PullConsumer, MessageQueue], Any]] = {
    "committed": lambda consumer, queue: consumer.committed(queue),
    "commit": lambda consumer, queue: consumer.commit(queue, 1),
    "min_offset": lambda consumer, queue: consumer.min_offset(queue),
    "max_offset": lambda consumer, queue: consumer.max_offset(queue),
    "search_offset": lambda consumer, queue: consumer.search_offset(queue, 0),
    "read": lambda consumer, queue: anext(consumer.read(queue.topic, queues=[queue])),
}


@pytest.mark.parametrize("name", QUESTIONS)
async def test_a_queue_that_does_not_exist_is_an_error(name: str) -> None:
    """Brokers would answer 0, or take the offset."""
    async with embedded(queues=2) as (server, consumer):
        ask = QUESTIONS[name]
        with pytest.raises(TopicNotFoundError, match="Missing"):
            await ask(consumer, MessageQueue("Missing", "broker-a", 0))
        with pytest.raises(BrokerNotFoundError, match="not on broker broker-x, but on broker-a"):
            await ask(consumer, MessageQueue(TOPIC, "broker-x", 0))
        with pytest.raises(ConfigError, match="no queue 2 on broker broker-a, only queues 0 to 1"):
            await ask(consumer, MessageQueue(TOPIC, "broker-a", 2))
        assert not server.requests[14] + server.requests[15] + server.requests[29] + server.requests[30] + server.requests[31]


BUSY = {
    "committed": [RequestCode.QUERY_CONSUMER_OFFSET],
    "min_offset": [RequestCode.GET_MIN_OFFSET],
    "max_offset": [RequestCode.GET_MAX_OFFSET],
    "search_offset": [RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, RequestCode.GET_MIN_OFFSET],
    "read": [RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.GET_MIN_OFFSET, RequestCode.PULL_MESSAGE],
}


@pytest.mark.parametrize("name", BUSY)
@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL])
async def test_question_to_a_busy_broker_is_asked_again(name: str, code: int) -> None:
    async with embedded(queues=1) as (server, consumer), Producer("p", namesrv=server.namesrv) as producer:
        queue = (await producer.send(Message(TOPIC, b"x"))).queue
        for request in BUSY[name]:
            server.fail_next(code, 2, request=request)
        began = monotonic()
        await QUESTIONS[name](consumer, queue)
        assert 0.1 < monotonic() - began < 1.0


async def test_question_to_a_broker_that_stays_busy_is_an_error_in_time() -> None:
    async with embedded(queues=1) as (server, consumer):
        server.fail_next(ResponseCode.SYSTEM_BUSY, 100, request=RequestCode.GET_MIN_OFFSET)
        began = monotonic()
        with pytest.raises(SystemBusyError):
            await consumer.min_offset(MessageQueue(TOPIC, "broker-a", 0))
        assert 0.4 < monotonic() - began <= 1.0


@pytest.mark.parametrize("name", QUESTIONS)
async def test_a_queue_of_a_broker_without_queues_of_the_topic_is_an_error(name: str) -> None:
    async with embedded(brokers=2) as (server, consumer):
        server.resize(TOPIC, 0, broker="broker-a")
        text = "topic t has no queue 0 on broker broker-a, nor any other queue; pass a queue of another broker"
        with pytest.raises(ConfigError, match=f"^{text}$"):
            await QUESTIONS[name](consumer, MessageQueue(TOPIC, "broker-a", 0))


@pytest.mark.parametrize("name", QUESTIONS)
async def test_stopping_ends_a_question_at_once(name: str) -> None:
    async with scripted(request_timeout=30.0) as (broker, consumer):
        broker.serve = silence
        call = asyncio.ensure_future(QUESTIONS[name](consumer, MessageQueue(TOPIC, "broker-a", 0)))
        while not [request for request in broker.requests if request.code != 34]:
            await asyncio.sleep(0.001)
        start = monotonic()
        await consumer.stop(0.1)
        with pytest.raises(ClientStateError, match="was stopped"):
            await call
        assert 0.09 < monotonic() - start < 0.11


async def test_a_group_that_a_broker_has_not_heard_of_yet_commits_all_the_same() -> None:
    """It handles the first heartbeat beside what comes after it."""
    async with scripted() as (broker, _):
        known: set[str] = set()
        commits: list[bool] = []

        def answer(link: Link, request: RemotingCommand) -> None:
            if request.code == RequestCode.HEART_BEAT:
                groups = {data.group_name for data in decode_heartbeat(request.body).consumer_data_set}
                asyncio.get_running_loop().call_later(0.1, lambda: (known.update(groups), link.reply(request)))
            elif request.code == RequestCode.UPDATE_CONSUMER_OFFSET:
                commits.append((request.ext_fields or {})["consumerGroup"] in known)
                link.reply(request, code=0 if commits[-1] else 26, remark=None if commits[-1] else "not exist")
            else:
                link.reply(request)

        broker.serve = answer
        config = ClientConfig(namesrv=broker.name_server.address, instance_name="later", request_timeout=0.5)
        async with PullConsumer("later", client=config) as consumer:
            queue = MessageQueue(TOPIC, "broker-a", 0)
            await consumer.commit(queue, 1)
            assert commits == [False, True]
            known.clear()
            began = monotonic()
            with pytest.raises(SubscriptionGroupNotExistError, match="not exist"):
                await consumer.commit(queue, 2)
            assert commits == [False, True, False, False], "where no heartbeat is under way it is asked again at once, and once"
            assert monotonic() - began < 0.01


async def test_a_known_queue_costs_no_look_up() -> None:
    async with embedded() as (server, consumer):
        queue = (await consumer.queues(TOPIC))[0]
        before = server.requests[105]
        for _ in range(3):
            await consumer.max_offset(queue)
        assert server.requests[105] == before


@pytest.mark.parametrize("foreign", [{"topic": "other"}, {"queue_id": 1}])
async def test_search_beside_a_foreign_record(foreign: dict[str, Any]) -> None:
    """A broker without an exact search is asked for the messages' times; one of another queue in the place of a deleted one
    has none to give."""

    def pull(header: PullMessageRequestHeader) -> tuple[int, int, bytes]:
        offset = int(header.queueOffset)
        changes = {"store_time_ms": 9_000, **foreign} if offset == 0 else {"store_time_ms": 1_000 * offset}
        return 0, offset + 1, record(offset, **changes)

    async with scripted(pull) as (broker, consumer):
        broker.high = 4
        serve = broker.serve

        def answer(link: Link, request: RemotingCommand) -> None:
            if request.code == RequestCode.SEARCH_OFFSET_BY_TIMESTAMP:
                link.reply(request, body=b"", ext_fields={"offset": "0"}, version=399)
            else:
                serve(link, request)

        broker.serve = answer
        assert await consumer.search_offset(MessageQueue(TOPIC, "broker-a", 0), 2.0) == 2


def test_times_and_queues_that_cannot_be_are_reported_however_long_their_numbers() -> None:
    for when in (10**5000, -(10**5000), 10**400):
        with pytest.raises(ConfigError, match="a time must be"):
            epoch_ms(when)
    for queue_id in (-(10**5000), 10**5000, 1 << 31, -1):
        with pytest.raises(ConfigError, match="a queue must be a MessageQueue"):
            check_queue(("t", "b", queue_id))  # type: ignore[arg-type]
