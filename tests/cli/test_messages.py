"""``rmq send``, ``rmq pull`` and ``rmq message``: bytes in, the same bytes out."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from time import time

import pytest

from rmq_async import Message, Producer
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.constants import RequestCode

from .support import START, Rmq, end, environment, one_line, rmq, signals, start


def test_what_is_sent_is_pulled(server: EmbeddedRocketMQ, rmq_here: Rmq) -> None:
    arguments = ("--tags", "t", "--keys", "k1", "--keys", "k2", "--property", "a=b=c", "--queue", "broker-b:1", "--count", "2")
    ended = rmq_here("send", "Sent", "--body", "naïve", *arguments)
    assert (ended.code, ended.err) == (0, "")
    lines = [line.split() for line in ended.out.splitlines()]
    assert [(line[0], *line[2:]) for line in lines] == [("SEND_OK", "broker-b:1", "0"), ("SEND_OK", "broker-b:1", "1")]
    first, second = rmq_here("pull", "Sent", "--json").records
    (stored, _) = server.messages("Sent")
    assert first == {
        "topic": "Sent",
        "broker": "broker-b",
        "queue_id": 1,
        "queue_offset": 0,
        "msg_id": lines[0][1],
        "offset_msg_id": stored.offset_msg_id,
        "tags": "t",
        "keys": ["k1", "k2"],
        "properties": stored.properties,
        "flag": 0,
        "born_time_ms": stored.born_time_ms,
        "store_time_ms": stored.store_time_ms,
        "born_host": stored.born_host,
        "store_host": stored.store_host,
        "reconsume_times": 0,
        "body": "naïve",
    }
    assert first["properties"]["a"] == "b=c"
    assert second["queue_offset"] == 1
    assert rmq_here("pull", "Sent") == (0, "naïve\nnaïve\n", "")
    head, body = rmq_here("pull", "Sent", "--verbose", "--max", "1").out.splitlines()
    assert head.startswith("broker-b:1 0 20")
    assert head.endswith(f" {lines[0][1]} tags=t keys=k1 k2")
    assert body == "naïve"


def test_pull_of_a_topic_without_read_permission(rmq_here: Rmq) -> None:
    assert rmq_here("topic", "create", "Closed", "--perm", "2").code == 0
    ended = rmq_here("pull", "Closed")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("rmq: topic Closed has no readable queue: ")
    for more in ((), ("--follow",)):
        ended = rmq_here("pull", "Closed", "--queue", "broker-a:0", *more)
        assert (ended.code, ended.out) == (1, "")
        assert one_line(ended.err).startswith("rmq: queue 0 of topic Closed on broker broker-a may not be read: ")


def test_json_of_what_was_sent(rmq_here: Rmq) -> None:
    (record,) = rmq_here("send", "Json", "--body", "x", "--sharding-key", "order-1", "--json").records
    assert record.keys() == {
        "status", "msg_id", "offset_msg_id", "topic", "broker", "queue_id", "queue_offset", "recall_handle",
    }  # fmt: skip
    again = rmq_here("send", "Json", "--body", "x", "--sharding-key", "order-1", "--json").records[0]
    assert (again["broker"], again["queue_id"]) == (record["broker"], record["queue_id"])


def test_a_file_of_any_bytes_is_one_message(server: EmbeddedRocketMQ, rmq_here: Rmq, tmp_path: Path) -> None:
    body = bytes(range(256)) * 40
    (tmp_path / "body").write_bytes(body)
    assert rmq_here("send", "File", "--file", str(tmp_path / "body")).code == 0
    assert [message.body for message in server.messages("File")] == [body]
    (record,) = rmq_here("pull", "File", "--json").records
    assert base64.b64decode(record["body_base64"]) == body
    assert "body" not in record


def test_places_to_begin_and_to_end(rmq_here: Rmq) -> None:
    assert rmq_here("topic", "create", "Places", "--queues", "1", "--broker", "broker-a").code == 0
    assert rmq_here("send", "Places", "--body", "0").code == 0
    between = time()
    while time() < between + 0.01:
        pass
    for number in (1, 2, 3):
        assert rmq_here("send", "Places", "--body", str(number), "--tags", "odd" if number % 2 else "even").code == 0
    queue = ("--queue", "broker-a:0")

    def pulled(*arguments: str) -> str:
        ended = rmq_here("pull", "Places", *arguments)
        assert (ended.code, ended.err) == (0, ""), ended.err
        return ended.out.replace("\n", "")

    assert pulled() == "0123"
    assert pulled("--from", "1", "--to", "3", *queue) == "12"
    assert pulled("--max", "2") == "01"
    assert pulled("--tags", "odd || none") == "13"
    assert pulled("--from", "1h") == "0123"
    assert pulled("--from", "latest") == ""
    assert pulled("--to", "1h") == ""
    assert pulled("--from", f"@{between:.3f}") == "123"
    assert pulled("--to", datetime.fromtimestamp(between, UTC).isoformat()) == "0"
    assert pulled("--from", datetime.fromtimestamp(between).isoformat()) == "123"  # local time


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (["pull", "T", "--from", "3"], "needs one --queue"),
        (["pull", "T", "--to", "soon"], "soon"),
        (["pull", "T", "--to", "earliest"], "no message to print"),
        (["pull", "T", "--follow", "--to", "latest"], "--follow"),
        (["pull", "T", "--max", "0"], "--max"),
        (["pull", "T", "--tags", "||"], "tags"),
        (["pull", "T", "--queue", "broker-a"], "BROKER:ID"),
        (["pull", "no spaces"], "no spaces"),
        (["pull", "T", "--group", "no spaces"], "no spaces"),
        (["send", "T"], "--body"),
        (["send", "T", "--body", "x", "-"], "--body"),
        (["send", "T", "x"], "--body"),
        (["send", "T", "-", "--count", "2"], "--count"),
        (["send", "T", "--body", "x", "--delay", "1", "--delay-level", "1"], "--delay"),
        (["send", "T", "--body", "x", "--property", "KEYS=x"], "KEYS"),
        (["send", "T", "--body", ""], "empty"),
        (["send", "T", "--file", "/nothing/there"], "/nothing/there"),
        (["send", "no spaces", "--body", "x"], "no spaces"),
        (["message", "view", "T", " "], "id"),
        (["message", "query", "T", "two keys"], "two keys"),
        (["message", "query", "T", "k", "--begin", "earliest"], "earliest"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_use_is_one_line_and_code_2(wrong: list[str], says: str, rmq_here: Rmq) -> None:
    ended = rmq_here(*wrong)
    assert (ended.code, ended.out) == (2, ""), ended
    assert says in one_line(ended.err)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["pull", "Missing"], "Missing"),
        (["message", "view", "Missing", "x"], "Missing"),
        (["message", "query", "Missing", "x"], "Missing"),
        (["send", "There", "--body", "x", "--queue", "broker-x:0"], "broker-x"),
        (["pull", "There", "--queue", "broker-x:0"], "broker-x"),
        (["message", "view", "There", "no-such-id"], "no-such-id"),
        (["message", "query", "There", "no-such-key"], "no message"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_failure_is_one_line_and_code_1(command: list[str], says: str, rmq_here: Rmq) -> None:
    assert rmq_here("topic", "create", "There", "--queues", "1").code == 0
    ended = rmq_here(*command)
    assert (ended.code, ended.out) == (1, ""), ended
    assert says in one_line(ended.err)


def test_a_queue_that_the_topic_does_not_have(rmq_here: Rmq) -> None:
    assert rmq_here("topic", "create", "Small", "--queues", "1").code == 0
    for command in (["pull", "Small"], ["send", "Small", "--body", "x"]):
        ended = rmq_here(*command, "--queue", "broker-a:9")
        assert ended.code != 0
        assert "9" in one_line(ended.err)


def test_the_first_failure_ends_it(server: EmbeddedRocketMQ, rmq_here: Rmq) -> None:
    server.fail_next(13, request=RequestCode.SEND_MESSAGE_V2)
    ended = rmq_here("send", "Fails", "--body", "x", "--count", "5")
    assert ended.code == 1
    assert "MESSAGE_ILLEGAL" in one_line(ended.err)
    assert len(ended.out.splitlines()) == len(server.messages("Fails")) < 5


def test_messages_by_id_and_by_key(rmq_here: Rmq) -> None:
    (sent,) = rmq_here("send", "Found", "--body", "the\nbody", "--keys", "k1", "--tags", "t", "--json").records
    for msg_id in (sent["msg_id"], sent["offset_msg_id"]):
        (record,) = rmq_here("message", "view", "Found", msg_id, "--json").records
        assert (record["msg_id"], record["body"], record["keys"]) == (sent["msg_id"], "the\nbody", ["k1"])
    assert [each["msg_id"] for each in rmq_here("message", "query", "Found", "k1", "--json").records] == [sent["msg_id"]]
    output = rmq_here("message", "query", "Found", "k1", "--begin", "1h", "--end", f"@{time() + 60:.0f}").out.splitlines()
    assert f"msg_id:         {sent['msg_id']}" in output
    assert output[-3:] == ["body (8 bytes):", "the", "body"]


def test_nothing_follows_a_failure_in_order(server: EmbeddedRocketMQ, rmq_here: Rmq) -> None:
    assert rmq_here("topic", "create", "Stops", "--queues", "1").code == 0
    server.fail_next(13, request=RequestCode.SEND_MESSAGE_V2)
    before = server.requests[310]
    assert rmq_here("send", "Stops", "--body", "x", "--count", "5", "--queue", "broker-a:0").code == 1
    assert (server.messages("Stops"), server.requests[310] - before) == ([], 1)


# -- as processes of their own


async def test_each_line_of_standard_input_is_a_message(server: EmbeddedRocketMQ, tmp_path: Path) -> None:
    lines = [b"line %d" % number for number in range(1000)] + [b"\xff\xfe"]
    (tmp_path / "lines").write_bytes(b"\n".join([*lines[:5], b"", b" ", *lines[5:]]))
    arguments = ("send", "Lines", "-", "--sharding-key", "one", "--namesrv", server.namesrv)
    with (tmp_path / "lines").open("rb") as file:
        ended = await rmq(*arguments, stdin=file)
    assert (ended.code, ended.err) == (0, "")
    assert [message.body for message in server.messages("Lines")] == lines
    assert [int(line.split()[3]) for line in ended.out.splitlines()] == list(range(len(lines)))


async def test_lines_are_sent_as_they_come_and_a_bad_one_is_named(server: EmbeddedRocketMQ) -> None:
    process = await start("send", "Slow", "-", "--namesrv", server.namesrv, stdin=asyncio.subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"first\n")
    assert (await asyncio.wait_for(process.stdout.readline(), 60)).startswith(b"SEND_OK ")
    process.stdin.write(b"x" * (5 << 20))
    ended = await end(process)
    assert ended.code == 1
    assert "line 2" in one_line(ended.err)


@pytest.mark.parametrize(("number", "code"), signals(signal.SIGINT))
async def test_following_goes_on_until_a_signal(
    number: signal.Signals, code: int, server: EmbeddedRocketMQ, rmq_here: Rmq
) -> None:
    topic = f"Followed{code}"
    await asyncio.to_thread(rmq_here, "send", topic, "--body", "x")
    process = await start("pull", topic, "--follow", "--namesrv", server.namesrv)
    assert process.stdout is not None
    assert await asyncio.wait_for(process.stdout.readline(), 60) == b"x\n"
    await asyncio.to_thread(rmq_here, "send", topic, "--body", "y")
    assert await asyncio.wait_for(process.stdout.readline(), 60) == b"y\n"
    process.send_signal(number)
    ended = await end(process)
    assert (ended.code, ended.out, ended.err) == (code, "", "rmq: 2 messages\n")


async def test_a_second_signal_ends_it_at_once(rmq_here: Rmq) -> None:
    async with EmbeddedRocketMQ() as server:
        async with Producer("p", namesrv=server.namesrv) as producer:
            await producer.send(Message("Twice", b"x"))
        process = await start("pull", "Twice", "--follow", "--namesrv", server.namesrv, "--timeout", "600")
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), 60) == b"x\n"
        server.stall()  # the command's stop waits for its answers
        process.send_signal(signal.SIGINT)
        await asyncio.sleep(0.2)  # two signals at once are one
        process.send_signal(signal.SIGINT)
        ended = await end(process)
        assert (ended.code, ended.err) == (130, "")
        server.resume()


async def test_ctrl_c_ends_waiting_for_a_line(server: EmbeddedRocketMQ) -> None:
    process = await start("send", "Waiting", "-", "--namesrv", server.namesrv, stdin=asyncio.subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"x\n")
    assert await asyncio.wait_for(process.stdout.readline(), 60)
    process.send_signal(signal.SIGINT)
    assert await asyncio.wait_for(process.wait(), 60) == 130
    assert process.stderr is not None
    assert one_line((await process.stderr.read()).decode()) == "rmq: interrupted"


@pytest.mark.parametrize("arguments", [("--follow", "--json"), pytest.param((), marks=pytest.mark.deep)])
async def test_a_reader_that_goes_away_ends_it_quietly(
    arguments: tuple[str, ...], server: EmbeddedRocketMQ, rmq_here: Rmq
) -> None:
    await asyncio.to_thread(rmq_here, "send", "Head", "--body", "x" * 1000, "--count", "300")
    process = await start("pull", "Head", *arguments, "--namesrv", server.namesrv)
    assert process.stdout is not None
    assert await asyncio.wait_for(process.stdout.readline(), 60)
    process.stdout._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001
    assert await asyncio.wait_for(process.wait(), 60) == 1
    assert process.stderr is not None
    assert await process.stderr.read() == b""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize(
    "arguments",
    [
        ("pull", "Full", "--json"),
        *(pytest.param(each, marks=pytest.mark.deep) for each in (("send", "Full", "--body", "x"), ("topic", "list"))),
    ],
)
async def test_a_full_disk_is_one_line_and_code_1(arguments: tuple[str, ...], server: EmbeddedRocketMQ, rmq_here: Rmq) -> None:
    await asyncio.to_thread(rmq_here, "send", "Full", "--body", "x")
    with Path("/dev/full").open("wb") as full:
        process = await asyncio.create_subprocess_exec(
            *(*START, *arguments, "--namesrv", server.namesrv), stdout=full, stderr=asyncio.subprocess.PIPE, env=environment()
        )
    _, err = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, one_line(err.decode())) == (1, "rmq: [Errno 28] No space left on device")


@pytest.mark.parametrize("corrected", [False, True])
async def test_messages_that_are_deleted_before_they_are_pulled_are_named(corrected: bool, server: EmbeddedRocketMQ) -> None:
    topic = f"Deleted{corrected}"
    async with Producer("p", namesrv=server.namesrv) as producer:
        queue = (await producer.send(Message(topic, b"0"))).queue
        for _ in range(40):
            await producer.send_batch([Message(topic, b"x" * 5000) for _ in range(50)], queue=queue)
    process = await start("pull", topic, "--namesrv", server.namesrv)
    assert process.stdout is not None
    await asyncio.wait_for(process.stdout.readline(), 60)
    server.expire(queue, 1900, corrected=corrected)  # it waits for its reader
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, 101 <= out.count(b"\n") < 1900) == (0, True)
    *_, last = lines = err.decode().splitlines()
    assert f"to 1899 of MessageQueue(topic='{topic}'" in last
    assert all(line.startswith("rmq: offsets ") and "were deleted before they were read" in line for line in lines)


@pytest.mark.parametrize("closed", [pytest.param(">&-", marks=pytest.mark.deep), ">&- 2>&- <&-"])
async def test_closed_standard_files_do_not_matter(closed: str, server: EmbeddedRocketMQ) -> None:
    line = f'exec "{sys.executable}" -W error -m rmq_async.cli send Closed --body x --namesrv {server.namesrv} {closed}'
    before = len(server.messages("Closed"))
    process = await asyncio.create_subprocess_exec("sh", "-c", line, stderr=asyncio.subprocess.PIPE, env=dict(os.environ))
    _, err = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, err) == (0, b"")
    assert len(server.messages("Closed")) == before + 1
