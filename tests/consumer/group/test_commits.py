"""Commits that meet each other."""

from __future__ import annotations

import asyncio

import pytest

from rmq_async import ClientConfig, Consumer, MessageQueue, PullConsumer, machine
from rmq_async.client import ClientInstance
from rmq_async.consumer.commits import Commits, Doubts
from rmq_async.embedded import EmbeddedRocketMQ

from .support import Seen, create, member, send, until

Q0 = MessageQueue("T", "broker-a", 0)


async def test_commit_during_one_in_the_background_commits_what_moved_since() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        consumer = Consumer("g", namesrv=server.namesrv, commit_interval=0.05)
        consumer.subscribe("T", Seen())
        async with consumer:
            for number in range(1, 6):
                await send(server.namesrv, b"%d" % number)
                await consumer.wait_idle()
                server.delay(0.1)  # commits are under way most of the time
                await asyncio.sleep(0.06)
                server.delay(0)
                await send(server.namesrv, b"%d more" % number)
                await consumer.wait_idle()
                await consumer.commit()
                assert server.progress("g")[Q0] == number * 2


@pytest.mark.parametrize("between", ["nothing", "another-member", "restart"])
async def test_commit_without_an_answer_is_repeated_where_the_broker_gets_it_late(between: str) -> None:
    """A connection that hung may deliver it after a later commit of a new connection, also of a queue that was given up and taken
    over again meanwhile, and after a restart: simulated seeds 70165 and 412705."""
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        options = {"commit_interval": 0.05, "rebalance_interval": 300.0, "request_timeout": 0.3}
        consumer = member("g", server.namesrv, "b", Seen(), **options)
        async with consumer:
            await send(server.namesrv, b"1", b"2")
            await consumer.wait_idle()
            await consumer.commit()
            server.delay(0.5)  # longer than request_timeout
            await send(server.namesrv, b"3")
            await until(lambda: consumer.health().problems)
            server.delay(0)
            await consumer.wait_idle()
            await consumer.commit()
            if between == "restart":
                await consumer.stop()
                await consumer.start()
            if between == "another-member":
                async with member("g", server.namesrv, "a", Seen()) as other:
                    await until(lambda: Q0 in other.assignment)
            await until(lambda: Q0 in consumer.assignment)
            async with PullConsumer("g", namesrv=server.namesrv) as late:
                await late.commit(Q0, 1)
            await until(lambda: server.progress("g")[Q0] == 3, 2.0)


async def test_warning_of_a_blocked_loop_leaves_out_the_commit_interval(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    times = [0.0]

    async def sleep(seconds: float) -> None:
        times.append(times[-1] + seconds + 7.0)

    async def confirm() -> None:
        raise EOFError

    async with EmbeddedRocketMQ() as server:
        instance = await ClientInstance.acquire(ClientConfig(namesrv=server.namesrv))
        with monkeypatch.context() as patched:
            patched.setattr(machine, "monotonic", lambda: times[-1])
            patched.setattr(asyncio, "sleep", sleep)
            with pytest.raises(EOFError):
                await Commits(instance, "g", list, lambda _: True, Doubts()).run(60.0, 300.0, confirm)
        await instance.release()
    assert "did not run for 7.0 s" in caplog.text
