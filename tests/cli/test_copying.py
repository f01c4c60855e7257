"""``rmq pull --json A | rmq send --json B``: a copy has what the senders gave, in the order of each queue."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmq_async import Message, MessageExt, MessageQueue, Producer
from rmq_async.cli.records import Queues, read_record
from rmq_async.cli.send import STDIN
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.constants import RequestCode

from .support import Ended, Rmq, one_line, rmq

Copied = Callable[..., Ended]


@pytest.fixture
def copied(rmq_here: Rmq, tmp_path: Path) -> Copied:
    """Runs ``rmq send topic --json`` with these lines as its input."""

    def run(lines: bytes, topic: str, *arguments: str) -> Ended:
        (tmp_path / "lines").write_bytes(lines)
        before = os.dup(STDIN)
        try:
            with (tmp_path / "lines").open("rb") as file:
                os.dup2(file.fileno(), STDIN)
            return rmq_here("send", topic, "--json", *arguments)
        finally:
            os.dup2(before, STDIN)
            os.close(before)

    return run


async def filled(server: EmbeddedRocketMQ, topic: str, messages: int = 400) -> None:
    """Bodies of text, of several lines and of any bytes, with all that a sender may give."""
    async with Producer("p", namesrv=server.namesrv) as producer:
        bodies = (b"text %d", b"two\nlines\r\n%d", b"\xff\x00%d", "naïve %d".encode())
        for number in range(messages):
            message = Message(
                topic,
                bodies[number % 4] % number,
                tags="odd" if number % 2 else None,
                keys=("k", str(number)),
                properties={"a": "b=c", "n": str(number)},
                flag=number,
                sharding_key=f"order-{number % 7}" if number % 3 else None,
            )
            await producer.send(message)


def facts(message: MessageExt) -> tuple[object, ...]:
    properties = tuple(sorted(message.user_properties.items()))
    return message.body, message.tags, message.keys, properties, message.flag, message.sharding_key


def by_queue(messages: list[MessageExt]) -> dict[tuple[str, int], list[tuple[object, ...]]]:
    found = defaultdict(list)
    for message in messages:
        found[message.queue.broker_name, message.queue.queue_id].append(facts(message))
    return found


def line(**fields: Any) -> bytes:
    return json.dumps(fields).encode() + b"\n"


async def test_a_pipe_copies_a_topic(server: EmbeddedRocketMQ) -> None:
    await filled(server, "Original")
    command = f'"{sys.executable}" -W error -m rmq_async.cli'
    pipe = f"{command} pull Original --json --namesrv {server.namesrv} | {command} send Copy --json --namesrv {server.namesrv}"
    ended = await rmq(command=["sh", "-c", pipe])
    assert (ended.code, ended.err) == (0, "")
    assert {each["status"] for each in ended.records} == {"SEND_OK"}
    original, copy = server.messages("Original"), server.messages("Copy")
    assert len(ended.records) == len(copy) == 400
    assert by_queue(copy) == by_queue(original)
    assert not {each.unique_id for each in copy} & {each.unique_id for each in original}


def test_a_copy_into_other_queues_keeps_the_order_of_each(server: EmbeddedRocketMQ, rmq_here: Rmq, copied: Copied) -> None:
    asyncio.run(filled(server, "Wide", 60))
    assert rmq_here("topic", "create", "Narrow", "--queues", "3", "--broker", "broker-a").code == 0
    pulled = rmq_here("pull", "Wide", "--json")
    ended = copied(pulled.out.encode(), "Narrow")
    assert ended.code == 0, ended.err
    places = {facts(each): (each.queue, each.queue_offset) for each in server.messages("Narrow")}
    for messages in by_queue(server.messages("Wide")).values():
        found = [places[each] for each in messages]
        assert len({queue for queue, _ in found}) == 1
        assert found == sorted(found)


def test_a_copy_carries_nothing_of_the_system(server: EmbeddedRocketMQ, copied: Copied) -> None:
    names = {
        "UNIQ_KEY": "AC11000100002A9F0000000000000001", "RETRY_TOPIC": "Elsewhere", "DELAY": "3", "REAL_TOPIC": "Elsewhere",
        "TIMER_DELAY_MS": "60000", "TRAN_MSG": "true", "PGROUP": "p", "CLUSTER": "c", "MSG_REGION": "r", "WAIT": "false",
        "DLQ_ORIGIN_TOPIC": "Elsewhere", "RECONSUME_TIME": "2", "__RMQ.TRANSIENT.x": "1", "own": "kept",
    }  # fmt: skip
    ended = copied(line(body="x", properties=names, topic="%DLQ%g", future="?"), "Bare")
    assert ended.code == 0, ended.err
    (message,) = server.messages("Bare")
    assert message.user_properties == {"own": "kept"}
    assert message.properties.keys() - {"own"} <= {"UNIQ_KEY", "WAIT", "CLUSTER", "MSG_REGION", "TRACE_ON"}
    assert message.unique_id != names["UNIQ_KEY"]
    assert message.wait_store


def test_a_copy_says_what_it_leaves_out(server: EmbeddedRocketMQ, copied: Copied) -> None:
    lines = line(body="1", properties={"a": "1"}) + line(
        body="2", properties={"a": "x\x01y", "b": "", "c": "3"}, keys=["k", "\x02"]
    )
    lines += line(body="3", properties={"a\x02": "1"}) + line(body="4", tags="\x01", properties={"__SHARDINGKEY": "\x00"})
    ended = copied(lines, "LeftOut")
    assert ended.code == 0
    found = {each.body: (each.user_properties, each.keys, each.tags) for each in server.messages("LeftOut")}
    assert found == {b"1": ({"a": "1"}, (), None), b"2": ({"c": "3"}, ("k",), None), b"3": ({}, (), None), b"4": ({}, (), None)}
    assert one_line(ended.err) == (
        "rmq: 6 texts of 3 messages are left out, because they are blank or have control characters 0 to 2, which a message must "
        "not have; the first: property a of line 2"
    )
    replaced = copied(line(body="5", tags="\x01", keys="\x02"), "LeftOut", "--tags", "t", "--keys", "k")
    assert (replaced.code, replaced.err) == (0, "")


def test_options_replace_what_the_messages_have(server: EmbeddedRocketMQ, copied: Copied) -> None:
    options = ("--tags", "new", "--keys", "k9", "--property", "a=2", "--queue", "broker-b:1")
    lines = line(body="x", tags="old", keys=["k1"], properties={"a": "1", "b": "1"}, broker="broker-a", queue_id=0)
    assert copied(lines, "Replaced", *options).code == 0
    (message,) = server.messages("Replaced")
    assert (message.tags, message.keys, message.user_properties) == ("new", ("k9",), {"a": "2", "b": "1"})
    assert message.queue == MessageQueue("Replaced", "broker-b", 1)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (b"{", "rmq pull --json"),
        (b"text", "rmq pull --json"),
        (b"[]", "rmq pull --json"),
        (b'\xff{"body": "x"}', "rmq pull --json"),
        (line(), "or body_base64, and it has neither"),
        (line(body="x", body_base64="eA=="), "or body_base64, and it has both"),
        (line(body_base64="é!"), "body_base64"),
        (line(body_base64="eA"), "body_base64"),
        (line(body=7), "$.body"),
        (line(body="\ud800"), "rmq pull --json"),
        (line(body="x", properties={"a": 1}), "$.properties"),
    ],
    ids=str,
)
def test_a_bad_line_says_what_is_wrong(bad: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        read_record(bad)


@pytest.mark.parametrize(
    ("bad", "says"),
    [(b"text", "rmq pull --json"), (line(body="x", flag=1 << 40), "flag"), (line(body=""), "empty")],
    ids=["no object", "no message", "refused"],
)
def test_a_bad_line_is_named_and_those_before_are_counted(
    bad: bytes, says: str, server: EmbeddedRocketMQ, copied: Copied
) -> None:
    before = len(server.messages("Bad"))
    lines = line(body="1") + b"\n" + line(body="2") + bad.rstrip() + b"\n" + line(body="9")
    ended = copied(lines, "Bad")
    assert ended.code == 1
    error = one_line(ended.err)
    assert "line 4" in error
    assert says in error
    assert error.endswith("; 2 messages were sent")
    assert len(server.messages("Bad")) - before == len(ended.records) == 2


def test_a_failed_send_ends_a_copy_and_is_counted(server: EmbeddedRocketMQ, copied: Copied) -> None:
    server.fail_next(13, request=RequestCode.SEND_MESSAGE_V2)
    ended = copied(line(body="1", broker="broker-a", queue_id=0), "Refused")
    assert ended.code == 1
    assert "line 1: " in (error := one_line(ended.err))
    assert error.endswith("; 0 messages were sent")


def test_a_busy_broker_does_not_end_a_copy(server: EmbeddedRocketMQ, copied: Copied) -> None:
    server.fail_next(2, request=RequestCode.SEND_MESSAGE_V2)
    ended = copied(line(body="1", broker="broker-a", queue_id=0), "Busy")
    assert (ended.code, ended.err) == (0, "")
    assert [message.body for message in server.messages("Busy")] == [b"1"]


def test_no_create_sends_to_a_topic_that_is_there_only(server: EmbeddedRocketMQ, rmq_here: Rmq) -> None:
    ended = rmq_here("send", "NotThere", "--body", "x", "--no-create")
    assert (ended.code, ended.out) == (1, "")
    assert "NotThere" in one_line(ended.err)
    assert "NotThere" not in rmq_here("topic", "list").out.splitlines()
    assert rmq_here("topic", "create", "IsThere", "--queues", "1").code == 0
    assert rmq_here("send", "IsThere", "--body", "x", "--no-create").code == 0
    assert len(server.messages("IsThere")) == 1


def test_queues_of_other_brokers_are_spread_evenly() -> None:
    queues = [MessageQueue("T", "a", number) for number in range(8)]
    found = Queues(queues)
    assert [found.of(("a", number)) for number in range(8)] == queues
    assert {found.of(("elsewhere", number)) for number in range(8)} == {*queues}
    assert found.of(("elsewhere", -(1 << 70))) in queues


def test_tags_and_keys_of_a_line_win_over_its_properties() -> None:
    properties = {"TAGS": "t", "KEYS": "a b"}
    message, place = read_record(line(body="x", properties=properties))
    assert (message.tags, message.keys, place) == ("t", ("a", "b"), None)
    message, place = read_record(
        line(body_base64=base64.b64encode(b"\xff").decode(), properties=properties, tags=None, keys=[])
    )
    assert (message.body, message.tags, message.keys) == (b"\xff", "", ())
    message, place = read_record(line(body="x", tags="u", keys="c d", broker="b", queue_id=3))
    assert (message.tags, message.keys, place) == ("u", ("c", "d"), ("b", 3))
