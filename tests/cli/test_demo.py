"""``rmq demo`` where all is well, and against peers that lose, damage or withhold messages: real sockets, a man in the middle."""

from __future__ import annotations

import asyncio
import signal

import pytest

from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode
from rmq_protocol.frame import Frame

from .relay import Fate, Relay, Rule, acknowledged, properties_of
from .support import Ended, Rmq, end, in_a_thread, one_line, start

MODES = ["awaited", "async", "oneway", "batch", "single"]
SMALL = ("--json", "--messages", "300")


def test_the_demo_as_a_newcomer_runs_it(rmq_alone: Rmq) -> None:
    ended = rmq_alone("demo")
    assert (ended.code, ended.err) == (0, "")
    rows = [line.split() for line in ended.out.splitlines()]
    heading = next(number for number, row in enumerate(rows) if row[:2] == ["mode", "sent"])
    assert [row[0] for row in rows[heading + 1 : heading + 6]] == MODES
    for mode, sent, confirmed, stored, lost, duplicated, *_ in rows[heading + 1 : heading + 6]:
        assert confirmed == ("-" if mode == "oneway" else sent)
        assert (stored, lost, duplicated) == (sent, "0", "0")
    assert "nothing lost, nothing duplicated." in ended.out
    assert max(map(len, ended.out.splitlines())) <= 120


def test_json_is_one_object_a_mode_and_a_summary(rmq_alone: Rmq) -> None:
    ended = rmq_alone("demo", "--json", "--messages", "333", "--size", "5000")
    assert (ended.code, ended.err) == (0, "")
    assert list(ended.modes) == MODES
    for mode, record in ended.modes.items():
        assert record["sent"] == record["stored"] == 333
        assert record["acknowledged"] == (None if mode == "oneway" else 333)
        assert (record["lost"], record["duplicated"], record["failed"]) == (0, 0, 0)
        assert record["rate"] > 0
        assert 0 < record["p50_ms"] <= record["p99_ms"]
    summary = ended.summary
    assert (summary["ok"], summary["sent"], summary["acknowledged"], summary["stored"]) == (True, 1665, 1332, 1665)
    assert (summary["namesrv"], summary["problems"]) == (None, [])


@pytest.mark.parametrize("keep", [False, True])
def test_a_given_cluster_keeps_the_topic_only_if_asked(keep: bool, rmq_alone: Rmq) -> None:
    with in_a_thread(EmbeddedRocketMQ(brokers=2)) as server:
        ended = rmq_alone("demo", "--json", "--messages", "200", *["--keep-topic"] * keep, "--namesrv", server.namesrv)
        assert (ended.code, ended.err, ended.summary["namesrv"]) == (0, "", server.namesrv)
        held = server.messages(ended.summary["topic"])
        assert len(held) == (1000 if keep else 0)
        assert bool(server.requests[RequestCode.DELETE_TOPIC_IN_BROKER]) is not keep


def test_users_and_tls_are_those_of_a_cluster(rmq_alone: Rmq) -> None:
    alone = rmq_alone("demo", "--tls")
    assert (alone.code, alone.out) == (2, "")
    assert "give --namesrv too" in alone.err
    with in_a_thread(EmbeddedRocketMQ()) as server:
        ended = rmq_alone("demo", "--tls", "--timeout", "1", "--namesrv", server.namesrv)
        assert (ended.code, server.requests.total()) == (1, 0)


def test_the_environments_cluster_is_left_alone(rmq_alone: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
    with in_a_thread(EmbeddedRocketMQ()) as server:
        monkeypatch.setenv("NAMESRV_ADDR", server.namesrv)
        ended = rmq_alone("demo", "--json", "--messages", "50")
        assert (ended.code, ended.summary["namesrv"]) == (0, None)
        assert not server.requests


# -- faults


class Once:
    """Does ``then`` to the first send that matches and remembers it; everything else passes."""

    def __init__(self, tags: str, then: Rule) -> None:
        self.tags = tags
        self.then = then
        self.request: RemotingCommand | None = None

    def __call__(self, command: RemotingCommand, frame: Frame) -> Fate | None:
        if (
            command.code != RequestCode.SEND_MESSAGE_V2
            or self.request is not None
            or properties_of(command)["TAGS"] != self.tags
        ):
            return None
        self.request = command
        return self.then(command, frame)

    def property(self, name: str) -> str:
        assert self.request is not None
        return properties_of(self.request)[name]


def forgotten(command: RemotingCommand, frame: Frame) -> Fate:
    """Acknowledged, and never stored."""
    return Fate(answer=acknowledged(command))


def dropped(command: RemotingCommand, frame: Frame) -> Fate:
    return Fate()


def doubled(command: RemotingCommand, frame: Frame) -> Fate:
    return Fate((frame, frame))


def damaged(command: RemotingCommand, frame: Frame) -> Fate:
    body = bytes(frame.body)
    return Fate((Frame(frame.serialize_type, frame.header, body[:40] + b"\xff\x00" + body[42:]),))


@pytest.fixture
def settles_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is lost is waited for 0.3 s, for all else is stored before the last answer; that comes on a busy machine, too."""
    monkeypatch.setattr("rmq_async.cli.demo.SETTLE", 0.3)
    monkeypatch.setattr("rmq_async.cli.demo.TIME_LIMIT", 600.0)


def demo(rmq_alone: Rmq, rule: Rule, *arguments: str) -> tuple[Ended, int]:
    """Returns the run, and how many messages the server still holds of its topic."""
    with in_a_thread(EmbeddedRocketMQ()) as server, in_a_thread(Relay(server, rule)) as relay:
        ended = rmq_alone("demo", *SMALL, "--namesrv", relay.namesrv, *arguments)
        return ended, len(server.messages(ended.summary["topic"]))


@pytest.mark.usefixtures("settles_soon")
@pytest.mark.parametrize("mode", ["single", "async"])
def test_a_lost_acknowledged_message_is_named_and_the_exit_code_is_1(mode: str, rmq_alone: Rmq) -> None:
    once = Once(mode, forgotten)
    ended, held = demo(rmq_alone, once)
    assert ended.code == 1
    assert f"{once.property('KEYS')} (msg_id {once.property('UNIQ_KEY')})" in one_line(ended.err)
    assert {name: record["lost"] for name, record in ended.modes.items() if record["lost"]} == {mode: 1}
    assert held == 1499  # the topic is kept, so that it can be looked at


@pytest.mark.usefixtures("settles_soon")
def test_a_lost_oneway_message_is_counted_and_no_failure_on_a_cluster(rmq_alone: Rmq) -> None:
    ended, _ = demo(rmq_alone, Once("oneway", dropped))
    assert (ended.code, ended.err) == (0, "")
    assert (ended.modes["oneway"]["lost"], ended.modes["oneway"]["stored"]) == (1, 299)


def test_a_message_stored_twice_is_counted_and_no_failure(rmq_alone: Rmq) -> None:
    ended, _ = demo(rmq_alone, Once("awaited", doubled))
    assert (ended.code, ended.err) == (0, "")
    assert (ended.modes["awaited"]["duplicated"], ended.modes["awaited"]["stored"]) == (1, 300)


def test_a_body_changed_on_its_way_is_found(rmq_alone: Rmq) -> None:
    once = Once("awaited", damaged)
    ended, _ = demo(rmq_alone, once)
    assert ended.code == 1
    assert f"1 messages differ from those sent, the first: {once.property('UNIQ_KEY')}" in one_line(ended.err)


@pytest.mark.usefixtures("settles_soon")
def test_refused_sends_are_a_failure_in_one_line(rmq_alone: Rmq) -> None:
    with in_a_thread(EmbeddedRocketMQ()) as server:
        server.fail_next(13, 10_000, request=RequestCode.SEND_MESSAGE_V2)
        ended = rmq_alone("demo", *SMALL, "--namesrv", server.namesrv)
    assert ended.code == 1
    assert "MESSAGE_ILLEGAL" in one_line(ended.err)
    assert (ended.modes["awaited"]["failed"], ended.modes["batch"]["stored"]) == (300, 300)
    assert ended.modes["awaited"]["p50_ms"] is None


def test_no_server_at_the_address_is_one_line(rmq_alone: Rmq) -> None:
    ended = rmq_alone("demo", "--namesrv", "127.0.0.1:1", "--timeout", "1")
    assert (ended.code, ended.out) == (1, "")
    assert "127.0.0.1:1" in one_line(ended.err)


def test_a_request_without_an_answer_is_named_and_not_the_time_limit_of_the_demo(rmq_alone: Rmq) -> None:
    with in_a_thread(EmbeddedRocketMQ()) as server:
        server.lose_answers(1, request=RequestCode.UPDATE_AND_CREATE_TOPIC)
        ended = rmq_alone("demo", "--namesrv", server.namesrv, "--timeout", "0.5")
    assert ended.code == 1
    assert "UPDATE_AND_CREATE_TOPIC" in one_line(ended.err)
    assert "not finished" not in ended.err


def test_a_far_cluster_gets_what_can_be_sent_and_read_back_in_time(rmq_alone: Rmq) -> None:
    with in_a_thread(EmbeddedRocketMQ()) as server:
        server.delay(0.1, broker="broker-a")
        ended = rmq_alone("demo", "--messages", "30000", "--namesrv", server.namesrv)
    assert ended.code == 0, ended.err
    assert "awaited: ended by time after" in ended.out
    assert "nothing lost" in ended.out


async def test_ctrl_c_ends_the_demo_without_a_traceback() -> None:
    process = await start("demo", "--messages", "40000")
    assert process.stdout is not None
    assert b"embedded broker" in await process.stdout.readline()
    await asyncio.sleep(0.1)
    process.send_signal(signal.SIGINT)
    ended = await end(process)
    assert ended.code == 130
    assert ended.err.strip() == "rmq: interrupted"
