"""A task's sends without Spark: what is retried, in which order, what fails the task, and what is held meanwhile."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from itertools import pairwise
from time import monotonic, sleep
from typing import Any

import pytest

from rmq_async import (
    MessageExt,
    NameServerError,
    RequestTimeoutError,
    RocketMQError,
    TopicNotFoundError,
)
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.errors import NoPermissionError
from rmq_protocol.constants import RequestCode, ResponseCode

from ..conftest import Loop, Topics, resume
from .support import Write, options_of, rows

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from rmq_async.spark import sending as sending_module  # noqa: E402
from rmq_async.spark.rows import blocks_of  # noqa: E402
from rmq_async.spark.sending import IN_FLIGHT_BYTES, Sending  # noqa: E402
from rmq_async.spark.worker import Worker  # noqa: E402
from rmq_async.spark.writing import check_topic  # noqa: E402

BATCH = RequestCode.SEND_BATCH_MESSAGE
FLUSH_TIMEOUT = ResponseCode.FLUSH_DISK_TIMEOUT


def ids(messages: list[MessageExt]) -> Counter[tuple[str, str]]:
    return Counter((message.properties["RMQ_SPARK_ID"], message.properties["UNIQ_KEY"]) for message in messages)


def test_every_row_is_stored_once(write: Write, topics: Topics) -> None:
    topic = topics.make()
    sending = write(topic, rows(3000), rows(500, 3000), batchBytes=10_000)
    found = topics.read(topic)
    assert Counter(message.body for message in found) == Counter(str(row).encode() for row in range(3500))
    assert {(message.body.decode(), message.properties["RMQ_SPARK_ID"]) for message in found} == {
        (str(row), f"job:0:0:{row}") for row in range(3500)
    }
    assert (sending.rows, sending.bytes, sending.retried) == (3500, sum(len(message.body) for message in found), 0)
    assert len({message.queue for message in found}) == 8


def test_topics_of_a_namespace_are_found_in_it(write: Write, topics: Topics) -> None:
    topics.make(name="ns%there")
    write("there", rows(3), rows(1, 3, delayLevel=[None]), rows(2, 4, shardingKey=["a", "b"]), namespace="ns")
    found = topics.read("ns%there")
    assert sorted(int(message.body) for message in found) == list(range(6))
    assert {message.properties.get("INSTANCE_ID") for message in found if message.body == b"3"} == {"ns"}


def test_a_status_that_confirms_less_is_sent_again_under_the_same_ids(
    write: Write, topics: Topics, servers: EmbeddedRocketMQ
) -> None:
    topic = topics.make()
    servers.fail_next(FLUSH_TIMEOUT, 2, request=BATCH)
    sending = write(topic, rows(400), batchBytes=10_000)
    counts = ids(topics.read(topic))
    assert (sending.rows, len(counts)) == (400, 400)
    assert 2 in counts.values(), "stored by both answers, with one id"
    assert sending.retried == list(counts.values()).count(2)

    topic = topics.make()
    servers.fail_next(ResponseCode.SLAVE_NOT_AVAILABLE, 2, request=BATCH)
    assert write(topic, rows(400), batchBytes=10_000, requireStatus="stored").rows == 400
    assert set(ids(topics.read(topic)).values()) == {1}


def test_a_status_that_stays_fails_the_task(write: Write, topics: Topics, servers: EmbeddedRocketMQ) -> None:
    topic = topics.make(queues=1)
    servers.fail_next(FLUSH_TIMEOUT, 10_000, request=BATCH)
    try:
        with pytest.raises(
            RequestTimeoutError, match=r"answered FLUSH_DISK_TIMEOUT until 0.3 s .*requireStatus=stored"
        ) as caught:
            write(topic, rows(10), sendTimeoutMs=300)
    finally:
        servers.fail_next(FLUSH_TIMEOUT, 0, request=BATCH)
    assert caught.value.maybe_stored


def test_a_status_at_the_only_attempt_is_not_said_to_have_lasted(
    write: Write, topics: Topics, servers: EmbeddedRocketMQ
) -> None:
    servers.fail_next(FLUSH_TIMEOUT, 1, request=BATCH)
    with pytest.raises(RequestTimeoutError, match=r"answered FLUSH_DISK_TIMEOUT at the only attempt \(option sendRetries\);"):
        write(topics.make(queues=1), rows(10), sendRetries=0)


def test_answers_that_do_not_come_fail_the_task(write: Write, topics: Topics, servers: EmbeddedRocketMQ, loop: Loop) -> None:
    """The last 1 % are stored for all that is known, and never answered; the others' answers are slow."""
    topic = topics.make()
    last = {"brokerName": [None] * 198 + ["broker-b"] * 2, "queueId": [None] * 198 + [0, 1]}
    given = rows(200, **last).cast(pa.schema({"body": pa.string(), "brokerName": pa.string(), "queueId": pa.int32()}))
    servers.delay(0.4)
    servers.stall("broker-b")
    try:
        with pytest.raises(RocketMQError) as caught:
            write(topic, given, sendTimeoutMs=1200, batchBytes=0)
    finally:
        resume(loop, servers)
        servers.delay(0)
    assert isinstance(caught.value.__cause__ or caught.value, RequestTimeoutError)


@pytest.mark.parametrize("named", [False, True], ids=["sharding keys", "queues"])
def test_rows_of_a_key_stay_in_order_through_failures(
    write: Write, topics: Topics, servers: EmbeddedRocketMQ, named: bool
) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    topic = topics.make(queues=2)
    batches = []
    for first in range(0, 900, 300):
        keys = [f"k{chance.randrange(9)}" for _ in range(300)]
        given = rows(300, first, tags=keys)
        if named:
            places = [chance.choice([("broker-a", 0), ("broker-a", 1), ("broker-b", 1)]) for _ in range(300)]
            given = given.append_column("brokerName", pa.array([broker for broker, _ in places]))
            given = given.append_column("queueId", pa.array([number for _, number in places]))
        else:
            given = given.append_column("shardingKey", pa.array(keys))
        batches.append(given)
    for code in (ResponseCode.SYSTEM_BUSY, ResponseCode.SYSTEM_ERROR, ResponseCode.SERVICE_NOT_AVAILABLE):
        servers.fail_next(code, chance.randrange(1, 12), request=BATCH)
    dropper = threading.Timer(0.02, servers.drop_connections)
    dropper.start()
    sending = write(topic, *batches, batchBytes=4000)
    dropper.join()
    assert sending.rows == 900
    queues = defaultdict(list)
    for message in topics.read(topic):
        seen = queues[message.queue if named else message.tags]
        if int(message.body) not in seen:  # a copy that came later is a copy
            seen.append(int(message.body))
    assert sum(map(len, queues.values())) == 900
    assert all(seen == sorted(seen) for seen in queues.values())


def test_delayed_rows_go_alone_and_to_all_queues(write: Write, topics: Topics, servers: EmbeddedRocketMQ) -> None:
    topic = topics.make()
    before = servers.requests
    write(topic, rows(20, delayLevel=[None, 1] * 10))
    made = servers.requests - before
    assert made[RequestCode.SEND_MESSAGE_V2] == 10
    assert made[BATCH] == 1
    assert len(topics.read(topic)) == 10
    assert len(servers.messages("SCHEDULE_TOPIC_XXXX")) == 10


def test_bodies_up_to_the_limit_are_bounded_while_unanswered(
    here: Worker, topics: Topics, servers: EmbeddedRocketMQ, loop: Loop
) -> None:
    topic = topics.make()
    options = options_of(servers.namesrv, topic, {})
    body = random.randbytes(4 * 1024 * 1024)
    sending = Sending(here, here.producer(options), options)
    servers.stall()
    blocks = blocks_of(iter([pa.RecordBatch.from_pydict({"body": [body] * 8})]), options, "job:0", 0)
    handing = threading.Thread(target=lambda: [sending.send(block) for block in blocks])
    handing.start()
    sleep(0.5)
    held, waits = sending._pending, handing.is_alive()  # noqa: SLF001
    resume(loop, servers)
    handing.join()
    sending.finish()
    assert waits, "Spark's thread waits for answers"
    assert 0 < held <= IN_FLIGHT_BYTES
    assert [len(message.body) for message in topics.read(topic)] == [4 * 1024 * 1024] * 8


def test_unanswered_properties_are_bounded_like_bodies(
    here: Worker, topics: Topics, servers: EmbeddedRocketMQ, loop: Loop
) -> None:
    topic = topics.make()
    options = options_of(servers.namesrv, topic, {"batchBytes": 1 << 20})
    sending = Sending(here, here.producer(options), options)
    servers.stall()
    properties = pa.array([[("baggage", "x" * 30_000)]] * 100, pa.map_(pa.string(), pa.string()))
    batch = pa.RecordBatch.from_pydict({"body": [b"1"] * 100, "properties": properties})
    batches = iter([batch] * 10)
    handing = threading.Thread(target=lambda: [sending.send(block) for block in blocks_of(batches, options, "job:0", 0)])
    handing.start()
    handing.join(0.5)
    waits, left = handing.is_alive(), len(list(batches))
    resume(loop, servers)
    handing.join()
    sending.finish()
    assert waits, "Spark's thread waits for answers"
    taken = 10 - left
    assert (taken - 1) * 100 * 30_000 <= IN_FLIGHT_BYTES
    assert len(topics.read(topic)) == sending.rows == taken * 100


def test_a_broker_that_restarts_is_waited_for(write: Write, topics: Topics, servers: EmbeddedRocketMQ, loop: Loop) -> None:
    topic = topics.make()
    restarting: list[Future[None]] = []

    async def restart() -> None:
        await servers.stop()
        await asyncio.sleep(1.5)
        await servers.start()

    def feed() -> Iterator[Any]:
        for first in range(0, 1000, 100):
            if first == 500:
                restarting.append(loop.start(restart()))
                sleep(0.1)
            yield rows(100, first)

    started = monotonic()
    assert write(topic, feed=feed(), batchBytes=3000).rows == 1000
    assert monotonic() - started > 1.4
    restarting[0].result()
    assert {int(message.body) for message in topics.read(topic)} == set(range(1000))


def test_a_failure_stops_handing_over_and_is_not_waited_out(write: Write, topics: Topics, servers: EmbeddedRocketMQ) -> None:
    topic = topics.make()
    fed = 0

    def feed() -> Iterator[Any]:
        nonlocal fed
        for fed in range(100):
            yield rows(100, fed * 100)

    servers.fail_next(ResponseCode.MESSAGE_ILLEGAL, 1, request=BATCH)
    started = monotonic()
    with pytest.raises(RocketMQError, match="13 MESSAGE_ILLEGAL"):
        write(topic, feed=feed(), batchBytes=3000)
    assert fed < 50
    assert monotonic() - started < 20  # sendTimeoutMs is 30 s


def test_what_a_broker_will_never_take_is_not_sent_for_half_a_minute(
    write: Write, here: Worker, topics: Topics, servers: EmbeddedRocketMQ
) -> None:
    started = monotonic()
    with pytest.raises(TopicNotFoundError, match="no-such-topic"):
        write("no-such-topic", rows(3))
    with pytest.raises(TopicNotFoundError, match="no-such-topic"):
        write("no-such-topic", rows(3, shardingKey=["a", "b", "c"]))
    topic = topics.make()
    with pytest.raises(RocketMQError, match="broker-x"):
        write(topic, rows(1, brokerName=["broker-x"], queueId=[0]), sendTimeoutMs=1000)
    servers.fail_next(ResponseCode.NO_PERMISSION, 1000, request=BATCH)
    try:
        with pytest.raises(RocketMQError, match="16 NO_PERMISSION") as caught:
            write(topic, rows(3))
    finally:
        servers.fail_next(ResponseCode.NO_PERMISSION, 0, request=BATCH)
    assert isinstance(caught.value.__cause__ or caught.value, NoPermissionError)
    servers.fail_next(ResponseCode.SYSTEM_BUSY, 1, request=BATCH)
    with pytest.raises(RocketMQError, match="2 SYSTEM_BUSY"):
        write(topic, rows(3), sendRetries=0)
    assert monotonic() - started < 25


def test_a_topic_that_was_there_is_waited_for(here: Worker, topics: Topics, servers: EmbeddedRocketMQ) -> None:
    options = options_of(servers.namesrv, "comes-back", {})
    sending = Sending(here, here.producer(options), options, topic_known=True)

    coming = threading.Timer(0.3, topics.make, kwargs={"name": "comes-back"})
    coming.start()
    try:
        for block in blocks_of(iter([rows(3)]), options, "job", 0):
            sending.send(block)
        sending.finish()
    finally:
        sending.close()
        coming.join()
    assert len(topics.read("comes-back")) == sending.rows == 3


def test_planning_finds_a_topic_that_is_not_there_or_will_be_made(
    servers: EmbeddedRocketMQ, topics: Topics, loop: Loop
) -> None:
    with pytest.raises(TopicNotFoundError, match="no-such-topic"):
        check_topic(options_of(servers.namesrv, "no-such-topic", {}))
    check_topic(options_of(servers.namesrv, topics.make(), {}))
    check_topic(options_of(servers.namesrv, None, {}))
    making = EmbeddedRocketMQ()
    loop.run(making.start())
    try:
        check_topic(options_of(making.namesrv, "made-at-its-first-message", {}))
    finally:
        loop.run(making.stop())
    with pytest.raises(NameServerError):
        check_topic(options_of(making.namesrv, "any", {"requestTimeoutMs": 500}))


def test_an_unforeseen_error_is_no_silent_loss(
    here: Worker, topics: Topics, servers: EmbeddedRocketMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = options_of(servers.namesrv, topics.make(), {})
    producer = here.producer(options)
    sending = Sending(here, producer, options)

    async def broken(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(sending_module, "send_prepared", broken)
    for block in blocks_of(iter([rows(3)]), options, "job:0", 0):
        with suppress(KeyError):
            sending.send(block)
    with pytest.raises(KeyError, match="a bug"):
        sending.finish()
    sending.close()


def test_the_rate_holds_for_small_and_large_blocks(write: Write, topics: Topics) -> None:
    topic = topics.make()
    started = monotonic()
    write(topic, rows(100), rows(20, 100), maxMessagesPerSecond=200)
    assert 0.4 < monotonic() - started < 6
    assert len(topics.read(topic)) == 120


def test_rate_saves_up_no_pause(write: Write, topics: Topics) -> None:
    """After a pause without rows no more is sent beyond the rate than a quarter of a second's."""
    topic = topics.make(1)

    def feed() -> Iterator[Any]:
        yield rows(50)
        sleep(2.0)
        yield rows(150, 50)

    write(topic, feed=feed(), maxMessagesPerSecond=100)
    stored = sorted(message.store_time_ms for message in topics.read(topic))
    assert len(stored) == 200
    resumed = next(later for before, later in pairwise(stored) if later - before > 1000)
    at_once = sum(resumed <= at < resumed + 250 for at in stored)  # 50; all of them where the pause counted
    assert at_once <= 100, f"{at_once} messages in the quarter of a second after the pause"


def test_a_further_attempt_has_connections_of_its_own(
    here: Worker, servers: EmbeddedRocketMQ, write: Write, topics: Topics
) -> None:
    options = options_of(servers.namesrv, topics.make(), {})
    producer = here.producer(options)
    assert here.producer(options) is producer
    assert here.producer(options, fresh=True) is not producer
    assert "stopped" in repr(producer)
