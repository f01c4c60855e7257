"""``rmq outbox relay``: the relay as a process."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Awaitable, Callable

import pytest

from rmq_async import Message
from rmq_async._threads import NoThreadError
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.outbox import Store

from ..support import Ended, Rmq, end, one_line, rmq
from .support import NOWHERE, TOO_LARGE, Table, bodies, line_with, relay, some, until

Drained = Callable[..., Awaitable[Ended]]


@pytest.fixture
def drained(rmq_outbox: Rmq) -> Drained:
    """Runs ``rmq outbox relay --drain`` in a thread of this process, on ``table``."""

    async def run(server: EmbeddedRocketMQ, *arguments: str) -> Ended:
        given = ("--drain", "--namesrv", server.namesrv, "--poll-interval", "0.1", *arguments)
        return await asyncio.to_thread(rmq_outbox, "relay", *given)

    return run


class TestDrain:
    async def test_it_sends_all_and_ends(self, table: Table, drained: Drained) -> None:
        await table.add(*some(600))
        async with EmbeddedRocketMQ() as server:
            ended = await drained(server, "--json", "--every", "0.05")
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

    async def test_database_that_gets_no_thread_for_a_moment_does_not_end_it(
        self, table: Table, drained: Drained, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found, refusals = Store.anything_to_send, [NoThreadError("can't start new thread")]

        async def anything_to_send(store: Store) -> bool:
            if refusals:
                raise refusals.pop()
            return await found(store)

        monkeypatch.setattr(Store, "anything_to_send", anything_to_send)
        await table.add(*some(3))
        async with EmbeddedRocketMQ() as server:
            ended = await drained(server)
        assert (ended.code, refusals) == (0, []), ended.err

    async def test_people_read_progress_on_stderr_and_the_totals_on_stdout(self, table: Table, drained: Drained) -> None:
        await table.add(*some(3))
        async with EmbeddedRocketMQ() as server:
            ended = await drained(server)
        assert ended.code == 0
        assert one_line(ended.out).startswith("3 messages sent in ")
        assert one_line(ended.out).endswith(", 0 pending, 0 failed")
        assert "messages/s" in ended.err

    async def test_what_failed_meanwhile_is_exit_code_1_and_so_is_what_is_left_behind_it(
        self, table: Table, drained: Drained
    ) -> None:
        await table.add(
            Message("T", b"x" * TOO_LARGE, sharding_key="order-1"),
            *some(2, sharding_key="order-1"),
            Message("T", b"free", sharding_key="order-2"),
        )
        async with EmbeddedRocketMQ() as server:
            ended = await drained(server, "--json")
            assert bodies(server) == [b"free"]
        assert ended.code == 1
        total = ended.records[-1]["total"]
        assert (total["sent"], total["pending"], total["failed"]) == (1, 2, 1)
        assert "rmq: outbox: 1 message failed for good\n" in ended.err
        assert "rmq: outbox: 2 messages left, behind a message with the same sharding key" in ended.err

    async def test_what_failed_before_and_holds_nothing_up_is_no_failure(self, table: Table, drained: Drained) -> None:
        await table.add(*some(2))
        await table.fail(1)
        async with EmbeddedRocketMQ() as server:
            ended = await drained(server, "--json")
        assert ended.code == 0, ended.err
        assert (ended.records[-1]["total"]["sent"], ended.records[-1]["total"]["failed"]) == (1, 1)

    async def test_a_message_that_waits_for_another_attempt_is_waited_for(self, table: Table, drained: Drained) -> None:
        await table.add(*some(1))
        due = "strftime('%Y-%m-%d %H:%M:%f', 'now', '+1 seconds')"  # real time: it is the database's
        await table.execute(f"UPDATE {table.name} SET attempts = 1, next_attempt = {due}")
        async with EmbeddedRocketMQ() as server:
            ended = await drained(server, "--json")
        assert (ended.code, ended.records[-1]["total"]["sent"]) == (0, 1), ended.err

    async def test_a_signal_before_it_is_done_is_exit_code_1(self, table: Table) -> None:
        await table.add(*some(2))
        async with relay("--drain", "--json", "--namesrv", NOWHERE, "--database", table.url) as process:
            await line_with(process.stdout, "pending")
            process.terminate()
            ended = await end(process)
        assert (ended.code, ended.records[-1]["total"]["pending"]) == (1, 2)
        assert "ended before all messages that can be sent were sent; run it again to send the rest" in ended.err


class TestRelay:
    @pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.deep)])
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
            process.send_signal(number)
            ended = await end(process)
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
                ended = await end(process)
                assert len(server.messages("T")) == 5
        assert ended.code == 0, ended.err

    async def test_a_stuck_message_is_a_line(self, table: Table) -> None:
        """It ends at once, although the cluster is away and its sends have time left."""
        (row,) = await table.add(Message("T", b"x", keys=["order-17"]))
        given = ("--namesrv", NOWHERE, "--database", table.url, "--stuck-after", "0.1", "--lease", "900", "--timeout", "300")
        async with relay(*given, "--json") as process:
            stuck = (await line_with(process.stdout, "stuck"))["stuck"]
            process.terminate()
            ended = await end(process)
        assert ended.code == 0, ended.err
        assert (ended.records[-1]["total"]["sent"], ended.records[-1]["total"]["pending"]) == (0, 1)
        assert set(stuck) == {"id", "topic", "keys", "age", "attempts", "last_error", "state", "unique_id"}
        assert (stuck["id"], stuck["topic"], stuck["keys"], stuck["state"]) == (row, "T", ["order-17"], "PENDING")
        assert stuck["age"] >= 0.1

        await table.execute(f"UPDATE {table.name} SET alerted = NULL")
        async with relay(*given) as process:
            assert process.stderr is not None
            async with asyncio.timeout(60):
                while b"outbox: row" not in (line := await process.stderr.readline()):
                    pass
            process.terminate()
            assert (await end(process)).code == 0
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
