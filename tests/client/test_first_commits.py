"""First commits of a group in a topic: one alone, then the others at once."""

from __future__ import annotations

import asyncio
import random

import pytest

from rmq_async import PullConsumer
from rmq_async.admin import Admin
from rmq_async.client import first_commits
from rmq_async.client.first_commits import FirstCommits
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.errors import NoPermissionError
from rmq_protocol.message import MessageQueue

KEY = ("g", "T", "broker-a")


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
    await asyncio.gather(*(commits.commit(KEY, sent.request) for _ in range(8)))
    assert sent.most[:2] == [1, 1]
    assert max(sent.most) == 7
    assert sent.now == 0


async def test_commit_after_a_failed_first_one_goes_alone() -> None:
    commits, sent = FirstCommits(), Sent()
    sent.fails = 2
    results = await asyncio.gather(*(commits.commit(KEY, sent.request) for _ in range(5)), return_exceptions=True)
    assert [type(result) for result in results[:3]] == [NoPermissionError, NoPermissionError, type(None)]
    assert sent.most[:3] == [1, 1, 1]


async def test_first_commits_of_other_tables_do_not_wait() -> None:
    commits, sent = FirstCommits(), Sent()
    await asyncio.gather(*(commits.commit(("g", topic, "broker-a"), sent.request) for topic in "ABC"))
    assert sent.most == [1, 2, 3]


async def test_cancelled_first_commit_lets_the_next_one_go() -> None:
    commits, sent = FirstCommits(), Sent()
    first = asyncio.create_task(commits.commit(KEY, asyncio.Event().wait))  # type: ignore[arg-type]
    second = asyncio.create_task(commits.commit(KEY, sent.request))
    await asyncio.sleep(0)
    assert not sent.most
    first.cancel()
    await second
    assert sent.most == [1]


async def test_first_commits_forget_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_commits, "MAX_KNOWN", 2)
    commits, sent = FirstCommits(), Sent()
    for topic in "ABC":
        await commits.commit(("g", topic, "broker-a"), sent.request)
    for topic, at_once in (("C", 2), ("B", 2), ("A", 1)):
        sent.most.clear()
        await asyncio.gather(*(commits.commit(("g", topic, "broker-a"), sent.request) for _ in range(2)))
        assert max(sent.most) == at_once


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
