"""``rmq consume``: prints and commits, or runs a command whose exit code is the outcome."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rmq_async import Consumer, Message, Producer
from rmq_async.cli import consume as consume_module
from rmq_async.cli.output import Printer
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.constants import ResponseCode

from ..support.waiting import until
from .support import START, Ended, Rmq, end, environment, one_line, rmq, signals, start

REFUSED = """
import asyncio
from rmq_async.cli import main

async def refused(*_, **__):
    raise BlockingIOError(11, "Resource temporarily unavailable")

asyncio.create_subprocess_shell = refused
main()
"""


async def fill(server: EmbeddedRocketMQ, topic: str, bodies: Iterable[bytes], **fields: object) -> None:
    async with Producer("p", namesrv=server.namesrv) as producer:
        for body in bodies:
            await producer.send(Message(topic, body, **fields))  # type: ignore[arg-type]


def committed(server: EmbeddedRocketMQ, group: str, topic: str) -> int:
    """Messages of the topic that the group has committed."""
    return sum(offset for queue, offset in server.progress(group).items() if queue.topic == topic)


async def consume(rmq_here: Rmq, topic: str, *arguments: str) -> Ended:
    return await asyncio.to_thread(rmq_here, "consume", topic, "--group", f"g-{topic}", "--from", "earliest", *arguments)


async def begin(server: EmbeddedRocketMQ, topic: str, *arguments: str) -> asyncio.subprocess.Process:
    return await start("consume", topic, "--group", f"g-{topic}", "--from", "earliest", *arguments, "--namesrv", server.namesrv)


@contextmanager
def piped(server: EmbeddedRocketMQ, topic: str) -> Iterator[subprocess.Popen[bytes]]:
    """A consumer whose output is read by this test only."""
    arguments = [*START, "consume", topic, "--group", f"g-{topic}", "--from", "earliest", "--namesrv", server.namesrv]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as process:
        try:
            yield process
        finally:
            process.kill()


async def line_of(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    return await asyncio.wait_for(process.stdout.readline(), 60)


async def test_what_is_printed_is_committed(server: EmbeddedRocketMQ, rmq_here: Rmq) -> None:
    await fill(server, "Printed", [b"%d" % number for number in range(20)])
    arguments = ("consume", "Printed", "--group", "g-Printed", "--from", "earliest", "--namesrv", server.namesrv)
    ended = await rmq(*arguments, "--count", "15")
    assert (ended.code, one_line(ended.err)) == (0, "rmq: 15 messages: 15 done")
    assert committed(server, "g-Printed", "Printed") == 15
    rest = await consume(rmq_here, "Printed", "--count", "5", "--json")
    assert rest.code == 0
    assert sorted([*map(int, ended.out.split()), *(int(record["body"]) for record in rest.records)]) == [*range(20)]
    assert committed(server, "g-Printed", "Printed") == 20


async def test_json_of_consumed_messages_can_be_sent(server: EmbeddedRocketMQ, rmq_here: Rmq) -> None:
    await fill(server, "Fields", [b"x"], tags="t", keys="k")
    (record,) = (await consume(rmq_here, "Fields", "--count", "1", "--json")).records
    (pulled,) = (await asyncio.to_thread(rmq_here, "pull", "Fields", "--json")).records
    assert record == pulled


async def test_the_exit_code_is_the_outcome(server: EmbeddedRocketMQ, rmq_here: Rmq, tmp_path: Path) -> None:
    await fill(server, "Codes", [b"0", b"65", b"75", b"1"], tags="t", keys=["k1", "k2"], properties={"a": "b\nc"})
    facts = tmp_path / "facts"
    command = f'read -r code; [ "$code" = 0 ] && env | grep -a ^RMQ_ > {facts}; exit "$code"'
    ended = await consume(rmq_here, "Codes", "--count", "4", "--exec", command, "--json", "--concurrency", "2")
    assert ended.code == 0
    assert sorted((each["exit_code"], each["outcome"]) for each in ended.records) == [
        (0, "done"), (1, "retry"), (65, "dead-letter"), (75, "retry"),
    ]  # fmt: skip
    assert ended.records[0].keys() == {
        "topic", "broker", "queue_id", "queue_offset", "msg_id", "attempt", "exit_code", "error", "outcome", "seconds",
    }  # fmt: skip
    assert ended.err.splitlines()[-1] == "rmq: 4 messages: 1 done, 2 to be tried again, 1 dead-lettered"
    assert committed(server, "g-Codes", "Codes") == 4
    assert [each.body for each in server.dead_letters("g-Codes")] == [b"65"]
    assert sorted(each.body for each in server.retries("g-Codes")) == [b"1", b"75"]
    stored = next(each for each in server.messages("Codes") if each.body == b"0")
    found = dict(line.split("=", 1) for line in facts.read_text().splitlines() if "RMQ_REQUIRE_" not in line)
    assert found == {
        "RMQ_TOPIC": "Codes", "RMQ_GROUP": "g-Codes", "RMQ_BROKER": stored.queue.broker_name,
        "RMQ_QUEUE_ID": str(stored.queue.queue_id), "RMQ_QUEUE_OFFSET": "0", "RMQ_MSG_ID": stored.msg_id, "RMQ_TAGS": "t",
        "RMQ_KEYS": "k1 k2", "RMQ_SHARDING_KEY": "", "RMQ_PROPERTIES": '{"a":"b\\nc"}', "RMQ_ATTEMPT": "1",
        "RMQ_BORN_TIME_MS": str(stored.born_time_ms), "RMQ_STORE_TIME_MS": str(stored.store_time_ms),
    }  # fmt: skip


async def test_commands_go_on_when_no_broker_takes_back_what_has_failed(
    server: EmbeddedRocketMQ, rmq_here: Rmq, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slot of the one command at a time is free when the command has ended."""
    monkeypatch.setattr(consume_module, "Consumer", partial(Consumer, handover_timeout=0.5))  # of 10 s, which the stop uses up
    await fill(server, "Refused", [b"75", b"65", b"0", b"0"])
    server.refuse_give_backs(ResponseCode.NO_PERMISSION)
    try:
        ended = await consume(rmq_here, "Refused", "--count", "4", "--exec", 'read -r code; exit "$code"')
    finally:
        server.refuse_give_backs(None)
    assert ended.code == 0
    assert ended.err.splitlines()[-1] == "rmq: 4 messages: 2 done, 1 to be tried again, 1 dead-lettered"
    assert not server.dead_letters("g-Refused")
    assert committed(server, "g-Refused", "Refused") == 2


async def test_a_command_gets_the_body_and_prints(server: EmbeddedRocketMQ) -> None:
    body = bytes(range(256)) * 4000
    await fill(server, "Bodies", [body, b"second\n"])
    arguments = ("consume", "Bodies", "--group", "g-Bodies", "--from", "earliest", "--namesrv", server.namesrv)
    counted = await rmq(*arguments, "--count", "2", "--exec", "wc -c")
    assert sorted(map(int, counted.out.split())) == [7, len(body)]


async def test_last_commits_after_count_have_their_time_beside_other_messages(
    server: EmbeddedRocketMQ, rmq_here: Rmq, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They had 0.6 s where calls had begun beyond --count, and the next run printed the same messages."""
    write = Printer.write

    async def slow(printer: Printer, data: bytes) -> None:
        server.delay(0.8)
        await write(printer, data)

    await fill(server, "Slow", [b"%d" % number for number in range(40)])
    monkeypatch.setattr(Printer, "write", slow)
    try:
        ended = await consume(rmq_here, "Slow", "--count", "5", "--concurrency", "8")
    finally:
        server.delay(0)
    assert (ended.code, one_line(ended.err)) == (0, "rmq: 5 messages: 5 done")
    assert committed(server, "g-Slow", "Slow") == 5


async def test_a_command_that_cannot_be_run_ends_it(server: EmbeddedRocketMQ, rmq_here: Rmq) -> None:
    await fill(server, "Typo", [b"1", b"2", b"3"])
    ended = await consume(rmq_here, "Typo", "--exec", "no-such-command-here")
    assert (ended.code, ended.out) == (1, "")
    assert "exit code 127" in ended.err.splitlines()[-1]
    assert len(server.retries("g-Typo")) == 1
    assert committed(server, "g-Typo", "Typo") == 1


async def test_message_waits_until_a_process_can_be_started(
    server: EmbeddedRocketMQ, rmq_here: Rmq, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No attempt of it is counted."""
    refusals, start_process = iter([errno.EAGAIN, errno.ENOMEM, errno.EMFILE]), asyncio.create_subprocess_shell

    async def refused(*given: object, **options: object) -> object:
        if (number := next(refusals, None)) is not None:
            raise OSError(number, os.strerror(number))
        return await start_process(*given, **options)  # type: ignore[arg-type]

    await fill(server, "Forks", [b"1"])
    monkeypatch.setattr(asyncio, "create_subprocess_shell", refused)
    arguments = ("--group", "g-Forks", "--from", "earliest", "--exec", "true", "--count", "1", "--exec-timeout", "20")
    ended = await asyncio.to_thread(rmq_here, "consume", "Forks", *arguments, "--json")
    assert ended.code == 0
    (outcome,) = ended.records
    assert (outcome["outcome"], outcome["exit_code"], outcome["attempt"]) == ("done", 0, 1)
    (line,) = [line for line in ended.err.splitlines() if "no process" in line]
    assert "no process can be started: [Errno 11] Resource temporarily unavailable; messages wait; raise the limit" in line
    assert server.retries("g-Forks") == []


async def test_message_whose_process_can_never_be_started_has_failed(
    server: EmbeddedRocketMQ, rmq_here: Rmq, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: object, **__: object) -> None:
        raise OSError(errno.E2BIG, "Argument list too long")

    await fill(server, "Forks", [b"1"])
    monkeypatch.setattr(asyncio, "create_subprocess_shell", refused)
    arguments = ("--group", "g-Forks", "--from", "earliest", "--exec", "true", "--count", "1")
    ended = await asyncio.to_thread(rmq_here, "consume", "Forks", *arguments, "--json")
    assert ended.code == 0
    (outcome,) = ended.records
    assert (outcome["outcome"], outcome["exit_code"], outcome["attempt"]) == ("retry", None, 1)
    assert "Argument list too long" in outcome["error"]
    assert "Argument list too long" in ended.err
    assert [each.body for each in server.retries("g-Forks")] == [b"1"]


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOENT, errno.EPERM])
async def test_machine_that_lets_no_process_start_ends_it(
    number: int, server: EmbeddedRocketMQ, rmq_here: Rmq, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As without a shell: each message became a dead letter, and no command had run."""

    async def refused(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    topic = f"Shell{number}"
    await fill(server, topic, [b"1", b"2", b"3"])
    monkeypatch.setattr(asyncio, "create_subprocess_shell", refused)
    ended = await consume(rmq_here, topic, "--exec", "true", "--concurrency", "3")
    assert ended.code == 1
    assert f"no process can be started: [Errno {number}] {os.strerror(number)}; check that /bin/sh" in ended.err
    assert (server.retries(f"g-{topic}"), committed(server, f"g-{topic}", topic)) == ([], 0)


async def test_end_does_not_wait_for_a_process_that_cannot_be_started(server: EmbeddedRocketMQ) -> None:
    await fill(server, "Limit", [b"1"])
    process = await start(
        *("-c", REFUSED), "consume", "Limit", "--group", "g-Limit", "--from", "earliest", "--exec", "true",
        *("--namesrv", server.namesrv), command=[sys.executable],
    )  # fmt: skip
    assert process.stderr is not None
    while b"no process can be started" not in await asyncio.wait_for(process.stderr.readline(), 60):
        pass
    process.send_signal(signal.SIGINT)
    ended = await end(process)
    assert ended.code == 0
    assert (
        ended.err.splitlines()[-1]
        == "rmq: 1 messages: 0 done, 0 to be tried again, 0 dead-lettered, 1 cut off, to be delivered again"
    )
    assert committed(server, "g-Limit", "Limit") == 0


async def test_a_command_that_takes_too_long_is_ended(server: EmbeddedRocketMQ, rmq_here: Rmq) -> None:
    await fill(server, "Long", [b"1"])
    ended = await consume(rmq_here, "Long", "--exec", "sleep 60", "--exec-timeout", "0.3", "--count", "1", "--json")
    assert ended.code == 0
    assert ended.err.splitlines()[-1] == "rmq: 1 messages: 0 done, 1 to be tried again, 0 dead-lettered"
    (outcome,) = ended.records
    assert (outcome["outcome"], outcome["exit_code"]) == ("retry", None)
    assert outcome["error"] == "the command did not end within 0.3 s"
    assert [each.body for each in server.retries("g-Long")] == [b"1"]


async def test_a_command_whose_time_is_over_while_it_starts_is_ended(
    server: EmbeddedRocketMQ, rmq_here: Rmq, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine that takes long to make a process."""
    start, started = asyncio.create_subprocess_shell, list[asyncio.subprocess.Process]()

    async def late(*arguments: Any, **options: Any) -> asyncio.subprocess.Process:
        started.append(await start(*arguments, **options))
        await asyncio.sleep(0.5)
        return started[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_shell", late)
    await fill(server, "Late", [b"1"])
    ended = await consume(rmq_here, "Late", "--exec", "sleep 60", "--exec-timeout", "0.2", "--count", "1", "--json")
    assert (ended.code, [record["outcome"] for record in ended.records]) == (0, ["retry"])
    assert [process.returncode for process in started] == [-signal.SIGTERM]


@pytest.mark.parametrize(("number", "code"), signals(signal.SIGTERM))
async def test_one_signal_drains_a_second_aborts(
    number: signal.Signals, code: int, server: EmbeddedRocketMQ, tmp_path: Path
) -> None:
    topic = f"Drained{code}"
    await fill(server, topic, [b"1", b"2"])
    (tmp_path / "go").mkdir()
    command = f"cat; echo; while [ -d {tmp_path / 'go'} ]; do sleep 0.05; done"
    process = await begin(server, topic, "--exec", command)
    first = await line_of(process)
    process.send_signal(number)
    await asyncio.sleep(0.3)
    assert process.returncode is None
    (tmp_path / "go").rmdir()
    ended = await end(process)
    assert (ended.code, ended.out) == (0, "")
    assert ended.err.splitlines()[-1] == "rmq: 1 messages: 1 done, 0 to be tried again, 0 dead-lettered"
    assert committed(server, f"g-{topic}", topic) == 1

    (tmp_path / "go").mkdir()
    process = await begin(server, topic, "--exec", command)
    assert {first, await line_of(process)} == {b"1\n", b"2\n"}
    process.send_signal(number)
    await asyncio.sleep(0.1)
    process.send_signal(number)
    ended = await end(process)
    assert ended.code == code
    assert "Traceback" not in ended.err
    assert "1 cut off" in ended.err.splitlines()[-1]
    assert committed(server, f"g-{topic}", topic) == 1
    assert server.retries(f"g-{topic}") == []


async def test_a_signal_while_nothing_runs_ends_it(server: EmbeddedRocketMQ) -> None:
    await fill(server, "Quiet", [b"1"])
    process = await begin(server, "Quiet")
    assert await line_of(process) == b"1\n"
    process.send_signal(signal.SIGTERM)
    ended = await end(process)
    assert (ended.code, one_line(ended.err)) == (0, "rmq: 1 messages: 1 done")
    assert committed(server, "g-Quiet", "Quiet") == 1


async def test_a_reader_that_goes_away_ends_it_quietly(server: EmbeddedRocketMQ) -> None:
    await fill(server, "Head", [b"x" * 5000 for _ in range(100)])
    with piped(server, "Head") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert await asyncio.to_thread(process.stdout.readline)
        process.stdout.close()
        assert await asyncio.to_thread(process.wait, 60) == 1
        assert process.stderr.read() == b""
    assert 0 < committed(server, "g-Head", "Head") < 100
    assert server.retries("g-Head") == []


async def test_a_reader_that_stops_reading_blocks_no_signal(server: EmbeddedRocketMQ) -> None:
    await fill(server, "Pager", [b"x" * 5000 for _ in range(100)])
    with piped(server, "Pager") as process:
        await until(lambda: committed(server, "g-Pager", "Pager") > 0)
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            await asyncio.sleep(0.2)
        assert await asyncio.to_thread(process.wait, 60) == 130


async def test_tags_choose_messages(server: EmbeddedRocketMQ, rmq_here: Rmq) -> None:
    await fill(server, "Tags", [b"a1", b"a2"], tags="a")
    await fill(server, "Tags", [b"b1"], tags="b")
    ended = await consume(rmq_here, "Tags", "--tags", "b || c", "--count", "1", "--verbose")
    assert (ended.code, ended.out.splitlines()[1:]) == (0, ["b1"])
    assert "tags=b" in ended.out.splitlines()[0]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (["consume", "T"], "--group"),
        (["consume", "T", "--group", "g", "--from", "7"], "--from 7"),
        (["consume", "T", "--group", "g", "--tags", "a", "--sql", "b = 1"], "--sql"),
        (["consume", "T", "--group", "g", "--verbose", "--json"], "--verbose"),
        (["consume", "T", "--group", "g", "--exec", " "], "--exec is blank"),
        (["consume", "T", "--group", "g", "--exec", "true", "--exec-timeout", "nan"], "--exec-timeout"),
        (["consume", "T", "--group", "g", "--tags", " "], "tags must be"),
        (["consume", "T", "--group", "no spaces"], "no spaces"),
        (["consume", "no spaces", "--group", "g"], "no spaces"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_use_is_one_line_and_code_2(wrong: list[str], says: str, rmq_here: Rmq) -> None:
    ended = rmq_here(*wrong)
    assert (ended.code, ended.out) == (2, ""), ended
    assert says in one_line(ended.err)
