"""``Producer.health()`` while real brokers and name servers freeze, die and come back."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable

from rmq_async import Admin, Message, Producer, RocketMQError
from rmq_async.testing.cluster import RealCluster


async def until(condition: Callable[[], bool], timeout: float = 20.0) -> None:
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.02)


async def test_health_while_real_servers_fail(two_brokers: RealCluster) -> None:
    topic = f"health-{uuid.uuid4().hex[:12]}"
    first, second = two_brokers.brokers

    def codes() -> set[tuple[str, str | None]]:
        return {(problem.code, problem.broker) for problem in producer.health().problems}

    async def knock(timeout: float = 0.4) -> None:
        """Sends that may fail: the client notices what it uses."""
        sends = [producer.send(Message(topic, b"x"), timeout=timeout) for _ in range(4)]
        for outcome in await asyncio.gather(*sends, return_exceptions=True):
            assert not isinstance(outcome, BaseException) or isinstance(outcome, RocketMQError)

    async with (
        Admin(namesrv=two_brokers.namesrv) as admin,
        Producer(
            "health", namesrv=two_brokers.namesrv, request_timeout=1.0, topics=[topic], heartbeat_interval=6.0
        ) as producer,
    ):
        await admin.create_topic(topic, queues=2)
        await knock(timeout=30.0)
        health = producer.health()
        assert (health.live, health.ready, health.problems) == (True, True, ())
        assert set(health.brokers) == {"broker-a", "broker-b"}
        assert health.last_success_age is not None

        first.pause()
        await knock()
        await until(lambda: codes() == {("broker_silent", "broker-a")})
        assert producer.health().ready
        second.pause()
        await knock()
        await until(lambda: not producer.health().ready)
        assert ("broker_silent", "broker-b") in codes()
        assert producer.health().live
        first.resume()
        second.resume()
        await until(lambda: producer.health().ready and not codes())

        names = two_brokers.nameservers
        await asyncio.gather(first.kill(), second.kill())
        await until(lambda: not producer.health().ready)
        assert codes() == {("broker_unreachable", "broker-a"), ("broker_unreachable", "broker-b")}
        await first.start()
        await until(lambda: producer.health().ready)  # without a send
        await second.start()
        await until(lambda: not codes())

        await asyncio.gather(*[each.kill() for each in names])
        assert (await asyncio.gather(producer.fetch_publish_queues("unknown"), return_exceptions=True))[0] is not None
        await until(lambda: codes() == {("no_name_server", None)})
        assert producer.health().ready
        await producer.send(Message(topic, b"x"))
        await asyncio.gather(*[each.start() for each in names])
