"""A plain message that waited, for a credit or a route, leaves with the time of its leaving."""

from __future__ import annotations

import asyncio
import re
import time

import pytest

from rmq_async import SendError, machine
from rmq_async.client.unique_ids import UniqueIds

from ..support.fakes import Cluster, Link, Sent, refuse, stored
from .support import message, messages, producer, spin, until

pytestmark = pytest.mark.virtual_time


class Clock:
    """Both clocks stand still until they are moved."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall = int(time.time()) + 0.0005
        self.ticks = time.monotonic()
        monkeypatch.setattr(machine, "time", lambda: self.wall)
        monkeypatch.setattr(machine, "monotonic", lambda: self.ticks)

    def pass_by(self, seconds: float) -> None:
        self.wall += seconds
        self.ticks += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class Holding:
    """An answer that comes when it is let go."""

    def __init__(self) -> None:
        self.sends: list[tuple[Link, Sent]] = []

    def __call__(self, link: Link, sent: Sent) -> None:
        self.sends.append((link, sent))

    def let_go(self) -> None:
        for link, sent in self.sends:
            stored(link, sent)


async def test_a_message_that_waited_for_a_credit_is_born_when_it_leaves(cluster: Cluster, clock: Clock) -> None:
    async with producer(cluster, async_limit=1, timeout=30.0) as sender:
        await sender.send(message())
        cluster.a.answer = held = Holding()
        sends = [asyncio.ensure_future(sender.send(message())) for _ in range(2)]
        await until(lambda: held.sends)
        called = clock.wall
        clock.pass_by(1.0)
        cluster.a.answer = stored
        held.let_go()
        await asyncio.gather(*sends)
    assert [int(sent.fields["g"]) for sent in cluster.sends[1:]] == [int(called * 1000), int(clock.wall * 1000)]


async def test_a_message_that_waited_for_a_route_is_born_when_it_leaves(cluster: Cluster, clock: Clock) -> None:
    asked = []
    async with producer(cluster, timeout=30.0) as sender:
        await sender.send(message())
        cluster.name_server.routes["other"] = cluster.route()
        cluster.name_server.answer = lambda *request: asked.append(request)
        sending = asyncio.ensure_future(sender.send(message(topic="other")))
        await until(lambda: asked)
        clock.pass_by(1.0)
        cluster.name_server.answer_route(*asked[0])
        await sending
    assert int(cluster.sends[-1].fields["g"]) == int(clock.wall * 1000)


@pytest.mark.usefixtures("wide_window")
async def test_many_that_waited_share_pages_of_ids(cluster: Cluster, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = []
    turn_page = UniqueIds._turn_page  # noqa: SLF001
    monkeypatch.setattr(UniqueIds, "_turn_page", lambda self: (turns.append(1), turn_page(self))[1])
    async with producer(cluster, async_limit=200, timeout=30.0) as sender:
        await sender.send(message())
        cluster.a.answer = held = Holding()
        sends = [asyncio.ensure_future(sender.send(item)) for item in messages(200)]
        await until(lambda: len(held.sends) == 200)
        clock.pass_by(0.01)
        sends += [asyncio.ensure_future(sender.send(item)) for item in messages(200)]
        await spin(3)
        clock.pass_by(1.0)
        turns.clear()
        cluster.a.answer = stored
        held.let_go()
        await asyncio.gather(*sends)
    assert len({sent.unique_id for sent in cluster.sends}) == 401
    assert len(turns) <= 4


async def test_the_time_in_an_error_counts_from_the_call(cluster: Cluster) -> None:
    async with producer(cluster, async_limit=1, retries=1, timeout=30.0) as sender:
        await sender.send(message())
        cluster.a.answer = held = Holding()
        first = asyncio.ensure_future(sender.send(message()))
        await until(lambda: held.sends)
        second = asyncio.ensure_future(sender.send(message()))
        await asyncio.sleep(0.1)
        cluster.a.answer = refuse(1)
        held.let_go()
        await first
        with pytest.raises(SendError, match="after 2 attempts") as caught:
            await second
    found = re.search(r" in ([\d.]+) s:", str(caught.value))
    assert found is not None
    assert float(found[1]) >= 0.09
    assert caught.value.attempts[0].elapsed < float(found[1])
