"""``rmq outbox status``, ``retry`` and ``purge``: the table looked after from outside."""

from __future__ import annotations

import asyncio

from rmq_async import Message

from ..support import Rmq, one_line
from .support import Table, some


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
        other = Table(table.engine_url, "letters")
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
