"""The fast path and the general path send the same: frames, results and errors, signed and unsigned.

A call with a ``timeout`` takes the general path, so each message is sent both ways.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmq_async import Batching, Credentials, InvalidMessageError, Message, Producer
from rmq_async.results import SendResult
from rmq_protocol.constants import RequestCode
from rmq_protocol.properties import RESERVED_NAMES, decode_properties
from rmq_protocol.signing import SIGNATURE, sign

from ..support.calls import counted
from ..support.fakes import TOPIC, Cluster, Sent
from .support import producer, spin

pytestmark = pytest.mark.virtual_time

USER = Credentials("alice", "her secret", "a token")
EXAMPLES = settings(
    max_examples=int(os.environ.get("RMQ_FUZZ_EXAMPLES", "30")), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)

TEXTS = st.text(st.characters(exclude_characters="\x00\x01\x02", exclude_categories=["Cs"]), max_size=8)
VISIBLE = TEXTS.filter(lambda text: text.strip("".join(map(chr, range(33)))))
NAMES = VISIBLE.filter(lambda name: name not in RESERVED_NAMES)
FIELDS = st.fixed_dictionaries(
    {"body": st.binary(min_size=1, max_size=5000)},
    optional={
        "tags": TEXTS,
        "keys": TEXTS | st.lists(VISIBLE, max_size=3),
        "flag": st.integers(-(2**31), 2**31 - 1),
        "properties": st.dictionaries(NAMES, VISIBLE | st.sampled_from(["x" * 20_000]), max_size=3),
        "wait_store": st.booleans(),
        "unique_id": VISIBLE,
        "sharding_key": TEXTS,
        "delay_level": st.integers(0, 3),
    },
)

GATHERED = st.builds(lambda fields, body: fields | {"body": body}, FIELDS, st.binary(min_size=1, max_size=300))

Way = Callable[..., Awaitable[SendResult | None]]


async def sent_async(sender: Producer, message: Message, **options: Any) -> SendResult:
    return await (await sender.send_async(message, **options))


WAYS: dict[str, Way] = {"send": Producer.send, "send_async": sent_async, "send_oneway": Producer.send_oneway}


def shown(sent: Sent) -> dict[str, Any]:
    """What a broker reads, without what is another one for each send: opaque, born time, a drawn id, the signature."""
    fields, properties = dict(sent.fields), sent.properties
    if (signature := fields.pop(SIGNATURE, None)) is not None:
        assert sign(USER, fields, (sent.body,))[SIGNATURE] == signature
    assert fields.pop("g").isdecimal()
    assert fields.pop("i").startswith(f"UNIQ_KEY\x01{sent.unique_id}\x02")
    unique_id = properties.pop("UNIQ_KEY")
    properties["UNIQ_KEY"] = "drawn" if len(unique_id) == 32 else unique_id
    command = msgspec.structs.replace(sent.command, opaque=0, ext_fields=None)
    return {"fields": fields, "properties": list(properties.items()), "command": command}


async def outcome(cluster: Cluster, way: Way, sender: Producer, message: Message, **options: Any) -> Any:
    """What was sent and returned, or the error."""
    cluster.a.sends.clear()
    try:
        result = await way(sender, message, **options)
    except InvalidMessageError as error:
        return str(error)
    while not cluster.a.sends:  # of a one-way send
        await spin()
    if result is None:
        return shown(cluster.a.sends[0])
    assert result.msg_id == cluster.a.sends[0].unique_id
    return shown(cluster.a.sends[0]), msgspec.structs.replace(result, msg_id="", offset_msg_id="", queue_offset=0)


@pytest.mark.parametrize("signed", [False, True], ids=["unsigned", "signed"])
@pytest.mark.parametrize("form", ["json", "rocketmq"])
@pytest.mark.parametrize("name", WAYS)
@EXAMPLES
@given(drawn=st.lists(FIELDS, min_size=1, max_size=8))
def test_both_paths_send_the_same(name: str, form: str, signed: bool, drawn: list[dict[str, Any]]) -> None:
    way = WAYS[name]

    async def compare() -> None:
        options: dict[str, Any] = {"serialize_type": form, "oneway_window": 0} | ({"credentials": USER} if signed else {})
        async with Cluster(1, queues=1) as cluster, producer(cluster, **options) as sender:
            await sender.send(Message(TOPIC, b"makes route and connection"))
            for fields in drawn:
                message = Message(TOPIC, **fields)
                fast = await outcome(cluster, way, sender, message)
                assert fast == await outcome(cluster, way, sender, message, timeout=3.0)

    asyncio.run(compare())


@pytest.mark.parametrize("signed", [False, True], ids=["unsigned", "signed"])
@pytest.mark.parametrize("name", WAYS)
async def test_the_fast_path_takes_fewer_calls(cluster: Cluster, name: str, signed: bool) -> None:
    """So a timeout does lead to another path, and messages like these do not go there without it."""
    message = Message(TOPIC, b"body", tags="t", keys="k", properties={"p": "v"})
    options: dict[str, Any] = {"credentials": USER} if signed else {}
    async with producer(cluster, oneway_window=0, **options) as sender:
        figures = []
        for timeout in (None, 3.0):
            for _ in range(3):
                await WAYS[name](sender, message, timeout=timeout)
            with counted() as calls:
                await WAYS[name](sender, message, timeout=timeout)
            figures.append(calls.count)
    assert figures[0] < figures[1]


def gathered(sent: Sent) -> list[tuple[int, bytes, dict[str, str]]]:
    """Flag, body and properties of each message of a request, without an id that was drawn."""
    if sent.code == RequestCode.SEND_BATCH_MESSAGE:
        parts = [(record.flag, record.body, decode_properties(record.properties)) for record in sent.batch]
    else:
        parts = [(int(sent.fields["h"]), sent.body, sent.properties)]
    return [
        (flag, body, {**own, "UNIQ_KEY": "drawn" if len(own["UNIQ_KEY"]) == 32 else own["UNIQ_KEY"]})
        for flag, body, own in parts
    ]


async def all_at_once(cluster: Cluster, way: Way, sender: Producer, items: list[Message], **options: Any) -> Any:
    """What the brokers got of messages that are there together, and what their calls returned."""
    cluster.a.sends.clear()
    results = await asyncio.gather(*[way(sender, item, **options) for item in items], return_exceptions=True)
    assert [error for error in results if isinstance(error, BaseException) and not isinstance(error, InvalidMessageError)] == []
    sent = [part for each in cluster.a.sends for part in gathered(each)]
    ids = {each.unique_id for each in cluster.a.sends if each.code != RequestCode.SEND_BATCH_MESSAGE} | {
        decode_properties(record.properties)["UNIQ_KEY"]
        for each in cluster.a.sends
        if each.code == RequestCode.SEND_BATCH_MESSAGE
        for record in each.batch
    }
    stored = [result for result in results if isinstance(result, SendResult)]
    assert {result.msg_id for result in stored} == ids
    return sorted(sent, key=repr), [str(result) if isinstance(result, BaseException) else result.status for result in results]


@pytest.mark.parametrize("name", ["send", "send_async"])
@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@pytest.mark.parametrize("limit", [1024, 256 * 1024])
@EXAMPLES
@given(drawn=st.lists(GATHERED, min_size=1, max_size=8))
def test_both_paths_gather_the_same(name: str, limit: int, drawn: list[dict[str, Any]]) -> None:
    way = WAYS[name]

    async def compare() -> None:
        async with Cluster(1, queues=1) as cluster, producer(cluster, batching=Batching(max_bytes=limit)) as sender:
            await sender.send(Message(TOPIC, b"makes route and connection"))
            items = [Message(TOPIC, **fields) for fields in drawn]
            fast = await all_at_once(cluster, way, sender, items)
            assert all(len(sent.body) <= limit for sent in cluster.a.sends if sent.code == RequestCode.SEND_BATCH_MESSAGE)
            assert fast == await all_at_once(cluster, way, sender, items, timeout=3.0)

    asyncio.run(compare())
