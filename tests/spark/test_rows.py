"""Rows of Arrow as messages, without Spark and without a broker."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from rmq_async.errors import InvalidMessageError
from rmq_protocol.batch import decode_batch, encode_batch
from rmq_protocol.message import Message, MessageQueue
from rmq_protocol.properties import RESERVED_NAMES, decode_properties

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from rmq_async.producer.prepared import encoded_batch  # noqa: E402
from rmq_async.spark.options import WriteOptions, write_options  # noqa: E402
from rmq_async.spark.rows import DROPPED_PROPERTIES, Block, blocks_of  # noqa: E402
from rmq_async.spark.sending import cuts  # noqa: E402

TYPES = {
    "queueId": pa.int32(),
    "delayLevel": pa.int64(),
    "flag": pa.int64(),
    "keys": pa.string(),
    "tags": pa.string(),
    "topic": pa.string(),
    "brokerName": pa.string(),
    "shardingKey": pa.string(),
    "id": pa.string(),
    "deliverTimestamp": pa.timestamp("us", tz="UTC"),
    "properties": pa.map_(pa.string(), pa.string()),
}


def options(**given: str) -> WriteOptions:
    return write_options({"nameserver": "localhost:9876", **given}, streaming=False)


def batch(body: Sequence[Any] = (b"x",), **columns: Any) -> Any:
    arrays = {"body": pa.array(body, None if any(body) else pa.binary())}
    for name, values in columns.items():
        arrays[name] = values if isinstance(values, pa.Array) else pa.array(values, TYPES[name])
    return pa.RecordBatch.from_pydict(arrays)


def block_of(*batches: Any, topic: str | None = "t", **given: str) -> Block:
    """The last one's."""
    chosen = options(**given) if topic is None else options(topic=topic, **given)
    return list(blocks_of(iter(batches), chosen, "job:0", 3))[-1]


def properties(block: Block) -> list[dict[str, str]]:
    """Without the id, which every row has."""
    found = [decode_properties(text) for text in block.texts]
    assert all(each.pop("RMQ_SPARK_ID") for each in found)
    return found


def test_a_body_alone_is_a_message_and_absent_columns_are_not_there() -> None:
    block = block_of(batch([b"a", b"b"]))
    assert block.bodies == [b"a", b"b"]
    assert properties(block) == [{}, {}]
    assert block.flags is None
    (part,) = block.parts({})
    assert (part.topic, part.queue, list(part.rows), part.singly) == ("t", None, [0, 1], False)


def test_texts_become_utf_8_and_ids_go_on_over_batches() -> None:
    first, second = list(blocks_of(iter([batch(["ä", "b"]), batch([]), batch(["c"])]), options(topic="t"), "q:7", 3))
    assert first.bodies == ["ä".encode(), b"b"]
    assert [decode_properties(text)["RMQ_SPARK_ID"] for text in [*first.texts, *second.texts]] == [
        "q:7:3:0",
        "q:7:3:1",
        "q:7:3:2",
    ]
    assert (first.first, second.first) == (0, 2)


def test_a_slice_of_arrow_is_read_from_where_it_begins() -> None:
    whole = batch(
        ["a", "b", "c"], tags=["1", None, "3"], properties=[[("p", "1")], None, [("p", "3"), ("q", "4")]],
        keys=pa.array([["k"], None, ["x", "y"]]), flag=[1, 2, 3],
    )  # fmt: skip
    block = block_of(whole.slice(1))
    assert block.bodies == [b"b", b"c"]
    assert properties(block) == [{}, {"TAGS": "3", "KEYS": "x y", "p": "3", "q": "4"}]
    assert block.flags == [2, 3]


def test_null_in_an_optional_column_is_as_if_it_were_not_there() -> None:
    columns: dict[str, Any] = {name: [None, None] for name in TYPES.keys() - {"topic", "id"}}
    block = block_of(batch(["a", "b"], **columns))
    assert properties(block) == [{}, {}]
    assert block.flags is None
    assert [(part.queue, part.singly) for part in block.parts({})] == [(None, False)]


def test_every_column_says_what_it_says() -> None:
    moment = datetime(2030, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    block = block_of(
        batch(
            ["a", "b"], topic=["t1", "t2"], tags=["x", None], keys=[" k1  k2 ", ""], shardingKey=["s", None], flag=[-5, None],
            delayLevel=[3, None], deliverTimestamp=[None, moment], brokerName=[None, "b-1"], queueId=[None, 7],
            properties=[[("colour", "réd"), ("nothing", None)], []],
        ),
        topic=None,
    )  # fmt: skip
    assert properties(block) == [
        {"TAGS": "x", "KEYS": "k1 k2", "__SHARDINGKEY": "s", "DELAY": "3", "colour": "réd"},
        {"TIMER_DELIVER_MS": str(int(moment.timestamp() * 1000))},
    ]
    assert block.flags == [-5, 0]
    assert block.targets.keyed_topics() == {"t1"}
    queue = MessageQueue("t1", "b-0", 0)
    parts = block.parts({"t1": (queue,)})
    assert [(part.topic, part.queue, list(part.rows), part.singly) for part in parts] == [
        ("t1", queue, [0], True),
        ("t2", MessageQueue("t2", "b-1", 7), [1], True),
    ]


def test_the_option_topic_wins_over_the_column() -> None:
    block = block_of(batch(["a"], topic=["other"], brokerName=["b"], queueId=[1]))
    assert [(part.topic, part.queue) for part in block.parts({})] == [("t", MessageQueue("t", "b", 1))]


def test_what_clients_and_brokers_write_into_properties_is_not_taken_over() -> None:
    read = [
        ("UNIQ_KEY", "0" * 32), ("WAIT", "false"), ("CLUSTER", "c"), ("MSG_REGION", "r"), ("TRACE_ON", "true"), ("MIN_OFFSET", "0"),
        ("MAX_OFFSET", "9"), ("RMQ_SPARK_ID", "old"), ("DELAY", "3"), ("TIMER_OUT_MS", "5"), ("INNER_NUM", "2"), ("TAGS", "x"),
        ("KEYS", "k1 k2"), ("__SHARDINGKEY", "s"), ("mine", "1"), ("INNER_MULTI_DISPATCH", "%LMQ%a"),
    ]  # fmt: skip
    mine = {"mine": "1", "INNER_MULTI_DISPATCH": "%LMQ%a"}
    standing = {"TAGS": "x", "KEYS": "k1 k2", "__SHARDINGKEY": "s"}
    assert properties(block_of(batch(["a"], properties=[read]))) == [mine | standing]
    both = batch(["a", "b"], properties=[read, read], tags=["own", None], keys=[None, "own"], shardingKey=["", None])
    assert properties(block_of(both)) == [mine | {"TAGS": "own", "KEYS": "k1 k2"}, mine | standing | {"KEYS": "own"}]
    assert RESERVED_NAMES <= DROPPED_PROPERTIES
    assert block_of(batch(["a"], properties=[read])).parts({"t": (MessageQueue("t", "b", 0),)})[0].queue == MessageQueue(
        "t", "b", 0
    )


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"body": [b"x", None]}, "row 11 of partition 3 has no body: column body is NULL; give a value"),
        ({"body": [b"x", b""]}, "row 11 of partition 3 has an empty body; give at least one byte"),
        ({"topic": ["t", None]}, "row 11 of partition 3 has no topic: column topic is NULL or empty; give a name"),
        ({"topic": ["t", "a b"]}, "row 11 of partition 3 cannot be sent: topic 'a b' holds a character that is not allowed: "),
        ({"topic": ["t", "SCHEDULE_TOPIC_XXXX"]}, "row 11 of partition 3 cannot be sent: topic 'SCHEDULE_TOPIC_XXXX' belongs to"),
        ({"tags": ["a", "b\x01c"]}, "row 11 of partition 3 holds a control character 0, 1 or 2 in column tags, 'b\\x01c'"),
        ({"keys": ["a", "b\x02c"]}, "in column keys, 'b\\x02c'"),
        ({"keys": pa.array([["a"], ["k", "b\x00"]])}, "row 11 of partition 3, keys \"['k', 'b\\\\x00']\", holds a control"),
        ({"properties": [None, [("a", "1"), ("p", "x\x02")]]}, "row 11 of partition 3 holds a control character 0, 1 or 2 in"),
        ({"properties": [None, [("p\x01", "x")]]}, "in a property's name, 'p\\x01'"),
        ({"properties": [None, [("p", "")]]}, "row 11 of partition 3 has property 'p' = '': neither may be empty"),
        ({"delayLevel": [1, 1 << 31]}, "row 11 of partition 3 has delayLevel 2147483648: it must be from 0 to 2147483647"),
        ({"delayLevel": [1, -1]}, "row 11 of partition 3 has delayLevel -1: it must be from 0 to 2147483647"),
        ({"flag": [1, 1 << 31]}, "row 11 of partition 3 has flag 2147483648: it must be from -2147483648 to 2147483647"),
        ({"brokerName": [None, "b"], "queueId": [None, None]}, "row 11 of partition 3 names no queue: brokerName is 'b' and que"),
        ({"brokerName": [None, None], "queueId": [None, 1]}, "names no queue: brokerName is None and queueId is 1; give both"),
        ({"brokerName": ["b", "b"], "queueId": [1, -1]}, "row 11 of partition 3 has queueId -1: it must be from 0 to"),
        (
            {"delayLevel": [1, 1], "deliverTimestamp": [None, datetime(2030, 1, 1, tzinfo=UTC)]},
            "row 11 of partition 3 has both a delayLevel and a deliverTimestamp; one of them must be NULL",
        ),
        ({"deliverTimestamp": [None, datetime(1960, 1, 1, tzinfo=UTC)]}, "partition 3 has a deliverTimestamp before 1970: "),
        (
            {"body": [b"x", bytes(4 * 1024 * 1024 + 1)], "keys": ["a", "big"]},
            "row 11 of partition 3, keys 'big', has a body of 4194305 bytes, the limit is 4194304",
        ),
        (
            {"properties": [None, [("p", "x" * 40_000)]]},
            "bytes for its unique id included; the limit is 32767",
        ),
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_sent_is_named(columns: dict[str, Any], text: str) -> None:
    columns = {"body": [b"x", b"y"], **columns}
    topic = None if "topic" in columns else "t"
    with pytest.raises(InvalidMessageError) as caught:
        block_of(batch([b"-"] * 10, **({"topic": ["t"] * 10} if topic is None else {})), batch(**columns), topic=topic)
    assert text in str(caught.value)


def test_the_largest_body_is_sent_alone() -> None:
    block = block_of(batch([bytes([1]) * (4 * 1024 * 1024), b"y"]))
    assert list(cuts(block.sizes, 131072, 1 << 30)) == [(0, 1), (1, 2)]


def test_an_id_column_is_the_id_and_needs_a_value() -> None:
    block = block_of(batch(["a", "b"], id=["x-1", "x-2"]), idColumn="id")
    assert [decode_properties(text) for text in block.texts] == [{"RMQ_SPARK_ID": "x-1"}, {"RMQ_SPARK_ID": "x-2"}]
    with pytest.raises(InvalidMessageError, match="row 1 of partition 3 has no id: column id is NULL or empty; give a string"):
        block_of(batch(["a", "b"], id=["x-1", None]), idColumn="id")
    shared = block_of(batch(["a"], keys=["k"]), idColumn="keys")
    assert decode_properties(shared.texts[0]) == {"RMQ_SPARK_ID": "k", "KEYS": "k"}


def test_rows_of_a_queue_stay_in_order_also_around_one_that_goes_alone() -> None:
    block = block_of(
        batch(["a"] * 6, brokerName=["b"] * 6, queueId=[0, 1, 0, 0, 1, 0], delayLevel=[None, None, 1, None, None, 2])
    )
    of_first = [(list(part.rows), part.singly) for part in block.parts({}) if part.queue == MessageQueue("t", "b", 0)]
    assert of_first == [([0], False), ([2], True), ([3], False), ([5], True)]


def test_a_sharding_key_keeps_its_queue() -> None:
    queues = tuple(MessageQueue("t", "b", number) for number in range(4))
    keys = [f"k{number % 7}" for number in range(70)] + [None, ""]
    parts = block_of(batch(["a"] * 72, shardingKey=keys)).parts({"t": queues})
    homes: dict[str, set[MessageQueue | None]] = {}
    for part in parts:
        assert list(part.rows) == sorted(part.rows)
        for row in part.rows:
            homes.setdefault(str(keys[row]), set()).add(part.queue)
    assert all(len(found) == 1 for found in homes.values())
    assert homes["None"] == homes[""] == {None}
    assert len({part.queue for part in parts}) > 2


def test_retry_topics_are_in_no_batch() -> None:
    assert block_of(batch(["a", "b"]), topic="%RETRY%group").parts({})[0].singly


def test_cuts_fill_units_and_lose_nothing() -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    for _ in range(200):
        sizes = [chance.choice([1, 10, 100, 1000]) for _ in range(chance.randrange(50))]
        limit, most = chance.choice([0, 1, 150, 1000, 5000]), chance.choice([1, 3, 1000])
        runs = list(cuts(sizes, limit, most))
        assert [row for start, end in runs for row in range(start, end)] == list(range(len(sizes)))
        for number, (start, end) in enumerate(runs):
            assert end - start == 1 or sum(sizes[start:end]) <= limit
            assert end - start <= most
            if number + 1 < len(runs):
                assert end - start == most or sum(sizes[start : end + 1]) > limit


def test_a_batch_is_encoded_as_the_codec_does_it_and_fits_the_size_that_was_reckoned() -> None:
    bodies, ids = ["a" * 10, "bb", "bb", "ö"], [f"{number:032X}" for number in range(4)]
    block = block_of(batch(bodies, tags=["t", "t", None, "ü"], keys=["k", "k l", None, "k"], flag=[0, 1, 1, 0]))
    encoded = encoded_batch(block.bodies, block.texts, ids, block.flags or [])
    assert len(encoded) <= sum(block.sizes)
    messages = [
        Message("t", body.encode(), tags=tags, keys=keys or (), flag=flag, properties={"RMQ_SPARK_ID": f"job:0:3:{row}"})
        for row, (body, tags, keys, flag) in enumerate(
            zip(bodies, ["t", "t", None, "ü"], ["k", "k l", None, "k"], [0, 1, 1, 0], strict=True)
        )
    ]
    assert encoded == encode_batch(messages, list(ids), 1 << 22)
    assert [record.body.decode() for record in decode_batch(encoded)] == bodies
