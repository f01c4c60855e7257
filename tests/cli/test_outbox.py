"""``rmq outbox``: the relay as a process, and its table looked after from outside."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from rmq_async import Message, Producer
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.outbox import Outbox

from ..postgres import postgres
from .support import Rmq, end, environment, one_line, rmq, start

NOWHERE = "127.0.0.1:1"
TOO_LARGE = 4 * 1024 * 1024 + 1
"""Bytes that a relay refuses for good."""


class Table:
    """The outbox of a service that does not run."""

    def __init__(self, url: str, name: str = "rmq_outbox") -> None:
        self.url = url.replace("+aiosqlite", "").replace("+asyncpg", "")
        self.name = name
        self._url = url

    async def add(self, *messages: Message) -> list[int]:
        engine = create_async_engine(self._url, poolclass=NullPool)
        producer = Producer("service", namesrv=NOWHERE, max_message_size=2 * TOO_LARGE)
        outbox = Outbox(engine, producer, table=self.name)
        await outbox.create_table()
        async with engine.begin() as connection:
            return [await outbox.add(connection, message) for message in messages]

    async def execute(self, statement: str) -> None:
        engine = create_async_engine(self._url, poolclass=NullPool)
        async with engine.begin() as connection:
            await connection.execute(text(statement))

    async def fail(self, row: int, attempts: int = 1) -> None:
        values = f"state = 'FAILED', attempts = {attempts}, last_error = 'refused'"
        await self.execute(f"UPDATE {self.name} SET {values} WHERE id = {row}")

    async def states(self) -> list[tuple[str, Any]]:
        """State and owner of each row."""
        engine = create_async_engine(self._url, poolclass=NullPool)
        async with engine.connect() as connection:
            found = await connection.execute(text(f"SELECT state, owner FROM {self.name} ORDER BY id"))
            return [(row.state, row.owner) for row in found]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(f"sqlite+aiosqlite:///{tmp_path}/service.db")


@pytest.fixture
def rmq_outbox(table: Table, rmq_here: Rmq) -> Rmq:
    """Runs a command of the group in this process, on ``table``."""
    return lambda *arguments: rmq_here("outbox", *arguments, "--database", table.url)


def some(count: int, **settings: Any) -> list[Message]:
    return [Message("T", b"%d" % number, **settings) for number in range(count)]


def bodies(server: EmbeddedRocketMQ) -> list[bytes]:
    return sorted(message.body for message in server.messages("T"))


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.05)


@asynccontextmanager
async def relay(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A relay that is there until the test ends it, and no longer than the test."""
    process = await start("outbox", "relay", *arguments)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def line_with(stream: asyncio.StreamReader | None, name: str) -> dict[str, Any]:
    """The first JSON line that has this field."""
    assert stream is not None
    async with asyncio.timeout(10):
        while True:
            record: dict[str, Any] = json.loads(await stream.readline())
            if name in record:
                return record


class TestStatus:
    def test_it_counts_for_people_and_for_programs(self, table: Table, rmq_outbox: Rmq) -> None:
        asyncio.run(table.add(*some(3)))
        asyncio.run(table.fail(1))
        ended = rmq_outbox("status", "--json")
        assert (ended.code, ended.err) == (0, "")
        (record,) = ended.records
        assert 0.0 < record.pop("oldest_age") < 60.0
        assert record == {"pending": 2, "sent": 0, "failed": 1}

        ended = rmq_outbox("status")
        assert (ended.code, ended.err) == (0, "")
        heading, values = ended.out.splitlines()
        assert heading.split() == ["pending", "oldest", "sent", "failed"]
        assert (values.split()[0], *values.split()[2:]) == ("2", "s", "0", "1")

    def test_an_old_message_is_exit_code_1_where_that_is_asked_for(self, table: Table, rmq_outbox: Rmq) -> None:
        asyncio.run(table.add())
        assert rmq_outbox("status", "--fail-above", "0").code == 0
        asyncio.run(table.add(Message("T", b"x")))
        assert rmq_outbox("status", "--fail-above", "3600").code == 0
        asyncio.run(table.execute(f"UPDATE {table.name} SET created = datetime('now', '-2 hours')"))
        ended = rmq_outbox("status", "--fail-above", "3600", "--json")
        assert (ended.code, ended.records[0]["pending"]) == (1, 1)
        assert "the limit is 3600 s" in one_line(ended.err)
        assert rmq_outbox("status").code == 0

    def test_the_table_may_have_another_name(self, table: Table, rmq_here: Rmq) -> None:
        other = Table(table._url, "letters")
        asyncio.run(other.add(*some(2)))
        ended = rmq_here("outbox", "status", "--database", other.url, "--table", "letters", "--json")
        assert ended.records[0]["pending"] == 2


class TestRetry:
    def test_rows_with_these_ids_are_due_again(self, table: Table, rmq_outbox: Rmq) -> None:
        asyncio.run(table.add(*some(3)))
        asyncio.run(table.fail(1))
        asyncio.run(table.fail(2))
        ended = rmq_outbox("retry", "2", "2")
        assert (ended.code, ended.out, ended.err) == (0, "1 due again\n", "")
        assert asyncio.run(table.states()) == [("FAILED", None), ("PENDING", None), ("PENDING", None)]

    def test_all_that_failed_are_due_again(self, table: Table, rmq_outbox: Rmq) -> None:
        asyncio.run(table.add(*some(3)))
        asyncio.run(table.fail(1))
        asyncio.run(table.fail(3))
        assert rmq_outbox("retry", "--all-failed", "--json").records == [{"retried": 2}]
        assert rmq_outbox("retry", "--all-failed", "--json").records == [{"retried": 0}]

    def test_an_id_that_is_not_there_is_exit_code_1(self, table: Table, rmq_outbox: Rmq) -> None:
        asyncio.run(table.add(Message("T", b"x")))
        ended = rmq_outbox("retry", "1", "17", "--json")
        assert (ended.code, ended.records) == (1, [{"retried": 1}])
        assert "1 of 2" in one_line(ended.err)


class TestPurge:
    def test_what_was_sent_long_ago_is_deleted(self, table: Table, rmq_outbox: Rmq) -> None:
        asyncio.run(table.add(*some(4)))
        asyncio.run(table.execute(f"UPDATE {table.name} SET state = 'SENT' WHERE id <= 3"))
        asyncio.run(table.execute(f"UPDATE {table.name} SET updated = datetime('now', '-3 hours') WHERE id <= 2"))
        asyncio.run(table.execute(f"UPDATE {table.name} SET updated = datetime('now', '-8 days') WHERE id = 1"))
        for age, count in (("9d", 0), ("7d", 1), ("90m", 1)):
            assert rmq_outbox("purge", "--older-than", age, "--json").records == [{"purged": count}]
        ended = rmq_outbox("purge", "--older-than", "0s")
        assert (ended.code, ended.out, ended.err) == (0, "1 deleted\n", "")
        assert asyncio.run(table.states()) == [("PENDING", None)]

    def test_what_failed_is_deleted_only_where_that_is_asked_for(self, table: Table, rmq_outbox: Rmq) -> None:
        asyncio.run(table.add(*some(2)))
        asyncio.run(table.fail(1))
        assert rmq_outbox("purge", "--older-than", "0s", "--json").records == [{"purged": 0}]
        assert rmq_outbox("purge", "--older-than", "0s", "--failed", "--json").records == [{"purged": 1}]
        assert asyncio.run(table.states()) == [("PENDING", None)]


class TestDrain:
    async def test_it_sends_all_and_ends(self, table: Table) -> None:
        await table.add(*some(600))
        async with EmbeddedRocketMQ() as server:
            ended = await rmq(
                "outbox", "relay", "--drain", "--json", "--namesrv", server.namesrv, "--database", table.url,
                "--poll-interval", "0.1", "--every", "0.05",
            )  # fmt: skip
            assert ended.code == 0, ended.err
            assert len(server.messages("T")) == 600
        *progress, last = ended.records
        assert progress
        for record in progress:
            assert set(record) == {"sent", "rate", "pending", "oldest_age", "failed"}
        sent = [record["sent"] for record in progress]
        assert sent == sorted(sent)
        total = last["total"]
        assert (total["sent"], total["pending"], total["failed"], total["oldest_age"]) == (600, 0, 0, 0.0)
        assert total["rate"] == pytest.approx(600 / total["seconds"], rel=0.1)
        assert await table.states() == [("SENT", None)] * 600

    async def test_people_read_progress_on_stderr_and_the_totals_on_stdout(self, table: Table) -> None:
        await table.add(*some(3))
        async with EmbeddedRocketMQ() as server:
            ended = await rmq("outbox", "relay", "--drain", "--namesrv", server.namesrv, "--database", table.url)
        assert ended.code == 0
        assert one_line(ended.out).startswith("3 messages sent in ")
        assert one_line(ended.out).endswith(", 0 pending, 0 failed")
        assert "messages/s" in ended.err

    async def test_what_failed_meanwhile_is_exit_code_1_and_so_is_what_is_left_behind_it(self, table: Table) -> None:
        await table.add(
            Message("T", b"x" * TOO_LARGE, sharding_key="order-1"),
            *some(2, sharding_key="order-1"),
            Message("T", b"free", sharding_key="order-2"),
        )
        async with EmbeddedRocketMQ() as server:
            ended = await rmq(
                "outbox", "relay", "--drain", "--json", "--namesrv", server.namesrv, "--database", table.url,
                "--poll-interval", "0.1",
            )  # fmt: skip
            assert bodies(server) == [b"free"]
        assert ended.code == 1
        total = ended.records[-1]["total"]
        assert (total["sent"], total["pending"], total["failed"]) == (1, 2, 1)
        assert "rmq: outbox: 1 message failed for good\n" in ended.err
        assert "rmq: outbox: 2 messages left behind one of the same sharding key" in ended.err

    async def test_what_failed_before_and_holds_nothing_up_is_no_failure(self, table: Table) -> None:
        await table.add(*some(2))
        await table.fail(1)
        async with EmbeddedRocketMQ() as server:
            ended = await rmq("outbox", "relay", "--drain", "--json", "--namesrv", server.namesrv, "--database", table.url)
        assert ended.code == 0, ended.err
        assert (ended.records[-1]["total"]["sent"], ended.records[-1]["total"]["failed"]) == (1, 1)

    async def test_a_message_that_waits_for_another_attempt_is_waited_for(self, table: Table) -> None:
        await table.add(*some(1))
        await table.execute(f"UPDATE {table.name} SET attempts = 1, next_attempt = datetime('now', '+2 seconds')")
        async with EmbeddedRocketMQ() as server:
            ended = await rmq(
                "outbox", "relay", "--drain", "--json", "--namesrv", server.namesrv, "--database", table.url,
                "--poll-interval", "0.1",
            )  # fmt: skip
        assert (ended.code, ended.records[-1]["total"]["sent"]) == (0, 1), ended.err

    async def test_a_signal_before_it_is_done_is_exit_code_1(self, table: Table) -> None:
        await table.add(*some(2))
        async with relay("--drain", "--json", "--namesrv", NOWHERE, "--database", table.url) as process:
            await line_with(process.stdout, "pending")
            process.terminate()
            ended = await end(process, 10)
        assert (ended.code, ended.records[-1]["total"]["pending"]) == (1, 2)
        assert "ended before all was sent" in ended.err


class TestRelay:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    async def test_it_sends_until_a_signal_and_gives_back_what_is_not_begun(self, number: signal.Signals, table: Table) -> None:
        """Of a key one message is under way, for brokers do not answer; the others wait behind it."""
        await table.add(Message("T", b"first"))
        given = ("--database", table.url, "--poll-interval", "0.1", "--timeout", "1", "--every", "0.2", "--json")

        async def first_is_sent() -> bool:
            return await table.states() == [("SENT", None)]

        async def others_are_taken() -> bool:
            return "SENDING" in {state for state, _ in await table.states()}

        async with EmbeddedRocketMQ() as server, relay("--namesrv", server.namesrv, *given) as process:
            await until(first_is_sent)
            server.stall("broker-a")
            await table.add(*some(3, sharding_key="order-1"))
            await until(others_are_taken)
            began = monotonic()
            process.send_signal(number)
            ended = await end(process, 10)
            assert monotonic() - began < 4
            server.resume("broker-a")
        assert ended.code == 0, ended.err
        assert ended.records[-1]["total"]["sent"] == 1
        assert await table.states() == [("SENT", None), *[("PENDING", None)] * 3]

    async def test_it_may_be_started_before_the_cluster(self, table: Table) -> None:
        await table.add(*some(5))
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        given = ("--drain", "--json", "--database", table.url, "--poll-interval", "0.1")
        async with relay("--namesrv", f"127.0.0.1:{port}", *given) as process:
            assert (await line_with(process.stdout, "pending"))["pending"] == 5
            async with EmbeddedRocketMQ(port=port) as server:
                ended = await end(process, 20)
                assert len(server.messages("T")) == 5
        assert ended.code == 0, ended.err

    async def test_it_ends_at_once_while_the_cluster_is_away(self, table: Table) -> None:
        await table.add(*some(2))
        async with relay("--json", "--namesrv", NOWHERE, "--database", table.url) as process:
            await line_with(process.stdout, "pending")
            began = monotonic()
            process.terminate()
            ended = await end(process, 10)
        assert monotonic() - began < 2
        assert ended.code == 0, ended.err
        assert (ended.records[-1]["total"]["sent"], ended.records[-1]["total"]["pending"]) == (0, 2)

    async def test_a_stuck_message_is_a_line(self, table: Table) -> None:
        (row,) = await table.add(Message("T", b"x", keys=["order-17"]))
        given = ("--namesrv", NOWHERE, "--database", table.url, "--stuck-after", "0.1")
        async with relay(*given, "--json") as process:
            stuck = (await line_with(process.stdout, "stuck"))["stuck"]
            process.terminate()
            assert (await end(process, 10)).code == 0
        assert set(stuck) == {"id", "topic", "keys", "age", "attempts", "last_error", "state", "unique_id"}
        assert (stuck["id"], stuck["topic"], stuck["keys"], stuck["state"]) == (row, "T", ["order-17"], "PENDING")
        assert stuck["age"] >= 0.1

        await table.execute(f"UPDATE {table.name} SET alerted = NULL")
        async with relay(*given) as process:
            assert process.stderr is not None
            async with asyncio.timeout(10):
                while b"outbox: row" not in (line := await process.stderr.readline()):
                    pass
            process.terminate()
            assert (await end(process, 10)).code == 0
        assert line.decode().startswith(f"rmq: outbox: row {row} for topic T, keys order-17 is PENDING, ")

    async def test_a_reader_that_goes_away_ends_it(self, table: Table) -> None:
        await table.add()
        reading, writing = os.pipe()
        os.close(reading)
        async with EmbeddedRocketMQ() as server:
            try:
                ended = await rmq(
                    "outbox", "relay", "--json", "--namesrv", server.namesrv, "--database", table.url, stdout=writing
                )
            finally:
                os.close(writing)
        assert (ended.code, ended.err) == (1, "")


async def test_every_command_works_on_postgresql() -> None:
    with postgres() as url:
        table = Table(url)
        await table.add(*some(20), Message("T", b"x" * TOO_LARGE))
        there = {"env": {**environment(), "RMQ_OUTBOX_DATABASE": table.url}}
        async with EmbeddedRocketMQ() as server:
            ended = await rmq("outbox", "relay", "--drain", "--json", "--namesrv", server.namesrv, **there)
            assert (ended.code, len(server.messages("T"))) == (1, 20), ended.err
        assert (await rmq("outbox", "status", "--json", **there)).records == [
            {"pending": 0, "oldest_age": 0.0, "sent": 20, "failed": 1}
        ]
        assert (await rmq("outbox", "retry", "21", "--json", **there)).records == [{"retried": 1}]
        assert (await rmq("outbox", "purge", "--older-than", "0s", "--json", **there)).records == [{"purged": 20}]

        ended = await rmq("outbox", "status", "--table", "nothing", **there)
        assert ended.code == 2
        assert "create_table() makes it" in one_line(ended.err)
        ended = await rmq("outbox", "status", "--database", table.url.replace("/postgres?", "/nothing?"))
        assert (ended.code, ended.err) == (1, 'rmq: the database: database "nothing" does not exist\n')


class TestTheDatabase:
    def test_it_may_come_from_the_environment(self, table: Table, rmq_here: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
        asyncio.run(table.add(Message("T", b"x")))
        monkeypatch.setenv("RMQ_OUTBOX_DATABASE", table.url)
        assert rmq_here("outbox", "status", "--json").records[0]["pending"] == 1

    def test_without_one_nothing_is_done(self, rmq_here: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("RMQ_OUTBOX_DATABASE", raising=False)
        ended = rmq_here("outbox", "status")
        assert (ended.code, ended.out) == (2, "")
        assert "RMQ_OUTBOX_DATABASE" in one_line(ended.err)

    def test_a_file_that_is_not_there_is_not_made(self, rmq_here: Rmq, tmp_path: Path) -> None:
        ended = rmq_here("outbox", "status", "--database", f"sqlite:///{tmp_path}/none.db")
        assert (ended.code, ended.out) == (1, "")
        assert f"there is no SQLite file {tmp_path}/none.db" in one_line(ended.err)
        assert not list(tmp_path.iterdir())

    def test_a_file_that_is_no_database_is_one_line(self, rmq_here: Rmq, tmp_path: Path) -> None:
        (tmp_path / "text").write_text("no database, but long enough to be taken for one" * 100)
        ended = rmq_here("outbox", "status", "--database", f"sqlite:///{tmp_path}/text")
        assert (ended.code, ended.out, ended.err) == (1, "", "rmq: the database: file is not a database\n")

    @pytest.mark.parametrize(
        "command",
        [["status"], ["relay", "--namesrv", NOWHERE], ["retry", "--all-failed"], ["purge", "--older-than", "1d"]],
        ids=lambda command: command[0],
    )
    def test_a_missing_table_is_one_line_that_says_how_to_make_it(
        self, command: list[str], rmq_here: Rmq, table: Table, tmp_path: Path
    ) -> None:
        (tmp_path / "service.db").touch()
        ended = rmq_here("outbox", *command, "--database", table.url)
        assert (ended.code, ended.out) == (2, "")
        assert "await outbox.create_table() makes it" in one_line(ended.err)

    @pytest.mark.parametrize(
        ("url", "code", "says"),
        [
            ("mysql://user:s3cret@host/db", 2, "needs PostgreSQL or SQLite"),
            ("postgresql://user:s3cret@host:port/db", 2, "the URL of the database is not one"),
            ("user:s3cret@host", 2, "the URL of the database is not one"),
            ("", 2, "no database is known"),
            ("sqlite://", 2, "in memory"),
            ("sqlite:///:memory:", 2, "in memory"),
            ("sqlite://user:s3cret@host/db", 2, "a SQLite database is a file"),
            ("postgresql://user:s3cret@127.0.0.1:1/db", 1, "cannot be reached"),
            ("postgres://user:s3cret@127.0.0.1:1/db?sslmode=disable", 1, "cannot be reached"),
            ("postgresql+psycopg://user:s3cret@127.0.0.1:1/db", 1, "cannot be reached"),
            ("postgresql://user:s3cret@127.0.0.1:1/db?unknown=1", 2, "does not take"),
        ],
    )
    def test_no_error_shows_a_password(self, url: str, code: int, says: str, rmq_here: Rmq) -> None:
        for command in (["status"], ["relay", "--drain"]):
            ended = rmq_here("outbox", *command, "--database", url)
            assert (ended.code, ended.out) == (code, "")
            assert says in one_line(ended.err)
            assert "s3cret" not in ended.err


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (["retry"], "--all-failed"),
        (["retry", "1", "--all-failed"], "--all-failed"),
        (["retry", "0"], "0"),
        (["retry", str(1 << 63)], str(1 << 63)),
        (["purge"], "--older-than"),
        (["purge", "--older-than", "7"], "an age such as 7d"),
        (["purge", "--older-than", "-1d"], "an age such as 7d"),
        (["purge", "--older-than", "99999d"], "an age such as 7d"),
        (["status", "--fail-above", "-1"], "--fail-above"),
        (["status", "--table", ""], "table"),
        (["relay", "--batch-size", "0"], "--batch-size"),
        (["relay", "--lease", "0"], "--lease"),
        (["relay", "--group", "no spaces"], "no spaces"),
        (["relay", "--namesrv", "no-port"], "no-port"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_use_is_one_line_and_code_2(wrong: list[str], says: str, table: Table, rmq_outbox: Rmq) -> None:
    asyncio.run(table.add())
    ended = rmq_outbox(*wrong)
    assert (ended.code, ended.out) == (2, ""), ended
    assert says in one_line(ended.err)


def program(missing: str, *arguments: str) -> list[str]:
    """``rmq`` where a package is not installed; it fails if SQLAlchemy is imported all the same."""
    return [
        sys.executable, "-W", "error", "-c",
        f"import sys; sys.modules[{missing!r}] = None; from rmq_async.cli.app import run_command; "
        f"code = run_command({list(arguments)!r}); sys.exit(99 if sys.modules.get('sqlalchemy') else code)",
    ]  # fmt: skip


@pytest.mark.parametrize("missing", ["sqlalchemy", "greenlet", "aiosqlite", "asyncpg"])
async def test_without_the_extra_one_line_says_what_to_install(missing: str) -> None:
    ended = await rmq(command=program(missing, "outbox", "status", "--database", "sqlite:///x"))
    assert (ended.code, ended.out) == (2, "")
    assert f"{missing} is not installed; pip install 'rmq-async[outbox]'" in one_line(ended.err)


async def test_help_and_wrong_names_need_no_sqlalchemy() -> None:
    ended = await rmq(command=program("none", "outbox", "relay", "--help"))
    assert (ended.code, ended.err) == (0, "")
    assert "--stuck-after" in ended.out
    ended = await rmq(command=program("none", "outbox", "send"))
    assert (ended.code, ended.out) == (2, "")
    ended = await rmq(command=program("none", "outbox"))
    assert (ended.code, ended.out) == (2, "")
    assert all(name in ended.err for name in ("status", "relay", "retry", "purge"))
