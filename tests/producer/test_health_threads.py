"""``Producer.health()`` from threads, which ask while the loop is at work."""

from __future__ import annotations

import asyncio
import sys
import threading

from rmq_async import Message, Problem, Producer, ProducerState
from rmq_async.embedded import EmbeddedRocketMQ

from ..support.waiting import until


async def test_health_asked_by_other_threads_all_the_time() -> None:
    """While topics come and go, connections break and messages are sent: no call raises, and every answer is whole."""
    async with EmbeddedRocketMQ(brokers=4) as server, Producer("group", namesrv=server.namesrv, timeout=60.0) as producer:
        failures: list[BaseException] = []
        asked = [0, 0]
        over = threading.Event()

        def hammer(number: int) -> None:
            try:
                while not over.is_set():
                    health = producer.health()
                    assert health.state is ProducerState.RUNNING
                    assert health.unanswered >= 0
                    assert all(isinstance(problem, Problem) for problem in health.problems)
                    asked[number] += 1
            except BaseException as error:  # noqa: BLE001 - reported by the test
                failures.append(error)

        threads = [threading.Thread(target=hammer, args=(number,)) for number in range(len(asked))]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        try:
            for thread in threads:
                thread.start()
            for number in range(15):
                await asyncio.gather(*[producer.send(Message(f"Topic{number}", b"%d" % n)) for n in range(40)])
                if number % 5 == 0:
                    server.drop_connections()
            await until(lambda: min(asked) > 100 or failures, timeout=60)
        finally:
            over.set()
            sys.setswitchinterval(interval)
            for thread in threads:
                thread.join()
        assert not failures
