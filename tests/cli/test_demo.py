"""``rmq demo`` where all is well."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import time

import pytest

from rmq_async import MessageExt
from rmq_async.cli.demo.messages import DamagedError, Key, Messages
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.constants import RequestCode

from .support import end, rmq, start

MODES = ["awaited", "async", "oneway", "batch"]


async def test_the_demo_as_a_newcomer_runs_it() -> None:
    began = time.monotonic()
    await rmq("--version")
    starting = time.monotonic() - began  # of an interpreter, on this machine and beside what else it does
    began = time.monotonic()
    ended = await rmq("demo")
    seconds = time.monotonic() - began
    assert (ended.code, ended.err) == (0, "")
    assert seconds < 9 + 3 * starting
    rows = [line.split() for line in ended.out.splitlines()]
    heading = next(number for number, row in enumerate(rows) if row[:2] == ["mode", "sent"])
    assert [row[0] for row in rows[heading + 1 : heading + 5]] == MODES
    for mode, sent, acknowledged, stored, lost, duplicated, *_ in rows[heading + 1 : heading + 5]:
        assert acknowledged == ("-" if mode == "oneway" else sent)
        assert (stored, lost, duplicated) == (sent, "0", "0")
    assert "nothing lost, nothing duplicated." in ended.out
    assert max(map(len, ended.out.splitlines())) <= 120


async def test_json_is_one_object_a_mode_and_a_summary() -> None:
    ended = await rmq("demo", "--json", "--messages", "500", "--size", "5000")
    assert (ended.code, ended.err) == (0, "")
    assert list(ended.modes) == MODES
    for mode, record in ended.modes.items():
        assert record["sent"] == record["stored"] == 500
        assert record["acknowledged"] == (None if mode == "oneway" else 500)
        assert (record["lost"], record["duplicated"], record["failed"]) == (0, 0, 0)
        assert record["rate"] > 0
        assert 0 < record["p50_ms"] <= record["p99_ms"]
    summary = ended.summary
    assert (summary["ok"], summary["sent"], summary["acknowledged"], summary["stored"]) == (True, 2000, 1500, 2000)
    assert (summary["embedded"], summary["lost_messages"], summary["problems"]) == (True, [], [])


async def test_a_number_that_no_batch_divides_is_sent_whole() -> None:
    ended = await rmq("demo", "--json", "--messages", "33")
    assert ended.code == 0
    assert {record["stored"] for record in ended.modes.values()} == {33}


async def test_a_given_cluster_is_used() -> None:
    async with EmbeddedRocketMQ(brokers=2) as server:
        ended = await rmq("demo", "--json", "--messages", "200", "--keep-topic", "--namesrv", server.namesrv)
        assert (ended.code, ended.err) == (0, "")
        assert (ended.summary["embedded"], ended.summary["namesrv"]) == (False, server.namesrv)
        held = server.messages(ended.summary["topic"])
        assert len(held) == 800
        assert {message.queue.broker_name for message in held} == {"broker-a", "broker-b"}


async def test_the_topic_is_deleted_on_a_cluster() -> None:
    async with EmbeddedRocketMQ() as server:
        ended = await rmq("demo", "--json", "--messages", "20", "--namesrv", server.namesrv)
        assert (ended.code, ended.summary["topic_deleted"]) == (0, True)
        assert server.requests[RequestCode.DELETE_TOPIC_IN_BROKER] == 1
        assert server.messages(ended.summary["topic"]) == []


async def test_a_kept_topic_holds_every_message() -> None:
    async with EmbeddedRocketMQ() as server:
        ended = await rmq("demo", "--json", "--messages", "100", "--keep-topic", "--namesrv", server.namesrv)
        assert (ended.code, ended.summary["topic_deleted"]) == (0, False)
        assert not server.requests[RequestCode.DELETE_TOPIC_IN_BROKER]
        assert len(server.messages(ended.summary["topic"])) == 400


async def test_users_and_tls_are_those_of_a_cluster() -> None:
    alone = await rmq("demo", "--tls")
    assert (alone.code, alone.out) == (2, "")
    assert "give --namesrv too" in alone.err
    async with EmbeddedRocketMQ() as server:
        ended = await rmq("demo", "--tls", "--timeout", "1", "--namesrv", server.namesrv)
        assert (ended.code, server.requests.total()) == (1, 0)


async def test_the_environments_cluster_is_left_alone() -> None:
    async with EmbeddedRocketMQ() as server:
        environment = {**os.environ, "NAMESRV_ADDR": server.namesrv}
        ended = await rmq("demo", "--json", "--messages", "50", env=environment)
        assert (ended.code, ended.summary["embedded"]) == (0, True)
        assert not server.requests


async def test_a_terminal_sees_bars() -> None:
    master, slave = pty.openpty()
    try:
        process = await start("demo", "--messages", "100", stderr=slave)
        os.close(slave)
        slave = -1
        ended = await end(process)
        shown = b""
        while True:
            try:
                data = await asyncio.to_thread(os.read, master, 65536)
            except OSError:  # how Linux reports that no process holds the other side any more
                break
            if not data:
                break
            shown += data
    finally:
        os.close(master)
        if slave >= 0:
            os.close(slave)
    assert ended.code == 0
    for bar in (*MODES, "read back"):
        assert bar.encode() in shown
    # The demo sends fewer where the machine is too busy for all of them within its time.
    assert re.search(rb"m([1-9]\d*)/\1\x1b", shown.rpartition(b"read back")[2])


# -- the messages' own checksum


def received(messages: Messages, **changes: object) -> MessageExt:
    message = messages.make(Key("batch", 7))
    assert message.properties is not None
    properties = {**message.properties, "TAGS": message.tags or "", "KEYS": " ".join(message.keys), "UNIQ_KEY": "AB12"}
    fields = {"topic": message.topic, "body": message.body, "properties": properties}
    return MessageExt(**(fields | changes))  # type: ignore[arg-type]


def test_a_message_that_came_through_is_known_by_its_key() -> None:
    messages = Messages("t", 128)
    assert messages.check(received(messages)) == ("batch", 7)
    assert len(messages.make(Key("batch", 7)).body) == 128


@pytest.mark.parametrize("name", ["TAGS", "KEYS", "demo_run", "demo_index", "demo_crc"])
def test_a_changed_property_is_seen(name: str) -> None:
    messages = Messages("t", 128)
    properties = dict(received(messages).properties)
    for damaged in ({**properties, name: properties[name] + "1"}, {key: properties[key] for key in properties if key != name}):
        with pytest.raises(DamagedError, match="AB12"):
            messages.check(received(messages, properties=damaged))


@pytest.mark.parametrize("at", [0, 64, 127])
def test_a_changed_byte_of_the_body_is_seen(at: int) -> None:
    messages = Messages("t", 128)
    body = bytearray(received(messages).body)
    body[at] ^= 1
    for damaged in (bytes(body), received(messages).body[:at]):
        with pytest.raises(DamagedError, match="AB12"):
            messages.check(received(messages, body=damaged))


def test_a_message_of_another_run_is_no_message_of_this_one() -> None:
    with pytest.raises(DamagedError, match="of run"):
        Messages("t", 128).check(received(Messages("t", 128)))
