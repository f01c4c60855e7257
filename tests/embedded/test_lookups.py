"""Messages by key, by unique id, by time and by place; and the index behind the keys, by itself."""

from __future__ import annotations

import random
import struct

import pytest

from rmq_async.embedded import EmbeddedRocketMQ, ManualClock
from rmq_async.embedded.store import KeyIndex
from rmq_protocol.batch import encode_batch_message
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode
from rmq_protocol.ids import unpack_offset_id
from rmq_protocol.stored import decode_messages

from ..support.fakes import RawClient, oneway, send_fields
from .inside import START, broker_of, log_of

QUERY = RequestCode.QUERY_MESSAGE


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


def fields(key: str, topic: str = "T", **over: object) -> dict[str, str]:
    known: dict[str, object] = {"topic": topic, "key": key, "maxNum": 64, "beginTimestamp": 0, "endTimestamp": 2**63 - 1}
    return {name: str(value) for name, value in {**known, **over}.items()}


def found_in(response: RemotingCommand) -> list[bytes]:
    """Bodies, of an answer as it should be."""
    messages = decode_messages(response.body).messages
    assert response.code == (0 if messages else 22), response.remark
    return [message.body for message in messages]


async def query(broker: RawClient, key: str, topic: str = "T", **over: object) -> list[bytes]:
    return found_in(await broker.ask(QUERY, fields(key, topic, **over)))


def write(broker: RawClient, body: bytes, topic: str = "T", **properties: str) -> None:
    broker.write(310, send_fields(topic, properties={"UNIQ_KEY": body.decode(), **properties}), body, flag=oneway())


# --------------------------------------------------------------------------------------------------------------- what is found


async def test_messages_are_found_by_each_key_and_by_their_id_oldest_first(broker: RawClient, clock: ManualClock) -> None:
    write(broker, b"1", KEYS="red round")
    write(broker, b"2", KEYS="red")
    write(broker, b"3", KEYS="redder")
    write(broker, b"4", "U", KEYS="red")
    await clock.advance(1)
    assert await query(broker, "red") == [b"1", b"2"]
    assert await query(broker, "round") == [b"1"]
    assert await query(broker, "red", "U") == [b"4"]
    assert await query(broker, "3") == await query(broker, "3", _UNIQUE_KEY_QUERY="true") == [b"3"]
    write(broker, b"5", KEYS="a  red")
    assert await query(broker, "red") == [b"1", b"2", b"5"]
    for key in ("re", "red round", "", " ", "Red", "nope"):
        assert await query(broker, key) == []


async def test_the_answer_says_how_far_the_index_is(broker: RawClient, clock: ManualClock) -> None:
    write(broker, b"1", KEYS="k")
    await broker.offset(RequestCode.GET_MAX_OFFSET, "T")
    await clock.advance(5)
    last = await broker.send("T", b"2")
    response = await broker.ask(QUERY, fields("k"))
    place = unpack_offset_id((last.ext_fields or {})["msgId"] or "").offset
    expected = {"indexLastUpdateTimestamp": str(START + 5000), "indexLastUpdatePhyoffset": str(place)}
    assert (response.code, response.ext_fields) == (0, expected)
    missing = await broker.ask(QUERY, fields("nope"))
    assert (missing.code, missing.remark) == (22, "can not find message, maybe time range not correct")
    assert missing.ext_fields == {"indexLastUpdateTimestamp": "0", "indexLastUpdatePhyoffset": "0"}


async def test_the_newest_come_and_at_most_so_many(broker: RawClient) -> None:
    for number in range(100):
        write(broker, b"%d" % number, KEYS="k", UNIQ_KEY="u")

    def newest(count: int) -> list[bytes]:
        return [b"%d" % number for number in range(100 - count, 100)]

    for most, expected in ((1, 1), (5, 5), (64, 64), (65, 64), (2**31 - 1, 64), (0, 0)):
        assert await query(broker, "k", maxNum=most) == newest(expected)
        assert await query(broker, "u", maxNum=most, _UNIQUE_KEY_QUERY="false") == newest(expected)
        assert await query(broker, "u", maxNum=most, _UNIQUE_KEY_QUERY="true") == newest(32)
    negative = await broker.ask(QUERY, fields("k", maxNum=-1))
    assert (negative.code, negative.remark) == (1, "java.lang.IllegalArgumentException: Illegal Capacity: -1")


async def test_an_answer_fits_a_frame(broker: RawClient) -> None:
    for _ in range(5):
        await broker.send("T", bytes(4 * 1024 * 1024), properties={"UNIQ_KEY": "u", "KEYS": "k"})
    response = await broker.ask(QUERY, fields("k"))
    assert (response.code, len(decode_messages(response.body).messages)) == (0, 2)


async def test_both_ends_of_the_time_range_belong_to_it(broker: RawClient, clock: ManualClock) -> None:
    for number in range(5):
        write(broker, b"%d" % number, KEYS="k")
        await broker.offset(RequestCode.GET_MAX_OFFSET, "T")
        await clock.advance(10)
    for begin, end, expected in (
        (0, 40_000, range(5)),
        (10_000, 30_000, range(1, 4)),
        (10_001, 29_999, range(2, 3)),
        (10_001, 19_999, range(0)),
        (30_000, 10_000, range(0)),
        (40_001, 90_000, range(0)),
        (-(10**12), -1, range(0)),
    ):
        found = await query(broker, "k", beginTimestamp=START + begin, endTimestamp=START + end)
        assert found == [b"%d" % number for number in expected], (begin, end)
    assert len(await query(broker, "k", beginTimestamp=-(2**63), endTimestamp=2**63 - 1)) == 5


async def test_messages_of_batches_and_delayed_ones_are_found_where_they_are(broker: RawClient, clock: ManualClock) -> None:
    batch = b"".join(encode_batch_message(b"b%d" % n, 0, b"UNIQ_KEY\x01U%d\x02KEYS\x01k\x02" % n) for n in range(3))
    assert (
        await broker.send("T", batch + encode_batch_message(b"x", 0, b"\xff\x01\xff\x02KEYS"), code=320, m="true")
    ).code == 0
    assert await query(broker, "k") == [b"b0", b"b1", b"b2"]
    assert await query(broker, "U1") == [b"b1"]
    await broker.send("T", b"later", properties={"UNIQ_KEY": "d", "DELAY": "1"})
    assert await query(broker, "d") == []
    assert await query(broker, "d", "SCHEDULE_TOPIC_XXXX") == [b"later"]
    await clock.advance(1)
    assert await query(broker, "d") == [b"later"]


async def test_each_broker_finds_its_own() -> None:
    async with (
        EmbeddedRocketMQ(brokers=2) as server,
        RawClient(server.brokers["broker-a"]) as a,
        RawClient(server.brokers["broker-b"]) as b,
    ):
        await a.send("T", b"a", properties={"UNIQ_KEY": "u"})
        await b.send("T", b"b", properties={"UNIQ_KEY": "u"})
        assert (await query(a, "u"), await query(b, "u")) == ([b"a"], [b"b"])


async def test_what_is_forgotten_is_not_found(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    write(broker, b"1", KEYS="k")
    write(broker, b"1", "U", KEYS="k")
    assert await query(broker, "k") == [b"1"]
    await broker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    assert await query(broker, "k") == []
    write(broker, b"2", KEYS="k")
    assert await query(broker, "k") == [b"2"]
    assert await query(broker, "k", "U") == [b"1"]
    server.clear()
    assert await query(broker, "k") == await query(broker, "k", "U") == []
    assert log_of(server).memory == len(log_of(server).keys) == 0
    write(broker, b"3", KEYS="k")
    assert await query(broker, "k") == [b"3"]


async def test_the_index_counts_against_the_memory_bound() -> None:
    limit = 1_000_000
    async with EmbeddedRocketMQ(max_memory=limit) as server, RawClient(server.brokers["broker-a"]) as broker:
        for number in range(4000):
            write(broker, b"%d" % number, KEYS=f"all of {number % 7}")
            if number % 1000 == 999:
                assert await query(broker, "3999") == ([b"3999"] if number == 3999 else [])
        log = log_of(server)
        assert log.memory <= limit
        low = await broker.offset(RequestCode.GET_MIN_OFFSET, "T")
        assert 0 < low < 4000
        assert await query(broker, str(low)) == [b"%d" % low]
        assert await query(broker, str(low - 1)) == []
        assert len(log.keys) >= len(log) * 4
        records = [record for record, _ in log.records()]
        assert log.memory == sum(map(len, records)) + 128 * len(records) + 32 * len(log.keys)


# -------------------------------------------------------------------------------------------------------------- hostile queries


@pytest.mark.parametrize("name", ["topic", "key", "maxNum", "beginTimestamp", "endTimestamp"])
async def test_a_field_that_is_missing_or_no_number_is_1_and_named(broker: RawClient, name: str) -> None:
    whole = fields("k")
    cases: list[dict[str, str]] = [{each: text for each, text in whole.items() if each != name}]
    if name not in ("topic", "key"):
        cases += [{**whole, name: text} for text in ("x", "1.5", "1" + "0" * 30, " 1")]
    for ext in cases:
        response = await broker.ask(QUERY, ext)
        assert response.code == 1
        assert f"QueryMessageRequestHeader.{name}" in (response.remark or "")


async def test_names_and_keys_that_nothing_can_have_are_22(broker: RawClient) -> None:
    await broker.send("T", b"x", properties={"UNIQ_KEY": "u"})
    for topic, key in (("T", "k" * 100_000), ("t" * 100_000, "u"), ("", "u"), ("T", "\x01\x02"), ("T", "\x00"), ("T", "文")):
        assert await query(broker, key, topic) == []


async def test_garbage_beside_a_query_does_not_matter(broker: RawClient) -> None:
    await broker.send("T", b"x", properties={"UNIQ_KEY": "u"})
    ext = {**fields("u"), "ns": "n" * 1_000_000, "_UNIQUE_KEY_QUERY": "x" * 1000}
    for _ in range(3):
        broker.write(QUERY, ext, bytes(1_000_000))
    for _ in range(3):
        assert found_in(await broker.read()) == [b"x"]


async def test_queries_wait_for_the_index_while_others_are_served(
    broker: RawClient, server: EmbeddedRocketMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq_async.embedded.lookups.INDEX_STEP", 10)
    for number in range(200):
        write(broker, b"%d" % number, KEYS="k")
    assert await broker.offset(RequestCode.GET_MAX_OFFSET, "T") == 200
    query_opaque = broker.write(QUERY, fields("0"))
    send_opaque = broker.write(310, send_fields("T"), b"later")
    assert (await broker.read()).opaque == send_opaque
    answer = await broker.read()
    assert (answer.opaque, found_in(answer)) == (query_opaque, [b"0"])


async def test_a_message_of_many_keys_is_a_step_of_its_own(broker: RawClient, server: EmbeddedRocketMQ) -> None:
    keys = [f"{number:x}" for number in range(6000)]
    for _ in range(20):
        write(broker, b"x", KEYS=" ".join(keys))
    await broker.offset(RequestCode.GET_MAX_OFFSET, "T")
    log = log_of(server)
    assert not log.index(5000)
    assert len(log.keys) == 6001
    assert len(await query(broker, keys[-1])) == 20


async def test_pipelined_queries_are_all_answered_one_a_turn(broker: RawClient) -> None:
    for number in range(50):
        write(broker, b"%d" % number)
    opaques = {broker.write(QUERY, fields(str(number))): b"%d" % number for number in range(50)}
    answers = [await broker.read() for _ in opaques]
    assert {answer.opaque: found_in(answer) for answer in answers} == {opaque: [body] for opaque, body in opaques.items()}


async def test_more_queries_than_may_wait_are_2(broker: RawClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq_async.embedded.lookups.MAX_WAITING", 3)
    await broker.send("T", b"x", properties={"UNIQ_KEY": "u"})
    for _ in range(10):
        broker.write(QUERY, fields("u"))
    answers = [await broker.read() for _ in range(10)]
    busy = [answer for answer in answers if answer.code == 2]
    assert len(busy) == 6
    assert {answer.remark for answer in busy} == {"3 queries wait for the index, the maximum; repeat the query later"}
    assert sum(found_in(answer) == [b"x"] for answer in answers if answer.code != 2) == 4
    assert await query(broker, "u") == [b"x"]


async def test_queries_of_those_who_left_or_when_the_server_stops_leave_nothing(
    server: EmbeddedRocketMQ, broker: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq_async.embedded.lookups.INDEX_STEP", 1)
    for number in range(100):
        write(broker, b"%d" % number)
    await broker.offset(RequestCode.GET_MAX_OFFSET, "T")
    async with RawClient(server.brokers["broker-a"]) as other:
        other.write(QUERY, fields("1"))
        await other.writer.drain()
    assert await query(broker, "2") == [b"2"]
    server.clear()
    for number in range(100):
        write(broker, b"%d" % number)
    broker.write(QUERY, fields("1"))
    await broker.writer.drain()
    await server.stop()
    assert not broker_of(server)._lookups._waiting  # noqa: SLF001
    await server.start()
    async with RawClient(server.brokers["broker-a"]) as again:
        assert await query(again, "nope") == []


# ------------------------------------------------------------------------------------------------------------ by place, by time


async def test_view_earliest_time_and_search_follow_what_the_memory_bound_takes(clock: ManualClock) -> None:
    async with (
        EmbeddedRocketMQ(clock=clock, max_memory=100_000) as server,
        RawClient(server.brokers["broker-a"]) as broker,
    ):
        ids = []
        for number in range(60):
            answer = await broker.send("T", b"%d" % number + bytes(4000), properties={"UNIQ_KEY": f"{number}"})
            ids.append(unpack_offset_id((answer.ext_fields or {})["msgId"] or "").offset)
            await clock.advance(1)
        low = await broker.offset(RequestCode.GET_MIN_OFFSET, "T")
        assert 30 < low < 59
        for number in (0, low - 1, low, 59):
            answer = await broker.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"topic": "T", "offset": str(ids[number])})
            assert answer.code == (0 if number >= low else 1)
        earliest = await broker.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, {"topic": "T", "queueId": "0"})
        assert earliest.ext_fields == {"timestamp": str(START + 1000 * low)}

        async def search(when: int, boundary: str) -> int:
            code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
            return await broker.offset(code, "T", timestamp=str(when), boundaryType=boundary)

        for boundary in ("LOWER", "UPPER"):
            assert await search(START, boundary) == low
            assert await search(START + 1000 * (low + 3), boundary) == low + 3
            assert await search(-(2**63), boundary) == low
        assert [await search(2**63 - 1, boundary) for boundary in ("LOWER", "UPPER")] == [60, 59]
        server.clear()
        assert await search(START, "LOWER") == 60
        empty = await broker.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, {"topic": "T", "queueId": "0"})
        assert empty.ext_fields == {"timestamp": "-1"}


@pytest.mark.parametrize(
    ("code", "ext"),
    [
        (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "9" * 30}),
        (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": ""}),
        (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"topic": "T", "queueId": "0", "timestamp": "soon"}),
        (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"topic": "T", "queueId": "0", "timestamp": str(2**63)}),
        (RequestCode.GET_EARLIEST_MSG_STORETIME, {"topic": "T", "queueId": "x"}),
        (RequestCode.GET_EARLIEST_MSG_STORETIME, {"queueId": "0"}),
    ],
)
async def test_places_and_times_that_are_none_are_1(broker: RawClient, code: int, ext: dict[str, str]) -> None:
    await broker.send("T")
    assert (await broker.ask(code, ext)).code == 1


# -------------------------------------------------------------------------------------------------------------------- the index


def test_the_index_agrees_with_a_model() -> None:
    """Hashes of few values and of equal bytes, so that they are met between entries too."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    hashes = [0, 1, -1, *(struct.unpack("q", bytes([byte]) * 8)[0] for byte in (1, 2)), 0x0100_0000, 0x0101_0101_0000_0000]
    index = KeyIndex()
    model: list[tuple[int, int]] = []
    position = 0
    for _ in range(60):
        for _ in range(rng.randrange(400)):
            model.append((rng.choice(hashes), position))
            index.add(*model[-1])
            position += rng.randrange(3)
        if rng.random() < 0.7:
            before = rng.randrange(position + 1)
            kept = [entry for entry in model if entry[1] >= before]
            assert index.forget(before) == len(model) - len(kept)
            model = kept
        assert len(index) == len(model)
        low, high = sorted(rng.randrange(-5, position + 5) for _ in range(2))
        for wanted in hashes:
            expected = [at for hashed, at in reversed(model) if hashed == wanted and low <= at < high]
            assert list(index.find(wanted, low, high)) == expected
