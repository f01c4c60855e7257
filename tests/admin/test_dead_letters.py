"""Dead letters read and sent again from the outside, on embedded brokers."""

from __future__ import annotations

from typing import Any

import pytest

from rmq_async import Admin, Consumer, DeadLetter, Message, MessageExt, MessageQueue, Producer
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.errors import ConfigError, CorruptMessageError, InvalidMessageError, TopicNotFoundError
from rmq_protocol.constants import RequestCode, SysFlag
from rmq_protocol.headers import PullMessageRequestHeader

from ..consumer.group.support import until
from ..consumer.support import record
from ..support.fakes import NameServer, PullBroker, RawClient, route
from .support import send, worker


async def test_resend_dead_letters_sends_each_once(server: EmbeddedRocketMQ, admin: Admin) -> None:
    assert await admin.dead_letters("billing") == ()
    assert await admin.resend_dead_letters("billing") == 0
    await send(server, *(b"bad %d" % number for number in range(5)))
    consumer, handled = worker(server)
    async with consumer:
        await consumer.wait_settled(5)
    found = await admin.dead_letters("billing")
    assert sorted(message.body for message in found) == [b"bad %d" % number for number in range(5)]
    assert len(await admin.dead_letters("billing", limit=2)) == 2
    assert await admin.resend_dead_letters("billing", limit=2) == 2
    assert len(await admin.dead_letters("billing")) == 3
    assert await admin.resend_dead_letters("billing") == 3
    assert await admin.dead_letters("billing") == ()
    again = server.messages("OrderTopic")
    assert len(again) == 10
    ids = {message.body: message.unique_id for message in again[:5]}
    for message in again:
        assert (message.tags, message.unique_id) == ("paid", ids.get(message.body, message.unique_id))
        assert message.keys == (f"k{message.body.split()[1].decode()}",)
    assert {message.unique_id for message in again if message.body == b"bad 1"} == {
        message.unique_id for message in found if message.body == b"bad 1"
    }
    assert (await admin.group_lag("billing")).messages == 5
    assert len(handled) == 5


async def test_resend_dead_letters_of_a_broker_that_has_lost_some(
    server: EmbeddedRocketMQ, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    """Letters that are stored since have offsets below that up to which others were sent."""
    old = await dead_letters_of(server, admin, "BillTopic", "BillTopic", "BillTopic")
    assert await admin.resend_dead_letters("billing") == 3
    while len(server.messages("%DLQ%billing")) > 1:
        server.truncate("broker-a", 1)
    new = await dead_letters_of(server, admin, "RefundTopic")
    assert [message.msg_id for message in await admin.dead_letters("billing")] == [old[0], *new]
    assert await admin.resend_dead_letters("billing") == 2
    assert await admin.dead_letters("billing") == ()
    lines = [each.getMessage() for each in caplog.records if "ends at offset" in each.getMessage()]
    assert len(lines) == 2
    assert "all letters from offset 0 on count as unsent" in lines[0]


async def dead_letters_of(server: EmbeddedRocketMQ, admin: Admin, *topics: str) -> list[str]:
    """Makes a dead letter of each topic, in this order on one broker; returns their ids."""
    for topic in dict.fromkeys(topics):
        await admin.create_topic(topic, queues=1, broker="broker-a")
    consumer = Consumer("billing", client=admin.config, start_from="earliest")

    async def refuse(message: MessageExt) -> None:
        raise DeadLetter

    for topic in dict.fromkeys(topics):
        consumer.subscribe(topic, refuse)
    ids = []
    async with consumer, Producer("orders", client=admin.config) as producer:
        for topic in topics:
            ids.append((await producer.send(Message(topic, b"bad"))).msg_id)
            await consumer.wait_settled(1)
    return ids


async def test_resend_dead_letters_passes_over_those_of_skipped_topics(
    server: EmbeddedRocketMQ, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    ids = await dead_letters_of(server, admin, "RefundTopic", "BillTopic", "RefundTopic", "BillTopic", "RefundTopic")
    await admin.delete_topic("RefundTopic")
    with pytest.raises(TopicNotFoundError, match="RefundTopic"):
        await admin.resend_dead_letters("billing")
    assert await admin.resend_dead_letters("billing", limit=1, skip_topics="RefundTopic") == 1
    assert [message.msg_id for message in await admin.dead_letters("billing")] == ids[2:]
    assert await admin.resend_dead_letters("billing", skip_topics=["OrderTopic", "RefundTopic"]) == 1
    assert await admin.dead_letters("billing") == ()
    assert await admin.resend_dead_letters("billing") == 0
    assert [message.msg_id for message in server.messages("BillTopic")] == [ids[1], ids[3]] * 2
    assert len(server.messages("%DLQ%billing")) == 5
    text = "group billing: {} dead letters were skipped because of skip_topics; they stay in the dead-letter topic"
    assert [record.getMessage() for record in caplog.records if "skipped" in record.getMessage()] == [
        text.format(1), text.format(2)
    ]  # fmt: skip


async def test_resend_dead_letters_in_a_namespace_passes_over_those_of_skipped_topics(server: EmbeddedRocketMQ) -> None:
    async with Admin(namesrv=server.namesrv, namespace="shop") as admin:
        ids = await dead_letters_of(server, admin, "RefundTopic", "BillTopic")
        await admin.delete_topic("RefundTopic")
        with pytest.raises(TopicNotFoundError) as caught:
            await admin.resend_dead_letters("billing")
        assert "the letters of topic RefundTopic (of namespace shop), give skip_topics" in caught.value.__notes__[0]
        assert await admin.resend_dead_letters("billing", skip_topics="RefundTopic") == 1
        assert [message.msg_id for message in server.messages("shop%BillTopic")] == [ids[1]] * 2


@pytest.mark.parametrize("topics", [None, 7, ["OrderTopic", 7], {"OrderTopic": 1}])
async def test_resend_dead_letters_with_wrong_topics_to_skip_raises(topics: Any, admin: Admin) -> None:
    with pytest.raises(ConfigError, match="skip_topics must be the name of a topic, or a sequence of names, not "):
        await admin.resend_dead_letters("billing", skip_topics=topics)
    with pytest.raises(InvalidMessageError, match="a b"):
        await admin.resend_dead_letters("billing", skip_topics=["a b"])


async def test_resend_dead_letters_of_a_deleted_topic_says_how_many_were_sent(server: EmbeddedRocketMQ, admin: Admin) -> None:
    ids = await dead_letters_of(server, admin, "BillTopic", "RefundTopic", "BillTopic")
    await admin.delete_topic("RefundTopic")
    with pytest.raises(TopicNotFoundError, match="RefundTopic") as caught:
        await admin.resend_dead_letters("billing")
    assert caught.value.__notes__ == [
        f"1 dead letters were sent before {ids[1]}, which the next call begins with; to skip the letters of topic "
        "RefundTopic, give skip_topics (rmq group resend --skip-topic)"
    ]
    await admin.create_topic("RefundTopic", queues=1)
    assert await admin.resend_dead_letters("billing") == 2


async def test_resend_dead_letters_with_a_sharding_key_goes_to_its_queue(server: EmbeddedRocketMQ, admin: Admin) -> None:
    keys = [f"customer-{number}" for number in range(8)]
    async with Producer("orders", namesrv=server.namesrv) as producer:
        for key in keys:
            await producer.send(Message("OrderTopic", b"bad " + key.encode(), sharding_key=key))
    consumer, _ = worker(server)
    async with consumer:
        await consumer.wait_settled(len(keys))
    assert await admin.resend_dead_letters("billing") == len(keys)
    queues: dict[str | None, set[MessageQueue]] = {}
    for message in server.messages("OrderTopic"):
        queues.setdefault(message.sharding_key, set()).add(message.queue)
    assert queues.keys() == {*keys}
    assert len(server.messages("OrderTopic")) == 2 * len(keys)
    assert all(len(each) == 1 for each in queues.values())
    assert len(set.union(*queues.values())) > 1


@pytest.mark.virtual_time
@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
async def test_resend_dead_letters_compresses_what_was_compressed(server: EmbeddedRocketMQ, admin: Admin, kind: str) -> None:
    body = b"bad" + bytes(5 << 20)  # above the broker's limit, unless it is compressed
    async with Producer("orders", namesrv=server.namesrv, compress_type=kind, max_message_size=6 << 20) as producer:
        await producer.send(Message("OrderTopic", body))
    await send(server, b"bad and plain")
    consumer, _ = worker(server)
    async with consumer:
        await consumer.wait_settled(2)
    assert await admin.resend_dead_letters("billing") == 2
    again = server.messages("OrderTopic")
    assert sorted(len(message.body) for message in again) == [13, 13, len(body), len(body)]
    for message in again:
        small = len(message.body) == 13
        assert message.body.startswith(b"bad")
        assert (message.store_size < 100_000, bool(message.sys_flag & 0x700)) == (True, not small)


async def test_resend_dead_letters_ends_beside_a_member_that_dead_letters_them_again(
    server: EmbeddedRocketMQ, admin: Admin
) -> None:
    await send(server, *(b"bad %d" % number for number in range(3)))
    consumer, handled = worker(server)
    async with consumer:
        await consumer.wait_settled(3)
        assert await admin.resend_dead_letters("billing") == 3
        await until(lambda: len(handled) >= 6)
        await consumer.wait_settled(3)
    assert len(await admin.dead_letters("billing")) == 3


@pytest.mark.parametrize("limit", [0, -1, True, "x"])
async def test_dead_letters_with_a_bad_limit_raises(limit: Any, admin: Admin) -> None:
    for call in (admin.dead_letters, admin.resend_dead_letters):
        with pytest.raises(ConfigError, match="limit must be a whole number from 1 to"):
            await call("billing", limit=limit)


async def put_letters(server: EmbeddedRocketMQ, *bodies: bytes) -> None:
    """Puts dead letters of BillTopic behind those on broker-a; the body b"damaged" says that it is compressed, which it is
    not."""
    async with RawClient(server.brokers["broker-a"]) as client:
        for number, body in enumerate(bodies):
            flags = int(SysFlag.COMPRESSED) if body == b"damaged" else 0
            properties = {"RETRY_TOPIC": "BillTopic", "UNIQ_KEY": f"{number:032X}"}
            assert (await client.send("%DLQ%billing", body, properties=properties, f=str(flags))).code == 0


async def test_resend_dead_letters_ends_at_a_damaged_one_after_those_before_it(server: EmbeddedRocketMQ, admin: Admin) -> None:
    await dead_letters_of(server, admin, "BillTopic")
    await put_letters(server, b"1", b"damaged", b"3")
    for sent in (2, 0):
        with pytest.raises(CorruptMessageError) as caught:
            await admin.resend_dead_letters("billing")
        assert caught.value.__notes__ == [
            f"{sent} dead letters were sent before the damaged one at offset 2 of queue 0 on broker broker-a, which the next "
            "call begins with; to skip damaged letters, give skip_damaged=True (rmq group resend --skip-damaged)"
        ]
    assert [message.body for message in server.messages("BillTopic")] == [b"bad", b"bad", b"1"]


@pytest.mark.parametrize("limit", [None, 1, 2])
async def test_resend_dead_letters_passes_over_damaged_ones(
    server: EmbeddedRocketMQ, admin: Admin, caplog: pytest.LogCaptureFixture, limit: int | None
) -> None:
    await dead_letters_of(server, admin, "BillTopic")
    await put_letters(server, b"damaged", b"2", b"damaged", b"damaged", b"5", b"damaged")
    counts = [await admin.resend_dead_letters("billing", limit=limit, skip_damaged=True) for _ in range(4)]
    assert counts == {None: [3, 0, 0, 0], 1: [1, 1, 1, 0], 2: [2, 1, 0, 0]}[limit]
    assert [message.body for message in server.messages("BillTopic")] == [b"bad", b"bad", b"2", b"5"]
    assert await admin.dead_letters("billing") == ()
    logged = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    each = [text for text in logged if text.startswith("group billing: the dead letter at offset ")]
    assert [text.partition("; it was skipped: stored record at ")[0].partition(" at ")[2] for text in each] == [
        f"offset {offset} of queue 0 on broker broker-a is damaged" for offset in (1, 3, 4, 6)
    ]
    totals = [text for text in logged if text.endswith("because of skip_damaged; they stay in the dead-letter topic")]
    assert sum(int(text.split()[2]) for text in totals) == 4


async def test_resend_dead_letters_pulls_damaged_ones_alone() -> None:
    """The length of the second record hides all records behind it in the same answer."""
    letters = [record(number, b"%d" % number, topic="%DLQ%billing", properties=b"RETRY_TOPIC\x01t\x02") for number in range(4)]
    letters[1] = b"\x7f" + letters[1][1:]

    def pull(header: PullMessageRequestHeader) -> tuple[int, int, bytes]:
        after = min(header.queueOffset + header.maxMsgNums, len(letters))
        return 0, after, b"".join(letters[header.queueOffset : after])

    async with PullBroker(pull, topic="%DLQ%billing") as broker:
        broker.high, committed = len(letters), ["0"]
        broker.answers[RequestCode.QUERY_CONSUMER_OFFSET] = lambda link, request: link.reply(
            request, ext_fields={"offset": committed[-1]}
        )

        def commit(link: Any, request: Any) -> None:
            committed.append(request.ext_fields["commitOffset"])
            link.reply(request)

        broker.answers[RequestCode.UPDATE_CONSUMER_OFFSET] = commit
        routes = {"t": route(broker.address), "%DLQ%billing": route(broker.address)}
        async with NameServer(**routes) as names, Admin(namesrv=names.address) as admin:
            with pytest.raises(CorruptMessageError):
                await admin.resend_dead_letters("billing")
            assert (broker.bodies, committed) == ([b"0"], ["0", "1"])
            assert await admin.resend_dead_letters("billing", skip_damaged=True) == 2
    assert broker.bodies == [b"0", b"2", b"3"]
    assert committed == ["0", "1", "2", "3", "4"]


async def test_resend_dead_letters_that_decompress_to_more_than_the_limit_sends_each(server: EmbeddedRocketMQ) -> None:
    """None of them is damaged: together they take more than ``max_decompressed_size``, alone they do not."""
    bodies = [b"bad%d" % number + bytes(30_000) for number in range(4)]
    async with Admin(namesrv=server.namesrv, max_decompressed_size=70_000) as small:
        await small.create_topic("OrderTopic", queues=1, broker="broker-a")
        await small.create_group("billing")
        async with Producer("orders", namesrv=server.namesrv, compress_type="zlib") as producer:
            for body in bodies:
                await producer.send(Message("OrderTopic", body))
        consumer, _ = worker(server)
        async with consumer:
            await consumer.wait_settled(len(bodies))
        assert [message.body for message in await small.dead_letters("billing")] == bodies
        assert await small.resend_dead_letters("billing") == len(bodies)
    assert [message.body for message in server.messages("OrderTopic")] == bodies * 2


@pytest.mark.parametrize("given", [None, 1, "yes"])
async def test_resend_dead_letters_with_a_wrong_skip_damaged_raises(given: Any, admin: Admin) -> None:
    with pytest.raises(ConfigError, match="skip_damaged must be True or False, not "):
        await admin.resend_dead_letters("billing", skip_damaged=given)
