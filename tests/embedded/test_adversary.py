"""Answers late, in parts and out of order; a broker that is busy, loses messages, or changes its queues."""

from __future__ import annotations

import asyncio
import random
import re

import pytest

from rmq_async import Message, Producer, PullConsumer, PullStatus, SystemBusyError
from rmq_async.embedded import EmbeddedRocketMQ, ManualClock
from rmq_async.embedded.faults import Gate
from rmq_async.embedded.server import SlicedWriter
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode
from rmq_protocol.heartbeat import HeartbeatData, encode_heartbeat
from rmq_protocol.message import MessageQueue
from rmq_protocol.route import decode_route, publish_queues

from ..support.fakes import RawClient, oneway, pull_fields, send_fields
from .inside import START

MAX = RequestCode.GET_MAX_OFFSET
BUSY = re.compile(
    r"\[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: 200ms, size of queue: (\d+)"
)


async def burst(server: EmbeddedRocketMQ, broker: RawClient, count: int, flag: int = 0) -> list[int]:
    """Has the broker read ``count`` sends at once; returns their opaques."""
    server.stall("broker-a")
    opaques = [broker.write(310, send_fields("T"), b"%d" % number, flag=flag) for number in range(count)]
    await broker.writer.drain()
    await asyncio.sleep(0.05)  # on a busy machine the kernel delivers in parts
    server.resume("broker-a")
    return opaques


# -- late, in parts, out of order


@pytest.mark.virtual_time
async def test_jitter_lets_answers_overtake_each_other(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    """The order is that of what the seed draws: gaps of this one are 50 ms and more."""
    orders = []
    for _ in range(2):
        server.delay(0.05, jitter=0.4, seed=711)
        opaques = await burst(server, broker, 6)
        orders.append([opaques.index((await broker.read()).opaque) for _ in opaques])
    assert orders[0] == orders[1] != sorted(orders[0])
    assert [message.body for message in server.messages("T")] == [b"%d" % number for number in range(6)] * 2
    server.delay(0)
    opaques = await burst(server, broker, 6)
    assert [(await broker.read()).opaque for _ in opaques] == opaques


@pytest.mark.virtual_time
async def test_delay_without_jitter_keeps_order_when_it_shrinks(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    server.delay(0.2)
    first = await burst(server, broker, 3)
    while len(server.messages("T")) < 3:
        await asyncio.sleep(0.001)
    server.delay(0.01)
    second = await burst(server, broker, 3)
    assert [(await broker.read()).opaque for _ in range(6)] == first + second


@pytest.mark.virtual_time
@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf")])
async def test_jitter_that_is_no_time_is_refused(server: EmbeddedRocketMQ, broker: RawClient, wrong: float) -> None:
    with pytest.raises(ValueError, match="jitter of a delay must be a finite, non-negative number of seconds"):
        server.delay(0.1, jitter=wrong)
    assert (await broker.send("T")).code == 0


async def test_sliced_answers_come_whole_and_in_order(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    await broker.send("T", bytes(3000))
    server.slice(7)
    opaques = [broker.write(310, send_fields("T"), b"%d" % number) for number in range(20)]
    pulled = broker.write(RequestCode.PULL_MESSAGE, pull_fields("T", maxMsgNums="1"))
    reads = 0
    answers: list[RemotingCommand] = []
    while len(answers) < 21:
        data = await asyncio.wait_for(broker.reader.read(65536), 60)
        reads += 1
        broker.ready += broker.decoder.feed(data)
        while broker.ready:
            answers.append(await broker.read())
    assert [answer.opaque for answer in answers] == [*opaques, pulled]
    assert len(answers[-1].body) > 3000
    assert reads > 5
    server.slice(None)
    assert (await broker.send("T")).code == 0


@pytest.mark.virtual_time
async def test_slices_of_all_kinds_do_not_trouble_a_producer(server: EmbeddedRocketMQ) -> None:
    server.slice(random.randrange(1000))
    server.slice(3, broker="namesrv")
    server.delay(0.0, jitter=0.01, seed=5)
    async with Producer("shop", namesrv=server.namesrv) as producer:
        results = await asyncio.gather(*(producer.send(Message("T", b"%d" % number)) for number in range(50)))
    assert {result.attempts for result in results} == {1}
    assert len(server.messages("T")) == 50


@pytest.mark.virtual_time
async def test_stalled_broker_keeps_its_slices(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    await broker.send("T", bytes(100_000))
    server.slice(1)
    broker.write(RequestCode.PULL_MESSAGE, pull_fields("T"))
    begun = await broker.reader.read(65536)
    server.stall()
    with pytest.raises(TimeoutError):
        while True:
            begun += await asyncio.wait_for(broker.reader.read(65536), 0.1)
    assert 0 < len(begun) < 100_000
    server.slice(None)
    server.resume()
    answer = broker.decoder.feed(begun)
    while not answer:
        answer = broker.decoder.feed(await asyncio.wait_for(broker.reader.read(65536), 60))
    assert len(answer[0].body) > 100_000


async def test_stop_sends_what_was_sliced(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    server.slice(1)
    opaque = broker.write(310, send_fields("T"), b"x")
    while not server.messages("T"):
        await asyncio.sleep(0)
    await server.stop()
    assert (await broker.read()).opaque == opaque


class Recorded(asyncio.Transport):
    """Keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))


@pytest.mark.virtual_time
async def test_a_seed_repeats_the_slices() -> None:
    runs = []
    for seed in (1, 1, 2):
        gate, transport = Gate(), Recorded()
        gate.slices = random.Random(seed)
        writer = SlicedWriter(transport, gate)
        writer.write(bytes(range(200)))
        writer.write(bytes(range(200, 256)))
        while len(writer):
            await asyncio.sleep(0.001)
        assert b"".join(transport.written) == bytes(range(256))
        runs.append([len(data) for data in transport.written])
    assert runs[0] == runs[1] != runs[2]
    assert len(runs[0]) > 2


# -- busy


@pytest.mark.virtual_time
async def test_sends_beyond_the_rate_are_refused_as_busy(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    """Some 20 of 60 find their turn within 0.2 s at 100 a second."""
    server.throttle(100)
    opaques = await burst(server, broker, 60)
    answers = {(answer := await broker.read()).opaque: answer for _ in opaques}
    codes = [answers[opaque].code for opaque in opaques]
    stored = codes.index(2)
    assert 20 <= stored < 40  # what was served meanwhile makes room
    assert set(codes[:stored]) == {0}
    assert len(server.messages("T")) == codes.count(0)
    for answer in answers.values():
        if answer.code == 2:
            found = BUSY.fullmatch(answer.remark or "")
            assert found is not None, answer.remark
            assert 19 <= int(found[1]) <= 21
    server.throttle(None)
    assert (await broker.send("T")).code == 0


@pytest.mark.virtual_time
async def test_cold_broker_serves_faster_with_each_send(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    """Of its first 60 some 25 find their turn within 0.2 s; the rate rises to 150 a second with them, and with the next ones."""
    server.throttle(100, warm=1000)
    codes = []
    for _ in range(4):
        opaques = await burst(server, broker, 60)
        answers = {(answer := await broker.read()).opaque: answer.code for _ in opaques}
        codes += [answers[opaque] for opaque in opaques]
    refused = [codes[first : first + 60].count(2) for first in range(0, 240, 60)]
    assert refused[0] > 20 > refused[-1] == 0
    assert len(server.messages("T")) == codes.count(0)


@pytest.mark.virtual_time
async def test_busy_broker_drops_oneway_sends_and_serves_the_rest(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    server.throttle(0.5)
    await burst(server, broker, 5, oneway())
    assert (await broker.ask(RequestCode.HEART_BEAT, None, encode_heartbeat(HeartbeatData("c")))).code == 0
    assert await broker.offset(MAX, "T") == 1
    answer = await broker.send("T")
    assert (answer.code, BUSY.fullmatch(answer.remark or "") is not None) == (2, True)


@pytest.mark.virtual_time
async def test_producer_turns_to_another_broker_when_one_is_busy() -> None:
    async with (
        EmbeddedRocketMQ(brokers=2) as server,
        Producer("shop", namesrv=server.namesrv) as producer,
        RawClient(server.brokers["broker-a"]) as a,
    ):
        await producer.send(Message("T", b"0"))
        server.throttle(0.05, broker="broker-a")
        a.write(310, send_fields("other"), b"x", flag=oneway())  # has its turn for 20 s
        await a.ask(9999)
        results = [await producer.send(Message("T", b"%d" % number)) for number in range(8)]
        assert {result.queue.broker_name for result in results} == {"broker-b"}
        assert max(result.attempts for result in results) == 2
        with pytest.raises(SystemBusyError, match="TIMEOUT_CLEAN_QUEUE"):
            await producer.send(Message("T", b"x"), queue=MessageQueue("T", "broker-a", 0))


async def test_answers_to_throttled_sends_are_lost_too(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    server.throttle(1000)
    server.lose_answers(1, request=RequestCode.SEND_MESSAGE_V2)
    broker.write(RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"lost")
    assert (await broker.send("T", b"answered")).code == 0
    assert [message.body for message in server.messages("T")] == [b"lost", b"answered"]


@pytest.mark.virtual_time
async def test_lost_answers_with_throttle_are_those_of_sends_that_are_served(
    server: EmbeddedRocketMQ, broker: RawClient
) -> None:
    server.throttle(0.5)
    broker.write(RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"in its turn", flag=oneway())
    server.lose_answers(1, request=RequestCode.SEND_MESSAGE_V2)
    broker.write(RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"dropped", flag=oneway())
    assert (await broker.send("T", b"refused")).code == 2
    server.throttle(None)
    broker.write(RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"served")
    assert (await broker.send("T", b"answered")).code == 0
    assert [message.body for message in server.messages("T")] == [b"in its turn", b"served", b"answered"]


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
async def test_rate_that_is_none_is_refused(server: EmbeddedRocketMQ, rate: float) -> None:
    with pytest.raises(ValueError, match="positive, finite number of sends"):
        server.throttle(rate)
    with pytest.raises(ValueError, match="warm must be a positive, finite number of sends"):
        server.throttle(1.0, warm=rate)
    with pytest.raises(ValueError, match=r"warm must not be below rate, 2\.0, it is 1\.0"):
        server.throttle(2.0, warm=1.0)
    with pytest.raises(ValueError, match="no broker 'namesrv'; there are broker-a"):
        server.throttle(1.0, broker="namesrv")


@pytest.mark.parametrize("rate", ["1", True, [1]])
async def test_rate_of_a_wrong_type_is_refused(server: EmbeddedRocketMQ, rate: float) -> None:
    with pytest.raises(TypeError, match=r"^rate must be a number, not "):
        server.throttle(rate)


@pytest.mark.virtual_time
async def test_stop_ends_throttling_as_other_faults() -> None:
    server = EmbeddedRocketMQ()
    async with server, RawClient(server.brokers["broker-a"]) as broker:
        server.throttle(4)
        opaques = [broker.write(RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"x") for _ in range(3)]
        codes = {answer.opaque: answer.code for answer in [await broker.read() for _ in opaques]}
        assert sorted(codes.values()) == [0, 2, 2]
    async with server, RawClient(server.brokers["broker-a"]) as broker:
        begin = asyncio.get_running_loop().time()
        assert [(await broker.send("T")).code for _ in range(3)] == [0, 0, 0]
        assert asyncio.get_running_loop().time() - begin < 0.2


# -- queues


async def test_queues_of_a_topic_shrink_and_grow(server: EmbeddedRocketMQ, broker: RawClient, names: RawClient) -> None:
    await broker.create_topic("T", 4)
    await broker.send("T", b"last", queue=3)

    async def queues() -> int:
        response = await names.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
        return len(publish_queues("T", decode_route(response.body)))

    server.resize("T", 2)
    assert await queues() == 2
    assert (await broker.pull("T", 3)).code == 29
    assert (await broker.send("T", queue=3)).code == 29
    server.resize("T", 6, broker="broker-a")
    assert await queues() == 6
    assert (await broker.pull("T", 3)).code == 0


async def test_resize_refuses_what_cannot_be(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    await broker.create_topic("T", 4)
    for topic, queues, reason in (
        ("nope", 1, "no broker has"),
        ("TBW102", 1, r"^the topic 'TBW102' belongs to the broker and cannot be resized"),
        ("T", -1, r"^queues must be from 0 to 16384, not -1$"),
    ):
        with pytest.raises(ValueError, match=reason):
            server.resize(topic, queues)
    with pytest.raises(ValueError, match="no broker 'x'"):
        server.resize("T", 1, broker="x")
    for queues in (1.5, True, "4"):
        with pytest.raises(TypeError, match=f"^queues must be a whole number, not {queues!r}$"):
            server.resize("T", queues)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^topic must be a string, not \[\]$"):
        server.resize([], 4)  # type: ignore[arg-type]


async def test_resize_of_all_brokers_leaves_out_those_without_the_topic() -> None:
    async with EmbeddedRocketMQ(brokers=2) as server, RawClient(server.brokers["broker-b"]) as b:
        await b.create_topic("T", 4)
        server.resize("T", 1)
        with pytest.raises(ValueError, match=r"^broker-a has no topic 'T'; create it, or send to it first$"):
            server.resize("T", 1, broker="broker-a")
        async with RawClient(server.namesrv) as names:
            route = decode_route((await names.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})).body)
        assert [(data.broker_name, data.write_queue_nums) for data in route.queue_datas] == [("broker-b", 1)]


# -- a new master with fewer messages


async def test_consumer_sees_the_end_of_a_queue_go_back() -> None:
    async with EmbeddedRocketMQ(brokers=2) as server, Producer("shop", namesrv=server.namesrv) as producer:
        await producer.send(Message("T", b"-"))
        a, b = (MessageQueue("T", name, 0) for name in ("broker-a", "broker-b"))
        server.clear()
        for number in range(10):
            for queue in (a, b):
                await producer.send(Message("T", b"%d" % number), queue=queue)
        async with PullConsumer("report", namesrv=server.namesrv) as consumer:
            before = await consumer.max_offset(a), await consumer.max_offset(b)
            assert server.truncate("broker-a", 4) == 4
            assert (await consumer.max_offset(a), await consumer.max_offset(b)) == (before[0] - 4, before[1])
            ahead = await consumer.pull(a, before[0])
            assert (ahead.status, ahead.next_offset) == (PullStatus.OFFSET_ILLEGAL, before[0] - 4)
        again = await producer.send(Message("T", b"new"), queue=a)
        assert again.queue_offset == before[0] - 4
        bodies = [message.body for message in server.messages("T") if message.queue.broker_name == "broker-a"]
        assert bodies == [b"%d" % number for number in range(6)] + [b"new"]
        assert server.truncate("broker-a", 99) == 7


async def test_pull_that_waits_beyond_the_end_hears_where_it_is(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    for _ in range(3):
        await broker.send("T")
    held = broker.write(RequestCode.PULL_MESSAGE, pull_fields("T", 0, 3, sysFlag="6", suspendTimeoutMillis="15000"))
    async with RawClient(broker.address) as sender:
        await broker.ask(9999)
        server.truncate("broker-a", 2)
        await sender.send("T")
        answer = await broker.read()
    assert (answer.opaque, answer.code, answer.remark) == (held, 21, "OFFSET_OVERFLOW_BADLY")
    assert (answer.ext_fields or {})["nextBeginOffset"] == "2"


async def test_truncate_takes_messages_that_wait() -> None:
    clock = ManualClock(START)
    async with EmbeddedRocketMQ(clock=clock) as server, RawClient(server.brokers["broker-a"]) as broker:
        for prefix in ("lost", "new"):
            for kind, wait in (("level", {"DELAY": "4"}), ("timer", {"TIMER_DELAY_SEC": "30"})):
                properties = {"UNIQ_KEY": prefix + kind, **wait}
                assert (await broker.send("T", f"{prefix}-{kind}".encode(), properties=properties)).code == 0
            if prefix == "lost":
                assert server.truncate("broker-a", 2) == 2
                await clock.advance(10)
        await clock.advance(25)
        assert server.messages("T") == []
        await clock.advance(30)
        assert sorted(message.body for message in server.messages("T")) == [b"new-level", b"new-timer"]


async def test_truncate_refuses_what_cannot_be(server: EmbeddedRocketMQ) -> None:
    with pytest.raises(ValueError, match="count must not be negative, it is -1"):
        server.truncate("broker-a", -1)
    with pytest.raises(ValueError, match="no broker 'namesrv'; there are broker-a"):
        server.truncate("namesrv", 1)
    for count in (1.5, True, None):
        with pytest.raises(TypeError, match=f"^count must be a whole number, not {count!r}$"):
            server.truncate("broker-a", count)  # type: ignore[arg-type]
