"""First commits of a group in a topic: one alone, then the others at once."""

from __future__ import annotations

import asyncio
import random

import pytest

from rmq_async import PullConsumer, machine
from rmq_async.admin import Admin
from rmq_async.client.first_commits import FirstCommits
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.errors import NoPermissionError, RequestTimeoutError
from rmq_protocol.message import MessageQueue

pytestmark = pytest.mark.virtual_time

KEY = ("g", "T", "broker-a")
FAR = 1e9


class Sent:
    """Requests under way; each is answered after 10 ms."""

    def __init__(self) -> None:
        self.now = 0
        self.most: list[int] = []
        self.fails = 0

    async def request(self) -> None:
        self.now += 1
        self.most.append(self.now)
        await asyncio.sleep(0.01)
        self.now -= 1
        if self.fails:
            self.fails -= 1
            raise NoPermissionError("no right to commit")


async def test_first_commit_goes_alone() -> None:
    commits, sent = FirstCommits(), Sent()
    await asyncio.gather(*(commits.commit(KEY, sent.request, FAR) for _ in range(8)))
    assert sent.most[:2] == [1, 1]
    assert max(sent.most) == 7
    assert sent.now == 0


async def test_commit_after_a_failed_first_one_goes_alone() -> None:
    commits, sent = FirstCommits(), Sent()
    sent.fails = 2
    results = await asyncio.gather(*(commits.commit(KEY, sent.request, FAR) for _ in range(5)), return_exceptions=True)
    assert [type(result) for result in results[:3]] == [NoPermissionError, NoPermissionError, type(None)]
    assert sent.most[:3] == [1, 1, 1]


async def test_first_commits_of_other_tables_do_not_wait() -> None:
    commits, sent = FirstCommits(), Sent()
    await asyncio.gather(*(commits.commit(("g", topic, "broker-a"), sent.request, FAR) for topic in "ABC"))
    assert sent.most == [1, 2, 3]


async def test_cancelled_first_commit_lets_the_next_one_go() -> None:
    commits, sent = FirstCommits(), Sent()
    first = asyncio.create_task(commits.commit(KEY, asyncio.Event().wait, FAR))  # type: ignore[arg-type]
    second = asyncio.create_task(commits.commit(KEY, sent.request, FAR))
    await asyncio.sleep(0)
    assert not sent.most
    first.cancel()
    await second
    assert sent.most == [1]


async def test_commits_after_the_last_answer_begin_anew() -> None:
    commits, sent = FirstCommits(), Sent()
    for _ in range(2):
        sent.most.clear()
        await asyncio.gather(*(commits.commit(KEY, sent.request, FAR) for _ in range(3)))
        assert sent.most == [1, 1, 2]
        assert len(commits) == 0


async def test_commit_joins_those_under_way() -> None:
    commits, sent = FirstCommits(), Sent()
    begun = [asyncio.create_task(commits.commit(KEY, sent.request, FAR)) for _ in range(2)]
    await asyncio.sleep(0.015)  # the first was answered, the second is under way
    await commits.commit(KEY, sent.request, FAR)
    await asyncio.gather(*begun)
    assert sent.most == [1, 1, 2]


async def test_commit_whose_turn_does_not_come_ends_at_its_deadline() -> None:
    commits, sent = FirstCommits(), Sent()
    first = asyncio.create_task(commits.commit(KEY, asyncio.Event().wait, FAR))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    with pytest.raises(RequestTimeoutError, match="broker-a: not sent in time") as caught:
        await commits.commit(KEY, sent.request, machine.monotonic() + 0.02)
    assert not caught.value.maybe_stored
    assert not sent.most
    first.cancel()
    await asyncio.wait([first])
    assert len(commits) == 0


async def test_commits_to_a_silent_broker_all_end_within_the_timeout() -> None:
    async with EmbeddedRocketMQ() as server, Admin(namesrv=server.namesrv) as admin:
        await admin.create_topic("T", queues=4)
        await admin.create_group("g")
        async with PullConsumer("g", namesrv=server.namesrv, request_timeout=0.3) as consumer:
            queues = await consumer.queues("T")
            server.stall("broker-a")
            began = machine.monotonic()
            results = await asyncio.gather(*(consumer.commit(queue, 1) for queue in queues), return_exceptions=True)
            assert machine.monotonic() - began == pytest.approx(0.3, abs=0.01)
            assert {type(result) for result in results} == {RequestTimeoutError}
            server.resume("broker-a")


async def test_concurrent_commits_of_new_groups_are_all_kept() -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    queues = [MessageQueue("T", "broker-a", number) for number in range(8)]
    async with EmbeddedRocketMQ() as server, Admin(namesrv=server.namesrv) as admin:
        await admin.create_topic("T", queues=8)
        server.shuffle(seed)
        for number in range(20):
            group = f"g{number}"
            await admin.create_group(group)
            async with PullConsumer(group, namesrv=server.namesrv) as consumer:
                await asyncio.gather(*(consumer.commit(queue, 1) for queue in queues))
                assert {await consumer.committed(queue) for queue in queues} == {1}


async def test_concurrent_commits_to_a_topic_made_anew_are_all_kept() -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    async with EmbeddedRocketMQ() as server, Admin(namesrv=server.namesrv) as admin:
        server.shuffle(seed)
        await admin.create_group("g")
        async with PullConsumer("g", namesrv=server.namesrv) as consumer:
            for _ in range(10):
                await admin.create_topic("T", queues=8)
                queues = [MessageQueue("T", "broker-a", number) for number in range(8)]
                await asyncio.gather(*(consumer.commit(queue, 1) for queue in queues))
                assert {await consumer.committed(queue) for queue in queues} == {1}
                await admin.delete_topic("T")
