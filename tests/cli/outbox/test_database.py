"""Which databases the commands take, and what they say of those that they cannot use."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rmq_async import Message
from rmq_async.embedded import EmbeddedRocketMQ

from ...support.postgres import postgres
from ..support import Rmq, one_line
from .support import NOWHERE, TOO_LARGE, Table, some


@pytest.mark.deep
def test_every_command_works_on_postgresql(rmq_here: Rmq, server: EmbeddedRocketMQ, monkeypatch: pytest.MonkeyPatch) -> None:
    with postgres() as url:
        table = Table(url)
        asyncio.run(table.add(*some(20, topic="Postgres"), Message("Postgres", b"x" * TOO_LARGE)))
        monkeypatch.setenv("RMQ_OUTBOX_DATABASE", table.url)
        ended = rmq_here("outbox", "relay", "--drain", "--json")
        assert (ended.code, len(server.messages("Postgres"))) == (1, 20), ended.err
        assert rmq_here("outbox", "status", "--json").records == [{"pending": 0, "oldest_age": 0.0, "sent": 20, "failed": 1}]
        assert rmq_here("outbox", "retry", "21", "--json").records == [{"retried": 1}]
        assert rmq_here("outbox", "purge", "--older-than", "0s", "--json").records == [{"purged": 20}]

        ended = rmq_here("outbox", "status", "--table", "nothing")
        assert ended.code == 2
        assert "create_table() creates it" in one_line(ended.err)
        ended = rmq_here("outbox", "status", "--database", table.url.replace("/postgres?", "/nothing?"))
        assert (ended.code, ended.err) == (1, 'rmq: the database reports: database "nothing" does not exist\n')


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
        assert (ended.code, ended.out, ended.err) == (1, "", "rmq: the database reports: file is not a database\n")

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
        assert "await outbox.create_table() creates it" in one_line(ended.err)

    @pytest.mark.parametrize(
        ("url", "code", "says"),
        [
            ("mysql://user:s3cret@host/db", 2, "needs PostgreSQL or SQLite"),
            ("postgresql://user:s3cret@host:port/db", 2, "the URL of the database cannot be read"),
            ("user:s3cret@host", 2, "the URL of the database cannot be read"),
            ("", 2, "no database is known"),
            ("sqlite://", 2, "in memory"),
            ("sqlite:///:memory:", 2, "in memory"),
            ("sqlite://user:s3cret@host/db", 2, "a SQLite database is a file"),
            ("postgresql://user:s3cret@127.0.0.1:1/db", 1, "cannot be reached"),
            ("postgres://user:s3cret@127.0.0.1:1/db?sslmode=disable", 1, "cannot be reached"),
            ("postgresql+psycopg://user:s3cret@127.0.0.1:1/db", 1, "cannot be reached"),
            ("postgresql://user:s3cret@127.0.0.1:1/db?unknown=1", 2, "does not accept"),
        ],
    )
    def test_no_error_shows_a_password(self, url: str, code: int, says: str, rmq_here: Rmq) -> None:
        for command in (["status"], ["relay", "--drain"]):
            ended = rmq_here("outbox", *command, "--database", url)
            assert (ended.code, ended.out) == (code, "")
            assert says in one_line(ended.err)
            assert "s3cret" not in ended.err
