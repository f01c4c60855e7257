"""Each field of a message, alone and with the others, as it arrives by every way to send."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from rmq_async import Message, Producer
from rmq_protocol.properties import decode_properties

from ..support.fakes import TOPIC, Cluster, Sent
from .support import message, producer, until

Way = Callable[[Producer, Message], Awaitable[Any]]


async def deferred(sender: Producer, item: Message) -> Any:
    return await (await sender.send_async(item))


WAYS: dict[str, Way] = {
    "send": lambda sender, item: sender.send(item),
    "send by key": lambda sender, item: sender.send(item, key=1),
    "send_async": deferred,
    "send_oneway": lambda sender, item: sender.send_oneway(item),
    "send_batch": lambda sender, item: sender.send_batch([message(wait_store=item.wait_store), item]),
}
FIELDS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "nothing": ({}, {}),
    "tags": ({"tags": "a tag"}, {"TAGS": "a tag"}),
    "one key": ({"keys": "k"}, {"KEYS": "k"}),
    "keys": ({"keys": ["k1", "k2"]}, {"KEYS": "k1 k2"}),
    "no keys": ({"keys": []}, {}),
    "properties": ({"properties": {"p": "ü", "q": '"%d\\'}}, {"p": "ü", "q": '"%d\\'}),
    "no properties": ({"properties": {}}, {}),
    "wait_store": ({"wait_store": False}, {"WAIT": "false"}),
    "sharding_key": ({"sharding_key": "s"}, {"__SHARDINGKEY": "s"}),
    "unique_id": ({"unique_id": "OWN"}, {"UNIQ_KEY": "OWN"}),
    "flag": ({"flag": 7}, {}),
    "delay_level": ({"delay_level": 3}, {"DELAY": "3"}),
    "delay": ({"delay": 1.5}, {"TIMER_DELAY_MS": "1500"}),
    "no delay": ({"delay": 0.0}, {"TIMER_DELAY_MS": "0"}),
    "deliver_at": ({"deliver_at": 2e9}, {"TIMER_DELIVER_MS": "2000000000000"}),
    "deliver_at a date": ({"deliver_at": datetime(2033, 5, 18, 3, 33, 20, tzinfo=UTC)}, {"TIMER_DELIVER_MS": "2000000000000"}),
    "all": (
        {"tags": "t", "keys": "a b", "flag": -1, "properties": {"p": "v"}, "wait_store": False,
         "sharding_key": "s", "unique_id": "X"},
        {"TAGS": "t", "KEYS": "a b", "p": "v", "WAIT": "false", "__SHARDINGKEY": "s", "UNIQ_KEY": "X"},
    ),
}  # fmt: skip


def arrived(sent: Sent) -> tuple[bytes, int, dict[str, str]]:
    """Body, flag and properties of the message, in a batch the last one's."""
    if sent.code == 320:
        record = sent.batch[-1]
        return record.body, record.flag, decode_properties(record.properties)
    return sent.body, int(sent.fields["h"]), sent.properties


@pytest.mark.parametrize("form", ["json", "rocketmq"])
@pytest.mark.parametrize("name", WAYS)
async def test_each_field_alone(cluster: Cluster, name: str, form: str) -> None:
    async with producer(cluster, serialize_type=form, oneway_window=0) as sender:
        await sender.send(message())
        for field, (options, expected) in FIELDS.items():
            if name == "send_batch" and "del" in field:
                continue
            cluster.a.sends.clear()
            await WAYS[name](sender, Message(TOPIC, b"body of it", **options))
            await until(lambda: cluster.a.sends)
            body, flag, properties = arrived(cluster.a.sends[0])
            assert (body, flag) == (b"body of it", options.get("flag", 0)), field
            unique_id = properties.pop("UNIQ_KEY")
            assert unique_id == expected.get("UNIQ_KEY", unique_id), field
            assert len(unique_id) == 32 or "unique_id" in options, field
            wanted = {"WAIT": "true"} | expected
            wanted.pop("UNIQ_KEY", None)
            assert properties == wanted, field


async def test_copies_of_a_message_send_what_it_sends(cluster: Cluster) -> None:
    async with producer(cluster) as sender:
        for options, _ in FIELDS.values():
            item = Message(TOPIC, b"x", **options)
            twins = [copy.copy(item), copy.deepcopy(item), msgspec.structs.replace(item), pickle.loads(pickle.dumps(item))]
            cluster.a.sends.clear()
            for each in (item, *twins):
                await sender.send(each)
            contents = [arrived(sent) for sent in cluster.sends]
            for *_, properties in contents:
                properties.pop("UNIQ_KEY")
            assert contents == [contents[0]] * 5, options


async def test_a_changed_copy_sends_its_changes(cluster: Cluster) -> None:
    async with producer(cluster) as sender:
        await sender.send(msgspec.structs.replace(message(), tags="new"))
        await sender.send(msgspec.structs.replace(message(tags="old", keys="k"), tags=None, keys=()))
    first, second = (sent.properties for sent in cluster.sends)
    assert first["TAGS"] == "new"
    assert set(second) == {"UNIQ_KEY", "WAIT"}


async def test_later_changes_of_the_given_mapping_do_not_reach_it(cluster: Cluster) -> None:
    mine = {"p": "v"}
    item = message(properties=mine)
    mine["q"] = "w"
    async with producer(cluster) as sender:
        await sender.send(item)
    assert "q" not in cluster.sends[0].properties


class Text(str):
    """As an Enum of texts, it is formatted as something else."""

    def __format__(self, spec: str) -> str:
        return "formatted"

    def __str__(self) -> str:
        return "made a str"


class Bytes(bytes):
    """As NumPy's."""


@pytest.mark.parametrize("form", ["json", "rocketmq"])
async def test_subclasses_of_str_and_bytes_are_text_and_bytes(cluster: Cluster, form: str) -> None:
    topic, queue = Text(TOPIC), cluster.queue()
    options: dict[str, Any] = {"tags": Text("t"), "keys": [Text("k")], "properties": {Text("p"): Text("v")}}
    options |= {"sharding_key": Text("s"), "unique_id": Text("u")}
    async with producer(cluster, Text("group"), serialize_type=form, oneway_window=0) as sender:
        await sender.send(Message(topic, b"x"))
        await sender.send(Message(topic, Bytes(b"x"), **options))
        await sender.send(Message(topic, Bytes(b"x" * 3000)), queue=queue)
        await (await sender.send_async(Message(topic, Bytes(b"x" * 5000))))
        await sender.send_oneway(Message(topic, b"x"))
        await sender.send_batch([Message(topic, Bytes(b"x"))] * 2)
        await until(lambda: len(cluster.sends) == 6)
    assert {(sent.fields["a"], sent.fields["b"]) for sent in cluster.sends} == {("group", TOPIC)}
    expected = {"TAGS": "t", "KEYS": "k", "p": "v", "__SHARDINGKEY": "s", "UNIQ_KEY": "u"}
    assert expected.items() <= cluster.sends[1].properties.items()


async def test_topics_and_names_that_look_like_formats(cluster: Cluster) -> None:
    """Headers are templates: nothing in a name or a value may be taken for a place in them."""
    topic = "%s%d%(x)s|%b-%"
    topic = topic.replace("(", "").replace(")", "")
    cluster.name_server.routes[topic] = cluster.route()
    async with producer(cluster, "%group%d") as sender:
        await sender.send(message(topic=topic, properties={"%s": "%d %b {}", "{}": "%"}))
        await sender.send(message(b"%d%s", topic=topic))
    first, second = cluster.sends
    assert first.fields["b"] == second.fields["b"] == topic
    assert first.fields["a"] == "%group%d"
    assert {"%s": "%d %b {}", "{}": "%"}.items() <= first.properties.items()
    assert second.body == b"%d%s"
