"""What the requests of sends say and where they go: long and short headers, unit mode, counters of retries, second ports."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rmq_async import BrokerError, ConnectionLostError, Hook, InvalidMessageError, Message, Producer, PullConsumer
from rmq_async.client.topic_route import first_port, vip_address
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode
from rmq_protocol.heartbeat import decode_heartbeat

from ..support.fakes import TOPIC, Cluster, refuse, reset, with_second_ports
from ..support.instances import client_of
from .support import message, producer, until

Way = Callable[[Producer, Message], Awaitable[Any]]


async def deferred(sender: Producer, item: Message) -> Any:
    return await (await sender.send_async(item))


SINGLE: dict[str, Way] = {
    "send": lambda sender, item: sender.send(item),
    "send by key": lambda sender, item: sender.send(item, key=1),
    "send_async": deferred,
    "send_oneway": lambda sender, item: sender.send_oneway(item),
}
LONG_NAMES = {
    "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp", "flag", "properties",
    "reconsumeTimes", "unitMode", "batch", "bname",
}  # fmt: skip


# -- the form of headers


@pytest.mark.parametrize("form", ["json", "rocketmq"])
async def test_the_long_form_says_what_the_short_one_says(cluster: Cluster, form: str) -> None:
    item = message(tags="t", keys="k", flag=9, unique_id="ID", properties={"p": "v"})
    options: dict[str, Any] = {"serialize_type": form, "oneway_window": 0}
    for smart in (True, False):
        async with producer(cluster, send_smart_msg=smart, instance_name=str(smart), **options) as sender:
            queue = cluster.queue(queue_id=1)
            await sender.send(item, queue=queue)
            await (await sender.send_async(item, queue=queue))
            await sender.send_oneway(item, queue=queue)
            await sender.flush()
            await sender.send_batch([item, item], queue=queue)
    await until(lambda: len(cluster.sends) == 8)
    short, long = cluster.sends[:4], cluster.sends[4:]
    assert [sent.code for sent in short] == [RequestCode.SEND_MESSAGE_V2] * 3 + [RequestCode.SEND_BATCH_MESSAGE]
    assert [sent.code for sent in long] == [RequestCode.SEND_MESSAGE] * 3 + [RequestCode.SEND_BATCH_MESSAGE]
    for one, other in zip(short, long, strict=True):
        both = [{name: sent.fields[name] for name in "abcdefhijkmn"} for sent in (one, other)]
        assert both[0] == both[1]
        assert (one.body, one.oneway) == (other.body, other.oneway)
        assert abs(int(one.fields["g"]) - int(other.fields["g"])) < 60_000
    assert all(set(sent.command.ext_fields or ()) == LONG_NAMES for sent in long[:3])
    assert set(long[3].command.ext_fields or ()) <= set("abcdefghijklmn")


@pytest.mark.parametrize("name", ["send", "send_async", "send_oneway"])
async def test_compressed_and_tried_again_in_the_long_form(pair: Cluster, name: str) -> None:
    pair.a.answer = refuse(1)
    async with producer(pair, send_smart_msg=False, oneway_window=0) as sender:
        for _ in range(2):
            await SINGLE[name](sender, message(b"x" * 10_000))
        await sender.flush()
    await until(lambda: len(pair.sends) >= 2)
    assert all(sent.code == RequestCode.SEND_MESSAGE and sent.sys_flag & 1 for sent in pair.sends)
    if name != "send_oneway":
        assert len(pair.b.sends) == 2


async def test_an_error_in_the_long_form_is_the_same_error(cluster: Cluster) -> None:
    cluster.a.answer = refuse(13, "illegal")
    async with producer(cluster, send_smart_msg=False) as sender:
        with pytest.raises(BrokerError, match="illegal") as caught:
            await sender.send(message())
    assert (caught.value.code, caught.value.broker) == (13, "a")


@pytest.mark.parametrize("smart", [True, False])
async def test_replies_have_both_forms_too(smart: bool) -> None:
    codes: list[int] = []

    class Codes(Hook):
        def before_request(self, address: str, command: RemotingCommand) -> None:
            codes.append(command.code)

    async with EmbeddedRocketMQ() as server:
        options: dict[str, Any] = {"namesrv": server.namesrv, "send_smart_msg": smart}
        async with (
            Producer("asks", **options) as asking,
            Producer("answers", hooks=[Codes()], instance_name="other", **options) as answering,
            PullConsumer("reads", namesrv=server.namesrv) as consumer,
        ):
            asked = asyncio.ensure_future(asking.request(message(b"?")))
            await until(lambda: server.messages(TOPIC))
            [question] = [each async for each in consumer.read(TOPIC)]
            await answering.reply(question, b"!")
            assert (await asked).body == b"!"
    assert [code for code in codes if code in (324, 325)] == [325 if smart else 324]


# -- unit mode and name


@pytest.mark.parametrize("form", ["json", "rocketmq"])
@pytest.mark.parametrize("smart", [True, False])
async def test_unit_mode_is_said_in_every_header(cluster: Cluster, form: str, smart: bool) -> None:
    async with producer(cluster, unit_mode=True, serialize_type=form, send_smart_msg=smart) as sender:
        for way in SINGLE.values():
            await way(sender, message())
        await sender.send_batch([message()])
        await sender.flush()
    await until(lambda: len(cluster.sends) == 5)
    assert {sent.fields["k"] for sent in cluster.sends} == {"true"}


async def test_consumers_say_so_in_their_heartbeats(cluster: Cluster) -> None:
    async with producer(cluster, unit_mode=True) as sender, PullConsumer("c", client=sender.client_config):
        await sender.send(message())
        await until(lambda: cluster.a.codes[RequestCode.HEART_BEAT])
    beat = next(each for each in cluster.a.requests if each.code == RequestCode.HEART_BEAT)
    assert [data.unit_mode for data in decode_heartbeat(beat.body).consumer_data_set] == [True]


async def test_the_name_of_the_unit_is_part_of_the_clients_id(cluster: Cluster) -> None:
    async with producer(cluster, unit_name="east", instance_name="me", client_ip="10.1.2.3") as sender:
        await sender.send(message())
        await until(lambda: cluster.a.codes[RequestCode.HEART_BEAT])
    beat = next(each for each in cluster.a.requests if each.code == RequestCode.HEART_BEAT)
    assert decode_heartbeat(beat.body).client_id == "10.1.2.3@me@east"
    farewell = next(each for each in cluster.a.requests if each.code == RequestCode.UNREGISTER_CLIENT)
    assert (farewell.ext_fields or {})["clientID"] == "10.1.2.3@me@east"


# -- retry topics


RETRY = "%RETRY%group"


@pytest.mark.parametrize("smart", [True, False])
@pytest.mark.parametrize("name", SINGLE)
async def test_counters_of_a_retry_topic_go_into_the_header(cluster: Cluster, name: str, smart: bool) -> None:
    cluster.name_server.routes[RETRY] = cluster.route()
    counters = {"RECONSUME_TIME": "3", "MAX_RECONSUME_TIMES": "16"}
    async with producer(cluster, send_smart_msg=smart) as sender:
        await SINGLE[name](sender, message(topic=RETRY, properties={**counters, "p": "v"}))
        await SINGLE[name](sender, message(topic=RETRY))
        await sender.flush()
    await until(lambda: len(cluster.sends) == 2)
    counted, plain = cluster.sends
    assert (counted.fields["j"], counted.fields["l"]) == ("3", "16")
    assert counted.properties == {
        **counters,
        "p": "v",
        "UNIQ_KEY": counted.unique_id,
        "WAIT": "true",
    }  # as Java leaves them there
    assert (plain.fields["j"], plain.fields.get("l")) == ("0", None)


def test_counters_are_for_retry_topics_and_numbers_only() -> None:
    for name in ("RECONSUME_TIME", "MAX_RECONSUME_TIMES"):
        with pytest.raises(InvalidMessageError, match=f"property '{name}' is reserved"):
            Message("T", b"x", properties={name: "1"})
        with pytest.raises(InvalidMessageError, match=f"property '{name}' is reserved"):
            Message("%DLQ%g", b"x", properties={name: "1"})
        for bad in ("", "-1", "1.0", "x", "²", "2147483648", "9" * 5000, 1):
            with pytest.raises(InvalidMessageError, match=f"{name} must be a whole number"):
                Message(RETRY, b"x", properties={name: bad})  # type: ignore[dict-item]
        assert Message(RETRY, b"x", properties={name: "2147483647"}).properties == {name: "2147483647"}
    with pytest.raises(InvalidMessageError, match="property 'DELAY' is reserved"):
        Message(RETRY, b"x", properties={"DELAY": "1"})


# -- the second port


def test_the_second_port_is_two_below_the_first() -> None:
    assert vip_address("10.0.0.1:10911") == "10.0.0.1:10909"
    assert vip_address("[::1]:10911") == "[::1]:10909"
    assert vip_address("h:2") == "h:2"
    assert first_port(vip_address("[::1]:10911")) == "[::1]:10911"


@pytest.mark.virtual_time
async def test_sends_go_to_the_second_port_and_heartbeats_to_the_first() -> None:
    async with with_second_ports(1) as (cluster, [second]), producer(cluster, vip_channel=True, topics=[TOPIC]) as sender:
        assert cluster.a.codes[RequestCode.HEART_BEAT] == 1
        for way in SINGLE.values():
            await way(sender, message())
        result = await sender.send_batch([message()])
        await sender.flush()
        await until(lambda: second.codes[RequestCode.SEND_MESSAGE_V2] == 4)
        assert second.codes[RequestCode.SEND_BATCH_MESSAGE] == 1
        assert not second.codes[RequestCode.HEART_BEAT]
        assert not cluster.a.codes[RequestCode.SEND_MESSAGE_V2] + cluster.a.codes[RequestCode.SEND_BATCH_MESSAGE]
        assert result.queue.broker_name == "a"


@pytest.mark.virtual_time
@pytest.mark.parametrize("name", ["send", "send_async"])
async def test_retries_go_to_the_second_port_of_the_other_broker(name: str) -> None:
    async with with_second_ports(2) as (cluster, seconds), producer(cluster, vip_channel=True, timeout=1.0) as sender:
        cluster.a.answer = refuse(1)
        results = [await SINGLE[name](sender, message()) for _ in range(4)]
        assert {result.queue.broker_name for result in results} == {"b"}
        assert {result.attempts for result in results} == {1, 2}
        retried = sum(result.attempts == 2 for result in results)
        assert [second.codes[RequestCode.SEND_MESSAGE_V2] for second in seconds] == [retried, 4]
        assert not any(broker.codes[RequestCode.SEND_MESSAGE_V2] for broker in cluster.brokers)


@pytest.mark.virtual_time
async def test_a_new_route_leads_to_a_second_port_too() -> None:
    async with with_second_ports(2) as (cluster, seconds):
        cluster.name_server.routes[TOPIC] = cluster.route(cluster.a)
        async with producer(cluster, vip_channel=True) as sender:
            assert (await sender.send(message())).queue.broker_name == "a"
            cluster.name_server.routes[TOPIC] = cluster.route(cluster.b)
            await (await client_of(sender)).routes.refresh(TOPIC)
            assert (await sender.send(message())).queue.broker_name == "b"
        assert [second.codes[RequestCode.SEND_MESSAGE_V2] for second in seconds] == [1, 1]


@pytest.mark.virtual_time
async def test_lost_second_port_refreshes_all_routes() -> None:
    async with with_second_ports(1) as (cluster, _):
        cluster.name_server.routes["other"] = cluster.route()
        async with producer(cluster, vip_channel=True, retries=0, topics=["other"]) as sender:
            await sender.send(message())
            asked = cluster.name_server.asked.count("other")
            cluster.a.answer = reset
            with pytest.raises(ConnectionLostError):
                await sender.send(message(), queue=cluster.queue())
            await until(lambda: cluster.name_server.asked.count("other") > asked)  # all routes, not only that of the send
