"""``rmq top``: the figures, and the view in a terminal."""

from __future__ import annotations

import asyncio
import io
import shutil
import signal
import subprocess
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from rmq_async import Admin, Consumer, Message, MessageExt, MessageQueue, Producer
from rmq_async.admin import BrokerOverview, GroupLag, GroupOverview, Overview, QueueLag, QueueStats
from rmq_async.cli.top.controls import Controls, keys_of
from rmq_async.cli.top.figures import Watch
from rmq_async.cli.top.view import whole as whole_view
from rmq_async.embedded import EmbeddedRocketMQ

from ..support.waiting import until
from .support import START, Rmq, end, environment, one_line, signals, start
from .terminal import Terminal


@asynccontextmanager
async def busy(brokers: int = 2) -> AsyncIterator[EmbeddedRocketMQ]:
    """A cluster on which "orders" is sent to and read by "billing", and "audit" is behind in "mail" without a member."""
    async with (
        EmbeddedRocketMQ(brokers=brokers) as server,
        Admin(namesrv=server.namesrv) as admin,
        Producer("p", namesrv=server.namesrv) as producer,
    ):
        for topic in ("orders", "mail", "idle"):
            await admin.create_topic(topic, queues=2)
        consumer = Consumer("billing", namesrv=server.namesrv, start_from="earliest", commit_interval=0.1)

        @consumer.handler("orders")
        async def handle(_: MessageExt) -> None: ...

        for _ in range(7):
            await producer.send(Message("mail", b"x"))
        async with Consumer("audit", namesrv=server.namesrv, topics="mail", start_from="earliest"):
            pass  # its positions are stored
        sending = asyncio.create_task(_send(producer))
        try:
            async with consumer:
                yield server
        finally:
            sending.cancel()
            await asyncio.wait([sending])


async def _send(producer: Producer) -> None:
    for _ in count():
        await producer.send(Message("orders", b"x"))
        await asyncio.sleep(0.02)


def queue(topic: str, number: int, broker: str = "a") -> MessageQueue:
    return MessageQueue(topic, broker, number)


def seen(stored: dict[MessageQueue, int], committed: dict[MessageQueue, int], *, brokers: str = "ab") -> Overview:
    """An overview of group "g", whose oldest message is of 1 s after the epoch."""
    topics: dict[str, dict[MessageQueue, QueueStats]] = {}
    for each, offset in stored.items():
        topics.setdefault(each.topic, {})[each] = QueueStats(0, offset, 0)
    lags = {each: QueueLag(offset, stored.get(each, offset), 0, 0) for each, offset in committed.items()}
    return Overview(
        {name: BrokerOverview(name, "c", f"{name}:1", problem=None if name in brokers else "no answer") for name in "ab"},
        topics,
        {"g": GroupOverview(GroupLag(lags, {}), ("m",), 1000, oldest_age=6.0)},
    )


def test_rates_are_those_of_queues_that_both_overviews_have() -> None:
    watch = Watch()
    a, b, new = queue("T", 0), queue("T", 0, "b"), queue("T", 1)
    first = watch.figures(seen({a: 10, b: 10}, {a: 5, b: 5}), 100.0, 5000)
    assert (first.seconds, first.topics[0].in_rate, first.groups[0].rate, first.brokers[0].in_rate) == (None, None, None, None)
    second = watch.figures(seen({a: 30, new: 1000}, {a: 9, new: 7}, brokers="a"), 102.0, 7000)
    (topic,), (group,), (up, away) = second.topics, second.groups, second.brokers
    assert (topic.in_rate, topic.out_rate, topic.messages, topic.queues, topic.groups) == (10.0, 2.0, 1030, 2, 1)
    assert (group.lag, group.rate, group.members, group.oldest) == (21 + 993, 2.0, 1, 6.0)
    assert (up.state, up.in_rate, up.out_rate) == ("up", 10.0, 2.0)
    assert (away.state, away.problem, away.in_rate) == ("away", "no answer", None)
    third = watch.figures(seen({a: 0, new: 1000, b: 10}, {a: 0, new: 7, b: 5}), 104.0, 9000)
    assert (third.topics[0].in_rate, third.groups[0].rate, third.brokers[1].in_rate) == (0.0, 0.0, None)


def test_a_broker_that_name_servers_have_forgotten_is_away() -> None:
    watch, found = Watch(), seen({}, {})
    watch.figures(found, 1.0, 1)
    figures = watch.figures(Overview({"a": found.brokers["a"]}, {}, {}), 2.0, 2)
    assert [(each.broker, each.state) for each in figures.brokers] == [("a", "up"), ("b", "away")]
    assert figures.away == ("b",)


def test_what_a_busy_broker_does_not_say_is_unknown() -> None:
    watch, whole = Watch(), seen({queue("T", 0): 10, queue("T", 0, "b"): 10}, {queue("T", 0): 5, queue("T", 0, "b"): 5})
    part = seen({queue("T", 0): 20}, {queue("T", 0): 8})
    group = msgspec.structs.replace(part.groups["g"], lag_unknown=("b",))
    part = msgspec.structs.replace(part, groups={"g": group}, topics_unknown={"T": ("b",)})
    watch.figures(whole, 100.0, 5000)
    for found in (watch.figures(part, 102.0, 7000), watch.figures(whole, 104.0, 9000)):
        (topic,), (row,), (a, b) = found.topics, found.groups, found.brokers
        assert (topic.in_rate, topic.out_rate, row.rate) == (None, None, None)
        assert (b.in_rate, b.out_rate, b.state, a.in_rate is None) == (None, None, "up", False)
        known = found.time_ms == 9000
        assert (topic.messages, topic.queues, row.lag, row.retries) == ((20, 2, 10, 0) if known else (None, None, None, None))
        console = Console(width=160, record=True, file=io.StringIO())
        console.print(whole_view(found, Controls()))
        assert ("?" in console.export_text()) is not known
    again = watch.figures(whole, 106.0, 11000)
    assert (again.topics[0].in_rate, again.groups[0].rate) == (0.0, 0.0)


def test_a_filter_shows_groups_of_its_topics() -> None:
    found = seen({queue("orders", 0): 1}, {queue("orders", 0): 0})
    for text, shown in (
        ("ORD", 1),
        ("g", 1),
        ("or*", 1),
        ("OR*", 0),
        ("x", 0),
        ("", 1),
        ("!", 0),
        ("!o", 0),
        ("[o]", 0),
        ("]", 0),
        ("-", 0),
    ):
        figures = Watch().figures(found, 1.0, 1, Controls(filter=text).patterns)
        assert len(figures.groups) == shown, text


def test_keys_change_what_is_shown() -> None:
    controls = Controls()

    def press(keys: str) -> None:
        for key in keys_of(keys):
            controls.press(key)

    press("\ts\x1b[B\x1b[6~k")
    assert (controls.focus, controls.orders["groups"].column, controls.scrolled["groups"]) == ("groups", "rate", 10)
    press("r/qx\x7fé\x1b[A\r")
    assert (controls.orders["groups"].reverse, controls.filter, controls.ended) == (True, "qé", False)
    press("/abc\x1b")
    assert (controls.filter, controls.typing) == ("qé", None)
    press("\x1b")
    assert controls.filter == ""
    press("\t\t\tq")
    assert (controls.focus, controls.ended) == ("groups", True)
    controls.sort_by("name")
    controls.sort_by("in")
    assert [controls.orders[table].column for table in ("topics", "groups", "brokers")] == ["in", "group", "in"]


async def test_once_prints_figures_for_scripts(rmq_alone: Rmq) -> None:
    async with busy() as server:
        there = ("top", "--once", "--namesrv", server.namesrv)
        ended = await asyncio.to_thread(rmq_alone, *there, "--json", "--interval", "0.5")
        (record,) = ended.records
        topics = {each["topic"]: each for each in record["topics"]}
        groups = {each["group"]: each for each in record["groups"]}
        assert (ended.code, ended.err) == (0, "")
        assert topics.keys() == {"orders", "mail", "idle"}
        assert topics["orders"]["in_rate"] > 0
        assert topics["orders"]["out_rate"] == pytest.approx(groups["billing"]["rate"])
        assert groups["billing"]["rate"] > 0
        assert (topics["idle"]["in_rate"], topics["mail"]["messages"], topics["mail"]["groups"]) == (0.0, 7, 1)
        assert (groups["audit"]["lag"], groups["audit"]["members"], groups["billing"]["members"]) == (7, 0, 1)
        assert groups["audit"]["oldest"] > 0
        assert [(each["broker"], each["state"]) for each in record["brokers"]] == [("broker-a", "up"), ("broker-b", "up")]
        server.stall("broker-b")
        arguments = ("--timeout", "0.5", "--sort", "name", "--filter", "mail", "--interval", "0.2")
        ended = await asyncio.to_thread(rmq_alone, *there, *arguments)
        assert ended.code == 0
        assert "without broker-b, away" in ended.out
        assert [line.split()[:2] for line in ended.out.splitlines() if line.startswith("broker-")] == [
            ["broker-a", "up"], ["broker-b", "away"],
        ]  # fmt: skip
        assert "orders" not in ended.out
        server.resume("broker-b")


async def test_the_view_in_a_terminal() -> None:
    async with (
        busy(3) as server,
        Terminal("top", "--interval", "0.3", "--timeout", "0.5", "--namesrv", server.namesrv) as terminal,
    ):
        await until(lambda: [row[:2] for row in terminal.table("Topics")][1:] == [["idle", "0"], ["mail", "0"]])
        assert terminal.table("Topics")[0][0] == "orders"
        await until(lambda: [row[0] for row in terminal.table("Groups")] == ["audit", "billing"])
        assert [row[:2] for row in terminal.table("Brokers")] == [[f"broker-{name}", "up"] for name in "abc"]
        terminal.press("\tss")  # groups by members
        await until(lambda: [row[0] for row in terminal.table("Groups")] == ["billing", "audit"])
        terminal.press("/aud")
        await until(lambda: "filter: aud_" in terminal.text)
        terminal.press("\r")
        await until(lambda: [row[0] for row in terminal.table("Groups")] == ["audit"])
        terminal.press("\x1b")
        await until(lambda: len(terminal.table("Groups")) == 2)
        server.stall("broker-c")
        await until(lambda: ["broker-c", "away"] in [row[:2] for row in terminal.table("Brokers")])
        assert "without broker-c, away" in terminal.text
        server.resume("broker-c")
        await until(lambda: ["broker-c", "up"] in [row[:2] for row in terminal.table("Brokers")])
        terminal.resize(80, 15)
        await until(lambda: "1 to 2 of 3" in terminal.text)
        terminal.press("\t\tj")  # round to the topics, and a row down
        await until(lambda: "2 to 3 of 3" in terminal.text)
        terminal.press("q")
        assert await terminal.ended() == 0
        assert terminal.settings_now() == terminal.settings
        assert b"\x1b[?1049l" in terminal.sent


@pytest.mark.parametrize(("number", "code"), signals(signal.SIGINT))
async def test_a_signal_restores_the_terminal(number: signal.Signals, code: int, server: EmbeddedRocketMQ) -> None:
    async with Terminal("top", "--namesrv", server.namesrv) as terminal:
        await until(lambda: "Brokers" in terminal.text)
        assert terminal.process is not None
        terminal.process.send_signal(number)
        assert await terminal.ended() == code
        assert terminal.settings_now() == terminal.settings
        assert terminal.blocking
        assert b"\x1b[?1049l" in terminal.sent
        assert b"Traceback" not in terminal.sent


async def test_a_second_signal_ends_the_view_at_once_and_restores_the_terminal() -> None:
    async with (
        EmbeddedRocketMQ() as server,
        Terminal("top", "--timeout", "30", "--interval", "0.2", "--namesrv", server.namesrv) as terminal,
    ):
        await until(lambda: "broker-a" in terminal.text)
        process = terminal.process
        assert process is not None
        terminal.hold()
        await until(lambda: Path(f"/proc/{process.pid}/wchan").read_text() == "wait_woken")  # for the terminal
        process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.2)
        assert process.returncode is None
        process.send_signal(signal.SIGTERM)
        assert await terminal.ended() == 143
        assert terminal.settings_now() == terminal.settings


async def test_it_ends_with_its_terminal(server: EmbeddedRocketMQ) -> None:
    async with Terminal("top", "--interval", "0.2", "--namesrv", server.namesrv) as terminal:
        await until(lambda: "Brokers" in terminal.text)
        terminal.vanish()
        assert await terminal.ended() == 129


async def test_name_servers_that_are_away_leave_the_last_figures() -> None:
    async with (
        EmbeddedRocketMQ() as server,
        Terminal("top", "--interval", "0.3", "--timeout", "0.5", "--namesrv", server.namesrv) as terminal,
    ):
        await until(lambda: "broker-a" in terminal.text)
        await server.stop()
        await until(lambda: "name server" in terminal.lines[0])
        assert terminal.table("Brokers")[0][0] == "broker-a"
        terminal.press("q")
        assert await terminal.ended() == 0


async def test_figures_go_to_a_pipe_until_a_signal(server: EmbeddedRocketMQ) -> None:
    process = await start("top", "--json", "--interval", "0.2", "--namesrv", server.namesrv)
    assert process.stdout is not None
    for _ in range(2):
        assert b'"brokers":[{' in await asyncio.wait_for(process.stdout.readline(), 60)
    process.send_signal(signal.SIGTERM)
    assert (await end(process)).code == 143


def test_a_cluster_that_is_away_is_one_line(rmq_alone: Rmq) -> None:
    ended = rmq_alone("top", "--once", "--namesrv", "127.0.0.1:1", "--timeout", "0.5")
    assert (ended.code, ended.out) == (1, "")
    assert "127.0.0.1:1" in one_line(ended.err)


@pytest.mark.skipif(shutil.which("tmux") is None, reason="the same is tried in a terminal that pyte keeps")
async def test_the_view_in_tmux(server: EmbeddedRocketMQ) -> None:
    name = f"rmq-{uuid.uuid4().hex[:8]}"

    def tmux(*arguments: str) -> str:
        command = ["tmux", "-L", name, *arguments]
        return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=True).stdout

    tmux("new-session", "-d", "-x", "100", "-y", "24", *START, "top", "--interval", "0.3", "--namesrv", server.namesrv)
    try:
        await until(lambda: all(text in tmux("capture-pane", "-p") for text in ("broker-b  up", "q quit")))
        tmux("send-keys", "q")
        await until(lambda: subprocess.run(["tmux", "-L", name, "ls"], capture_output=True, check=False).returncode != 0)
    finally:
        subprocess.run(["tmux", "-L", name, "kill-server"], capture_output=True, check=False)
