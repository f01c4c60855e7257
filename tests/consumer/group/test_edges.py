"""A consumer beside others in its client, in a namespace, after a fork, and with topics and rights that come and go."""

from __future__ import annotations

import asyncio
import os

import pytest

from rmq_async import Admin, Message, MessageExt, MessageQueue, Outcome, Producer, Retry
from rmq_async.consumer.queues import pulls as pulling
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.errors import ForkedError, WrongLoopError
from rmq_protocol.constants import RequestCode, ResponseCode

from ...client.support import fork
from .support import Seen, create, member, send, until


async def test_two_groups_in_one_client() -> None:
    """Each gets everything, and keeps its own offsets."""
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        seen = {"g1": Seen(), "g2": Seen()}
        consumers = [member(group, server.namesrv, "one", handler) for group, handler in seen.items()]
        for consumer in consumers:
            await consumer.start()
        bodies = [b"%d" % number for number in range(12)]
        await send(server.namesrv, *bodies)
        for consumer in consumers:
            await consumer.wait_settled(12)
        await consumers[0].stop()
        await send(server.namesrv, b"after")
        await consumers[1].wait_settled(1)
        await consumers[1].stop()
        assert seen["g1"].bodies == dict.fromkeys(bodies, 1)
        assert seen["g2"].bodies == dict.fromkeys([*bodies, b"after"], 1)
        assert sum(server.progress("g1").values()) == 12
        assert sum(server.progress("g2").values()) == 13


@pytest.mark.virtual_time
async def test_consumer_in_a_namespace() -> None:
    """Users see names without it, in retries too; another namespace shares neither topic nor group."""
    async with EmbeddedRocketMQ() as server:
        for namespace in ("blue", "green"):
            async with Admin(namesrv=server.namesrv, namespace=namespace) as admin:
                await admin.create_topic("T", queues=1)
        topics: list[tuple[str, str, int]] = []

        def handler(namespace: str) -> object:
            async def handle(message: MessageExt) -> None:
                topics.append((namespace, message.topic, message.reconsume_times))
                if not message.reconsume_times:
                    raise ValueError("again")

            return handle

        blue = member("g", server.namesrv, "blue", handler("blue"), namespace="blue", retry=Retry(delays=(1,)))  # type: ignore[arg-type]
        green = member("g", server.namesrv, "green", handler("green"), namespace="green")  # type: ignore[arg-type]
        async with blue, green:
            assert {queue.topic for queue in blue.assignment} == {"T", "%RETRY%g"}
            async with Producer("p", namesrv=server.namesrv, namespace="blue") as producer:
                await producer.send(Message("T", b"x"))
            settled = await blue.wait_settled(2, timeout=20.0)
            assert [each.outcome for each in settled] == [Outcome.RETRIED, Outcome.DONE]
            assert blue.position(MessageQueue("T", "broker-a", 0)) == 1
        assert topics == [("blue", "T", 0), ("blue", "T", 1)]


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    "code", [ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, ResponseCode.NO_PERMISSION, ResponseCode.TOPIC_NOT_EXIST]
)
async def test_pulls_that_are_refused_go_on(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """``health()`` names the queues meanwhile."""
    monkeypatch.setattr(pulling, "REFUSED_PAUSE", 0.2)
    monkeypatch.setattr(pulling, "BUSY_PAUSE", 0.2)
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        seen = Seen()
        consumer = member("g", server.namesrv, "one", seen)
        async with consumer:
            server.fail_next(code, 10, request=RequestCode.PULL_MESSAGE)
            sending = asyncio.create_task(send(server.namesrv, *[b"%d" % number for number in range(8)]))
            await until(lambda: "queue_unreadable" in [problem.code for problem in consumer.health().problems])
            assert consumer.health().live
            await sending
            await until(lambda: len(seen.bodies) == 8, 20.0)
        assert seen.twice == 0


@pytest.mark.virtual_time
async def test_topic_that_loses_queues() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=4)
        seen = Seen()
        consumer = member("g", server.namesrv, "one", seen, rebalance_interval=0.5, route_poll_interval=1.0)
        async with consumer:
            await send(server.namesrv, *[b"%d" % number for number in range(8)])
            await consumer.wait_settled(8)
            server.resize("T", 2)
            await until(lambda: len(consumer.assignment) == 3, 40.0)
            await send(server.namesrv, *[b"after %d" % number for number in range(8)])
            await consumer.wait_settled(8)
            await until(lambda: consumer.health().problems == ())  # the last offsets of the queues are committed a moment later
        assert seen.twice == 0


async def test_consumer_in_a_forked_child_and_on_another_loop_is_refused() -> None:
    """The parent goes on, and the child has sent nothing."""
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        seen = Seen()
        consumer = member("g", server.namesrv, "one", seen)

        async def refused() -> list[type]:
            calls = [consumer.commit(), consumer.wait_settled(1), consumer.wait_idle(), consumer.start(), consumer.stop()]
            return [type(error) for error in await asyncio.gather(*calls, return_exceptions=True)]

        async with consumer:
            assert set(await asyncio.to_thread(asyncio.run, refused())) == {WrongLoopError}
            child = fork()
            if child == 0:
                code = 1
                try:
                    health = consumer.health()
                    same = set(asyncio.run(refused())) == {ForkedError}
                    code = 0 if same and [problem.code for problem in health.problems] == ["forked"] else 2
                finally:
                    os._exit(code)
            _, status = await asyncio.to_thread(os.waitpid, child, 0)
            assert os.waitstatus_to_exitcode(status) == 0
            await send(server.namesrv, b"x")
            await consumer.wait_settled(1)
        assert seen.bodies == {b"x": 1}
