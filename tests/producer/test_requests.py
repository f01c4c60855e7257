"""Request and reply: between producers of ours on embedded brokers, and on brokers that do what a script says."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rmq_async import Admin, Consumer, Message, MessageExt, MessageQueue, Producer, errors
from rmq_async.client.reply_table import ReplyTable
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.producer.request_reply import MOST_CLUSTERS
from rmq_async.testing.simulation import Simulation
from rmq_async.transport import CloseReason, Connection, ConnectionSettings
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import PropertyName, RequestCode, SysFlag
from rmq_protocol.headers import ReplyMessageRequestHeader, to_ext
from rmq_protocol.properties import properties_text
from rmq_protocol.route import BrokerData, QueueData, TopicRouteData

from ..support.fakes import TOPIC, Broker, Cluster, Link, Sent, push, refuse, silence, stored
from ..support.instances import client_of
from .support import core_of, message, outcomes, producer, timed, until

pytestmark = pytest.mark.virtual_time

REPLIES = "DefaultCluster_REPLY_TOPIC"
PUSH = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT


@pytest.fixture
async def servers() -> AsyncIterator[EmbeddedRocketMQ]:
    async with EmbeddedRocketMQ(brokers=3) as running:
        yield running


def asker(servers: EmbeddedRocketMQ, **options: Any) -> Producer:
    return Producer("asker", namesrv=servers.namesrv, instance_name="asker", **options)


def replier(servers: EmbeddedRocketMQ, **options: Any) -> Producer:
    return Producer("replier", namesrv=servers.namesrv, instance_name="replier", **options)


async def question(servers: EmbeddedRocketMQ, number: int = 1) -> MessageExt:
    """The request that was stored as the ``number``-th."""
    await until(lambda: len(servers.messages(TOPIC)) >= number)
    return servers.messages(TOPIC)[number - 1]


async def waiting(sender: Producer) -> int:
    return len((await client_of(sender)).replies)


async def strays(sender: Producer) -> int:
    return (await client_of(sender)).replies.strays


async def test_a_request_gets_the_reply_to_it(servers: EmbeddedRocketMQ) -> None:
    asked_for = Message(TOPIC, b"how much?", tags="tag", keys="key", properties={"colour": "grün"})
    async with asker(servers) as asking, replier(servers) as replying:
        call = asyncio.create_task(asking.request(asked_for, timeout=5.0))
        asked = await question(servers)
        properties = asked.properties
        assert (properties["REPLY_TO_CLIENT"], properties["TTL"]) == ((await client_of(asking)).client_id, "5000")
        assert (asked.body, asked.tags, asked.keys, properties["colour"]) == (b"how much?", "tag", ("key",), "grün")
        sent = await replying.reply(asked, b"17", properties={"currency": "€"})
        reply = await call
        assert (reply.body, reply.topic, reply.properties["currency"]) == (b"17", REPLIES, "€")
        assert reply.properties["CORRELATION_ID"] == properties["CORRELATION_ID"]
        assert (reply.properties["MSG_TYPE"], reply.msg_id, sent.queue.topic) == ("reply", sent.msg_id, REPLIES)
        assert reply.properties["ARRIVE_TIME"].isdecimal()
        assert (sent.queue.broker_name, sent.attempts) == (asked.queue.broker_name, 1)
        assert asked_for.properties == {"colour": "grün"}, "sending never changes a message"
        assert (await waiting(asking), asking.health().unanswered) == (0, 0)


async def test_each_of_many_requests_gets_its_own_reply(servers: EmbeddedRocketMQ) -> None:
    async with asker(servers) as asking, replier(servers) as replying:

        async def serve(count: int) -> None:
            done: set[str] = set()
            while len(done) < count:
                fresh = [each for each in servers.messages(TOPIC) if each.msg_id not in done]
                done |= {each.msg_id for each in fresh}
                await asyncio.gather(*[replying.reply(each, b"re:" + each.body) for each in reversed(fresh)])
                await asyncio.sleep(0.005)

        serving = asyncio.create_task(serve(60))
        ways: list[dict[str, Any]] = [{}, {"key": "k"}, {"selector": lambda queues, _, __: queues[0]}]
        replies = await asyncio.gather(
            *[asking.request(message(b"%d" % number), timeout=10.0, **ways[number % 3]) for number in range(60)]
        )
        await serving
        assert [each.body for each in replies] == [b"re:%d" % number for number in range(60)]
        assert (await waiting(asking), await strays(asking)) == (0, 0)
        keyed = [each.queue for each in servers.messages(TOPIC) if int(each.body) % 3 == 1]
        assert len(keyed) == 20
        assert len(set(keyed)) == 1


async def test_without_a_reply_in_time_the_call_says_that_the_request_is_stored(servers: EmbeddedRocketMQ) -> None:
    async with asker(servers) as asking, replier(servers) as replying:
        with timed(0.3, 0.3), pytest.raises(errors.ReplyTimeoutError, match=r"no reply to .* within 0\.3 s") as caught:
            await asking.request(message(), timeout=0.3)
        asked = await question(servers)
        assert isinstance(caught.value, TimeoutError)
        assert (caught.value.code, caught.value.maybe_stored, caught.value.broker) == (10006, True, asked.queue.broker_name)
        assert asked.msg_id in str(caught.value)
        assert (await waiting(asking), asking.health().unanswered, await strays(asking)) == (0, 0, 0)
        assert (await replying.reply(asked, b"too late")).attempts == 1, (
            "the client that replies gets no error: Java's client gets none either"
        )
        assert await strays(asking) == 1


async def test_a_reply_may_come_through_every_broker_of_the_cluster(servers: EmbeddedRocketMQ) -> None:
    """The request is stored on one broker, whose name server route the replier does not look at."""
    async with asker(servers) as asking, replier(servers) as replying:
        for name in servers.brokers:
            queue = MessageQueue(TOPIC, "broker-a", 0)
            call = asyncio.create_task(asking.request(message(), queue=queue, timeout=5.0))
            asked = await question(servers, len(servers.messages(TOPIC)) + 1)
            moved = MessageExt(asked.topic, asked.body, 0, asked.properties, queue._replace(broker_name=name))
            sent = await replying.reply(moved, name.encode())
            assert (sent.queue.broker_name, sent.attempts) == (name, 1)
            assert (await call).body == name.encode()


async def test_a_namespace_is_not_seen_by_either_side(servers: EmbeddedRocketMQ) -> None:
    async with asker(servers, namespace="ns") as asking, replier(servers, namespace="ns") as replying:
        call = asyncio.create_task(asking.request(message(), timeout=5.0))
        await until(lambda: servers.messages(f"ns%{TOPIC}"))
        await replying.reply(servers.messages(f"ns%{TOPIC}")[0], b"reply")
        reply = await call
        assert (reply.body, reply.topic, reply.queue.topic) == (b"reply", REPLIES, REPLIES)


async def test_a_reply_to_a_client_that_is_gone_is_tried_everywhere_and_fails(servers: EmbeddedRocketMQ) -> None:
    async with asker(servers) as asking, replier(servers) as replying:
        call = asyncio.create_task(asking.request(message(), timeout=5.0))
        asked = await question(servers)
        await asking.stop(0.0)
        with pytest.raises(errors.ClientStateError, match="request is stored") as stopped:
            await call
        assert stopped.value.maybe_stored
        with pytest.raises(errors.SendError, match=r"channel of <.*> not found") as caught:
            await replying.reply(asked, b"anybody?")
        brokers = [attempt.queue.broker_name for attempt in caught.value.attempts]
        assert brokers[0] == asked.queue.broker_name
        assert sorted(brokers) == sorted(servers.brokers)
        assert caught.value.maybe_stored, "each broker has stored the reply"
        assert len(servers.messages(REPLIES)) == len(brokers)


async def test_a_reply_that_is_stored_and_not_delivered_is_not_stored_again() -> None:
    async with EmbeddedRocketMQ() as server, asker(server) as asking, replier(server) as replying:
        call = asyncio.create_task(asking.request(message(), timeout=5.0))
        asked = await question(server)
        await asking.stop(0.0)
        await outcomes(call)
        with pytest.raises(errors.BrokerSystemError, match=r"channel of <.*> not found") as caught:
            await replying.reply(asked, b"anybody?")
        assert caught.value.maybe_stored
        assert len(server.messages(REPLIES)) == 1


async def test_stop_waits_for_replies_within_its_time(servers: EmbeddedRocketMQ) -> None:
    async with asker(servers) as asking, replier(servers) as replying:
        call = asyncio.create_task(asking.request(message(), timeout=5.0))
        asked = await question(servers)
        stopping = asyncio.create_task(asking.stop(3.0))
        await asyncio.sleep(0.02)
        await replying.reply(asked, b"just in time")
        assert (await call).body == b"just in time"
        await stopping


async def test_a_cancelled_request_leaves_nothing(servers: EmbeddedRocketMQ) -> None:
    async with asker(servers, async_limit=1) as asking:
        call = asyncio.create_task(asking.request(message(), timeout=5.0))
        await question(servers)
        assert (await waiting(asking), asking.health().unanswered) == (1, 1), "it keeps its credit until the reply is there"
        with pytest.raises(errors.BackpressureError):
            await asking.request(message(), key=1, timeout=0.05)
        call.cancel()
        assert isinstance((await outcomes(call))[0], asyncio.CancelledError)
        assert (await waiting(asking), asking.health().unanswered) == (0, 0)


async def test_replies_are_compressed_and_read_within_the_bound(servers: EmbeddedRocketMQ) -> None:
    body = b"much of the same " * 40_000
    for bound in (len(body), len(body) - 1):
        async with asker(servers, max_decompressed_size=bound) as asking, replier(servers) as replying:
            call = asyncio.create_task(asking.request(message(), timeout=5.0))
            asked = await question(servers, len(servers.messages(TOPIC)) + 1)
            await replying.reply(asked, body)
            if bound == len(body):
                reply = await call
                assert (reply.body, reply.sys_flag & SysFlag.COMPRESSED) == (body, 0)
            else:
                with pytest.raises(errors.CorruptMessageError):
                    await call
            assert await waiting(asking) == 0


async def test_what_cannot_be_replied_to_is_refused(servers: EmbeddedRocketMQ) -> None:
    whole = {"CLUSTER": "DefaultCluster", "CORRELATION_ID": "id", "REPLY_TO_CLIENT": "client", "TTL": "1000"}
    async with replier(servers) as replying:
        for missing in ("CLUSTER", "CORRELATION_ID", "REPLY_TO_CLIENT"):
            asked = MessageExt(TOPIC, b"x", properties={name: value for name, value in whole.items() if name != missing})
            with pytest.raises(errors.LocalProtocolError, match=missing) as caught:
                await replying.reply(asked, b"reply")
            assert caught.value.code == 10007
        with pytest.raises(TypeError, match="MessageExt"):
            await replying.reply(message(), b"reply")  # type: ignore[arg-type]
        asked = MessageExt(TOPIC, b"x", properties=whole)
        with pytest.raises(errors.InvalidMessageError, match="reserved"):
            await replying.reply(asked, b"reply", properties={"KEYS": "mine"})
        with pytest.raises(errors.InvalidMessageError):
            await replying.reply(asked, b"")
        with pytest.raises(ValueError, match="timeout"):
            await replying.reply(asked, b"reply", timeout=0)
        with pytest.raises(errors.TopicNotFoundError, match="elsewhere_REPLY_TOPIC"):  # and it is not made by asking
            await replying.reply(MessageExt(TOPIC, b"x", properties=whole | {"CLUSTER": "elsewhere"}), b"reply")
        assert replying.health().unanswered == 0


# -- scripted brokers


async def test_a_request_that_is_not_sent_fails_with_what_sending_raised(pair: Cluster) -> None:
    async with producer(pair) as sender:
        pair.answer(refuse(13))
        with pytest.raises(errors.MessageIllegalError):
            await sender.request(message())
        pair.answer(refuse(1))
        with pytest.raises(errors.SendError):
            await sender.request(message())
        pair.answer(silence)
        with timed(0.3, 0.3), pytest.raises(errors.RequestTimeoutError):
            await sender.request(message(), key=1, timeout=0.3)
        with pytest.raises(errors.TopicNotFoundError):
            await sender.request(message(topic="nowhere"))
        with pytest.raises(ValueError, match="timeout"):
            await sender.request(message(), timeout=0)
        assert (await waiting(sender), sender.health().unanswered) == (0, 0)


async def test_a_reply_proves_that_the_request_arrived(cluster: Cluster) -> None:
    """The broker's own answer is lost, or an error: who has a reply has been heard."""
    async with producer(cluster) as sender:
        for answer in (silence, refuse(13)):

            def both(link: Link, sent: Sent, answer: Any = answer) -> None:
                push(link, sent)
                answer(link, sent)

            cluster.a.answer = both
            with timed(most=0.5):
                reply = await sender.request(message(), timeout=5.0)
            assert (reply.body, reply.flag, reply.born_host, reply.store_host) == (b"reply", 7, "", "127.0.0.1:10911")
            assert (reply.queue, reply.msg_id) == (MessageQueue("c_REPLY_TOPIC", "", 0), "reply")
        assert (await waiting(sender), sender.health().unanswered) == (0, 0)


async def test_of_two_replies_one_is_dropped(cluster: Cluster) -> None:
    def twice(link: Link, sent: Sent) -> None:
        push(link, sent, body=b"first")
        push(link, sent, body=b"second")
        stored(link, sent)

    cluster.a.answer = twice
    async with producer(cluster) as sender:
        assert (await sender.request(message())).body == b"first"
        replies = (await client_of(sender)).replies
        await until(lambda: replies.strays == 1)


@pytest.mark.parametrize("sys_flag", [SysFlag.COMPRESSED, SysFlag.COMPRESSED | 0x700], ids=["too large", "unknown type"])
async def test_a_reply_that_cannot_be_decompressed_fails_its_request_only(cluster: Cluster, sys_flag: int) -> None:
    bomb = zlib.compress(bytes(1 << 20))

    def pushed(link: Link, sent: Sent) -> None:
        stored(link, sent)
        push(link, sent, body=bomb, sysFlag=int(sys_flag))

    cluster.a.answer = pushed
    async with producer(cluster, max_decompressed_size=1024) as sender:
        with pytest.raises(errors.CorruptMessageError) as failed:
            await sender.request(message())
        assert failed.value.maybe_stored, "the request is stored"
        cluster.a.answer = stored
        await sender.send(message())
        assert await waiting(sender) == 0


async def test_brokers_know_the_client_before_the_request_is_sent(pair: Cluster) -> None:
    """The third one has no queue of the topic: a reply may come through it all the same."""
    other = Broker("z")
    await other.start()
    try:
        pair.name_server.routes["c_REPLY_TOPIC"] = pair.route(pair.a, pair.b, other)
        pair.answer(lambda link, sent: (push(link, sent), stored(link, sent))[1])
        async with producer(pair) as sender:
            for _ in range(2):
                await sender.request(message(), queue=pair.queue())
                assert [broker.codes[RequestCode.HEART_BEAT] for broker in (pair.a, pair.b, other)] == [1, 1, 1]
            assert pair.name_server.asked.count("c_REPLY_TOPIC") == 1
    finally:
        await other.stop()


async def test_a_broker_that_answers_no_heartbeat_holds_up_the_first_request_only(pair: Cluster) -> None:
    pair.b.silent = True
    pair.answer(lambda link, sent: (push(link, sent), stored(link, sent))[1])
    async with producer(pair, request_timeout=0.5) as sender:
        with timed(0.25, 0.5):
            await sender.request(message(), timeout=1.0, queue=pair.queue())
        await asyncio.sleep(0.3)
        with timed(most=0.2):
            await sender.request(message(), timeout=1.0, queue=pair.queue())


async def test_silent_broker_holds_up_a_line_of_requests_to_another_once(pair: Cluster) -> None:
    pair.b.silent = True
    pair.answer(lambda link, sent: (push(link, sent), stored(link, sent))[1])
    async with producer(pair) as sender:
        for most in (1.1, 0.2, 0.2):  # an introduction takes 3 s, the next one begins 5 s after it
            with timed(most=most):
                await asyncio.gather(*[sender.request(message(), timeout=8.0, queue=pair.queue()) for _ in range(5)])
            await asyncio.sleep(8.5)


async def test_reply_topics_that_cannot_be_looked_up_hold_up_the_first_request_only(cluster: Cluster) -> None:
    """And of a route with any number of clusters only some are asked for."""
    cluster.answer(lambda link, sent: (push(link, sent), stored(link, sent))[1])
    route = cluster.route()
    (a,) = route.broker_datas
    many = [QueueData(f"b{number}", 1, 1, 6) for number in range(40)]
    cluster.name_server.routes["many"] = TopicRouteData(
        tuple(many), tuple(BrokerData(each.broker_name, a.broker_addrs, f"c-{each.broker_name}") for each in many)
    )
    async with producer(cluster) as sender:
        for _ in range(2):
            await sender.request(message(topic="many"))
            assert sum(topic.startswith("c-") for topic in cluster.name_server.asked) == MOST_CLUSTERS
        await sender.fetch_publish_queues(TOPIC)
        cluster.name_server.answer = silence
        with timed(0.2, 0.7):
            await sender.request(message(), timeout=0.9)
        with timed(most=0.2):
            await sender.request(message(), timeout=0.9)


async def test_a_request_with_a_key_keeps_its_place_before_sends_that_follow(cluster: Cluster) -> None:
    def answer(link: Link, sent: Sent) -> None:
        if sent.body == b"request":
            push(link, sent)
        stored(link, sent)

    cluster.answer(answer)
    async with producer(cluster) as sender:
        for _ in range(2):
            calls: list[asyncio.Task[Any]] = [asyncio.create_task(sender.request(message(b"request"), key="k"))]
            calls += [asyncio.create_task(sender.send(message(b"send"), key="k")) for _ in range(3)]
            await asyncio.gather(*calls)
            assert [body for sent in cluster.sends for body in sent.bodies][-4:] == [b"request", b"send", b"send", b"send"]
        cluster.answer(refuse(13))
        assert isinstance((await outcomes(asyncio.create_task(sender.request(message(), key="k"))))[0], errors.RocketMQError)
        assert not core_of(sender).admission.lines.line(TOPIC).places


async def test_a_reply_that_is_tried_again_asks_no_selector_of_users(pair: Cluster) -> None:
    pair.name_server.routes["c_REPLY_TOPIC"] = pair.route()

    for broker in pair.brokers:
        broker.answers[RequestCode.SEND_REPLY_MESSAGE_V2] = refuse(1, "no channel")
    async with producer(pair, queue_selector=lambda *_: pytest.fail("asked")) as sender:
        properties = {"CLUSTER": "c", "CORRELATION_ID": "i", "REPLY_TO_CLIENT": "x", "TTL": "1"}
        with pytest.raises(errors.SendError) as failed:
            await sender.reply(MessageExt(TOPIC, b"x", properties=properties), b"reply")
    assert len(failed.value.attempts) == 3


async def test_what_a_server_pushes_may_be_anything() -> None:
    table = ReplyTable()
    connection = Connection("127.0.0.1:1", ConnectionSettings(1000))
    good = to_ext(
        ReplyMessageRequestHeader(
            producerGroup="g", topic="t", defaultTopic="d", defaultTopicQueueNums=4, queueId=0, sysFlag=0, bornTimestamp=1, flag=0,
            properties=properties_text({PropertyName.CORRELATION_ID.value: "known"}), bornHost="h", storeHost="h", storeTimestamp=1,
        )
    )  # fmt: skip
    known = table.expect("known")
    for ext, code in (
        (None, 1),
        ({}, 1),
        ({**good, "sysFlag": "many"}, 1),
        ({**good, "properties": "\x01\x02\x02CORRELATION_ID"}, 0),
        ({**good, "properties": None}, 0),
    ):
        answer = table.serve(connection, RemotingCommand(code=PUSH, opaque=5, ext_fields=ext))
        assert (answer.code, answer.opaque, answer.is_response) == (code, 5, True)
    assert not known.done()
    assert table.strays == 2
    assert table.serve(connection, RemotingCommand(code=PUSH, ext_fields={**good})).code == 0
    assert known.done()
    table.forget("known")
    assert len(table) == 0
    connection.close(CloseReason.LOCAL)


def test_reply_to_a_request_of_another_process_with_the_client_id_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """As containers with one address and a fixed instance name are: brokers push replies to the process that registered last."""

    async def main(s: Simulation) -> None:
        async with Admin(namesrv=s.namesrv) as admin:
            await admin.create_topic(TOPIC, queues=1)
        ready, over = asyncio.Event(), asyncio.Event()
        options: dict[str, Any] = {"namesrv": s.namesrv, "client_ip": "172.17.0.2", "instance_name": "asker"}

        async def other() -> None:
            await ready.wait()
            async with Producer("other", topics=[TOPIC], **options) as second:
                with pytest.raises(errors.ReplyTimeoutError):  # it comes late, to its own process
                    await second.request(message(), timeout=0.5)
                over.set()
                await asyncio.sleep(5)

        async def reply(asked: MessageExt) -> None:
            await asyncio.sleep(1)
            await replying.reply(asked, b"17")

        machine = s.machine("second").run(other)
        replying = Producer("replier", namesrv=s.namesrv, instance_name="replier")
        consumer = Consumer("replier", namesrv=s.namesrv, instance_name="replier")
        consumer.subscribe(TOPIC, reply)
        async with replying, consumer, Producer("first", **options) as first:
            assert (await first.request(message(), timeout=5.0)).body == b"17"
            ready.set()
            await over.wait()
            with pytest.raises(errors.ReplyTimeoutError):
                await first.request(message(), timeout=5.0)
            await machine

    with caplog.at_level(logging.INFO, logger="rmq_async"):
        Simulation(1, brokers=1, faults=None).run(main)
    (line,) = [each.getMessage() for each in caplog.records if "arrived here" in each.getMessage()]
    assert "1 replies arrived here for another (or a former) process with the same client id 172.17.0.2@asker" in line
