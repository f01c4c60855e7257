"""``rmq demo`` against peers that lose, double, damage or withhold messages: real sockets, a man in the middle."""

from __future__ import annotations

import asyncio
import re
import signal
import time

import pytest

from rmq_async.cli.demo import DemoSettings, run_demo
from rmq_async.cli.output import Output
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.batch import decode_batch
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode
from rmq_protocol.frame import Frame
from rmq_protocol.properties import decode_properties

from .relay import Fate, Relay, Rule, acknowledged, properties_of
from .support import Ended, end, one_line, rmq, start

SMALL = ("--json", "--messages", "300")


class Once:
    """Does ``then`` to the first send that matches and remembers it; everything else passes."""

    def __init__(self, tags: str, then: Rule) -> None:
        self.tags = tags
        self.then = then
        self.request: RemotingCommand | None = None

    def __call__(self, command: RemotingCommand, frame: Frame) -> Fate | None:
        wanted = command.code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
        if not wanted or self.request is not None or self.tags != tags_of(command):
            return None
        self.request = command
        return self.then(command, frame)

    @property
    def msg_id(self) -> str:
        assert self.request is not None
        return properties_of(self.request)["UNIQ_KEY"]

    @property
    def key(self) -> str:
        assert self.request is not None
        return properties_of(self.request)["KEYS"].split()[0]


def tags_of(command: RemotingCommand) -> str:
    if command.code == RequestCode.SEND_BATCH_MESSAGE:
        return "batch"
    return properties_of(command).get("TAGS", "")


def forgotten(command: RemotingCommand, frame: Frame) -> Fate:
    """Acknowledged, and never stored."""
    return Fate(answer=acknowledged(command))


def forgotten_batch(command: RemotingCommand, frame: Frame) -> Fate:
    return Fate(answer=acknowledged(command, len(decode_batch(command.body))))


def dropped(command: RemotingCommand, frame: Frame) -> Fate:
    return Fate()


def doubled(command: RemotingCommand, frame: Frame) -> Fate:
    return Fate((frame, frame))


def damaged(command: RemotingCommand, frame: Frame) -> Fate:
    body = bytes(frame.body)
    return Fate((Frame(frame.serialize_type, frame.header, body[:40] + b"\xff\x00" + body[42:]),))


async def demo(rule: Rule, *arguments: str) -> tuple[Ended, int]:
    """The run, and how many messages the server still holds of its topic."""
    async with EmbeddedRocketMQ() as server, Relay(server, rule) as relay:
        ended = await rmq("demo", *SMALL, "--namesrv", relay.namesrv, *arguments)
        return ended, len(server.messages(ended.summary["topic"]))


@pytest.mark.parametrize("mode", ["awaited", "async"])
async def test_a_lost_acknowledged_message_is_named_and_the_exit_code_is_1(mode: str) -> None:
    once = Once(mode, forgotten)
    ended, held = await demo(once)
    assert ended.code == 1
    line = one_line(ended.err)
    assert "1 acknowledged message is missing" in line
    assert once.msg_id in line
    assert once.key in line
    assert ended.summary["lost_messages"] == [{"key": once.key, "msg_id": once.msg_id}]
    assert {name: record["lost"] for name, record in ended.modes.items() if record["lost"]} == {mode: 1}
    assert held == 1199  # the topic is kept, so that it can be looked at


async def test_a_lost_batch_is_every_message_of_it() -> None:
    once = Once("batch", forgotten_batch)
    ended, _ = await demo(once)
    assert ended.code == 1
    assert once.request is not None
    ids = [decode_properties(record.properties)["UNIQ_KEY"] for record in decode_batch(once.request.body)]
    assert len(ids) == 32
    assert [lost["msg_id"] for lost in ended.summary["lost_messages"]] == ids
    assert "32 acknowledged messages are missing" in one_line(ended.err)
    assert ids[0] in ended.err


async def test_people_read_of_a_lost_message_too() -> None:
    once = Once("awaited", forgotten)
    async with EmbeddedRocketMQ() as server, Relay(server, once) as relay:
        ended = await rmq("demo", "--messages", "300", "--namesrv", relay.namesrv)
    assert ended.code == 1
    assert once.msg_id in one_line(ended.err)
    row = next(line.split() for line in ended.out.splitlines() if line.startswith("awaited "))
    assert row[1:5] == ["300", "300", "299", "1"]


async def test_a_lost_oneway_message_is_counted_and_no_failure_on_a_cluster() -> None:
    ended, _ = await demo(Once("oneway", dropped))
    assert (ended.code, ended.err) == (0, "")
    assert (ended.modes["oneway"]["lost"], ended.modes["oneway"]["stored"]) == (1, 299)


async def test_a_message_stored_twice_is_counted_and_no_failure() -> None:
    ended, _ = await demo(Once("awaited", doubled))
    assert (ended.code, ended.err) == (0, "")
    assert (ended.modes["awaited"]["duplicated"], ended.modes["awaited"]["stored"]) == (1, 300)
    assert ended.summary["duplicated"] == 1


async def test_a_body_changed_on_its_way_is_found_by_the_demos_own_checksum() -> None:
    once = Once("awaited", damaged)
    ended, _ = await demo(once)
    assert ended.code == 1
    assert "1 message is damaged" in one_line(ended.err)
    assert once.msg_id in ended.err
    assert ended.summary["damaged"] == 1


async def test_a_message_stored_without_an_answer_differs_from_a_loss() -> None:
    def unanswered(command: RemotingCommand, frame: Frame) -> Fate:
        """The broker is made to believe that no answer is wanted."""
        header = bytes(frame.header)
        assert b'"flag":0' in header
        return Fate((Frame(frame.serialize_type, header.replace(b'"flag":0', b'"flag":2'), frame.body),))

    ended, _ = await demo(Once("awaited", unanswered), "--timeout", "0.5")
    assert ended.code == 1
    awaited = ended.modes["awaited"]
    assert (awaited["failed"], awaited["stored_unacknowledged"], awaited["lost"]) == (1, 1, 0)
    assert "1 of 300 sends of mode awaited failed, the first: RequestTimeoutError" in one_line(ended.err)


async def test_refused_sends_are_a_failure_in_one_line() -> None:
    async with EmbeddedRocketMQ() as server:
        server.fail_next(13, 10_000, request=RequestCode.SEND_MESSAGE_V2)
        ended = await rmq("demo", *SMALL, "--namesrv", server.namesrv)
    assert ended.code == 1
    assert "MESSAGE_ILLEGAL" in one_line(ended.err)
    assert (ended.modes["awaited"]["failed"], ended.modes["batch"]["stored"]) == (300, 300)
    assert ended.modes["awaited"]["p50_ms"] is None


async def test_a_silent_cluster_is_given_up_in_time() -> None:
    async with EmbeddedRocketMQ() as server:
        server.stall()
        began = time.monotonic()
        ended = await rmq("demo", "--namesrv", server.namesrv, "--timeout", "1")
    assert ended.code == 1
    assert time.monotonic() - began < 5
    assert one_line(ended.err).startswith("rmq: ")


async def test_no_server_at_the_address_is_one_line() -> None:
    ended = await rmq("demo", "--namesrv", "127.0.0.1:1", "--timeout", "1")
    assert (ended.code, ended.out) == (1, "")
    assert "127.0.0.1:1" in one_line(ended.err)


async def test_the_time_limit_holds_and_says_how_far_it_came(capsys: pytest.CaptureFixture[str]) -> None:
    async with EmbeddedRocketMQ() as server:
        server.delay(0.3, broker="broker-a")
        began = time.monotonic()
        settings = DemoSettings(namesrv=server.namesrv, messages=100_000, time_limit=1.5)
        assert await run_demo(settings, Output(as_json=False)) == 1
        assert time.monotonic() - began < 3.5
        server.delay(0)
    assert re.search(r"not finished after 1\.5 s, (while|after) ", one_line(capsys.readouterr().err))


@pytest.mark.slow
async def test_a_far_cluster_gets_what_can_be_sent_and_read_back_in_time() -> None:
    async with EmbeddedRocketMQ() as server:
        server.delay(0.1, broker="broker-a")
        began = time.monotonic()
        ended = await rmq("demo", "--messages", "50000", "--namesrv", server.namesrv)
    assert time.monotonic() - began < 15
    assert ended.code == 0, ended.err
    assert "an answer takes 10" in ended.out
    assert "awaited: ended by time after" in ended.out
    assert "nothing lost" in ended.out


async def test_ctrl_c_ends_the_demo_without_a_traceback() -> None:
    process = await start("demo", "--messages", "40000")
    assert process.stdout is not None
    assert b"embedded broker" in await process.stdout.readline()
    await asyncio.sleep(0.1)
    process.send_signal(signal.SIGINT)
    ended = await end(process, 5)
    assert ended.code == 130
    assert ended.err.strip() == "rmq: interrupted"
