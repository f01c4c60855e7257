"""Queues whose former owner does not know yet that they are another member's, or reads them without a lock, and members that are
killed in a row."""

from __future__ import annotations

import asyncio

import pytest

from rmq_async import MessageExt, MessageQueue
from rmq_async.consumer.queues.pull_session import PullSession
from rmq_async.testing.simulation import Simulation

from .support import Seen, create, member, send, send_until, serving, until


@pytest.mark.parametrize("joins_at", [1.0, 7.0, 13.0, 19.0])
def test_member_that_hears_late_of_a_new_one_runs_no_message_twice(joins_at: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its notice is lost, or the group has notices switched off: it looks at the members each 20 s."""
    monkeypatch.setattr(PullSession, "members_changed", lambda session: None)

    async def main(s: Simulation) -> None:
        await create(s.namesrv)
        seen = Seen(lambda message: asyncio.sleep(4))
        first = member("g", s.namesrv, "one", seen, start_from="earliest")
        await first.start()
        second = member("g", s.namesrv, "two", seen)
        producing = asyncio.create_task(send_until(s, 50.0, 0.1))
        await asyncio.sleep(joins_at)
        await second.start()
        await until(lambda: len(second.assignment) == 5, 60.0)
        sent = await producing
        await asyncio.sleep(10)
        await first.stop()
        await second.stop()
        assert len(seen.bodies) == sent > 300
        assert seen.twice == 0

    Simulation(1, brokers=2, faults=None).run(main)


def test_members_killed_in_a_row_delay_their_queues_no_longer_than_the_last_one() -> None:
    """Each change of the shares moves queues that still wait for the locks of an earlier one."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv)
        seen = Seen()
        for number in range(4):
            serving(s, f"{number} is killed", seen, machine=f"service-{number}")
        await asyncio.sleep(10)
        stays = member("g", s.namesrv, "stays", seen)
        await stays.start()
        await asyncio.sleep(25)  # each has its share
        for number in range(4):
            s.machine(f"service-{number}").crash()
            last = s.now
            await asyncio.sleep(7)
        await until(lambda: len(stays.assignment) == 8 + 2, 100.0)
        print("all queues", s.now - last, "s after the last one was killed")
        assert s.now - last < 15
        await send(s.namesrv, *[b"%d" % number for number in range(16)])
        await until(lambda: len(seen.bodies) == 16)
        await stays.stop()

    Simulation(5, brokers=2, faults=None).run(main)


def test_member_that_stood_still_for_a_minute_runs_no_message_twice_at_a_time() -> None:
    """Its lock is over when it goes on; the broker grants it again at once, while its handlers still run."""
    running: set[bytes] = set()
    together: list[bytes] = []

    async def work(message: MessageExt) -> None:
        if message.body in running:
            together.append(message.body)
        running.add(message.body)
        try:
            await asyncio.sleep(100)
        finally:
            running.discard(message.body)

    async def main(s: Simulation) -> None:
        await create(s.namesrv)
        seen = Seen(work)
        machine = serving(s, "stands still", seen)
        await asyncio.sleep(5)
        await send(s.namesrv, *[b"%d" % number for number in range(8)])
        await asyncio.sleep(1)
        machine.pause()
        await asyncio.sleep(70)
        machine.resume()
        await until(lambda: len(seen.bodies) == 8, 300.0)
        assert not together
        machine.crash()

    Simulation(5, brokers=2, faults=None).run(main)


@pytest.mark.parametrize("leaves", [True, False], ids=["stops", "another-joins"])
def test_queue_read_without_its_lock_is_drained_before_another_member_reads_it(
    leaves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock of a crashed member ends while the one that reads the queue without it drains: simulated seed 60226."""
    monkeypatch.setattr("rmq_async.consumer.queues.pull_session.CLAIM_EVERY", 30.0)  # the other member is the first one to ask

    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        machine = serving(s, "crashed", Seen())
        await asyncio.sleep(5)
        machine.crash()
        seen = Seen(lambda message: asyncio.sleep(9.5))
        owner, other = member("g", s.namesrv, "b", seen), member("g", s.namesrv, "c" if leaves else "a", seen)
        await owner.start()
        if leaves:
            await other.start()
        await until(lambda: any(queue.topic == "T" for queue in owner.assignment), 30.0)
        await asyncio.sleep(55 - s.now)
        producing = asyncio.create_task(send_until(s, 55.9, 0.1))
        await asyncio.sleep(1)
        if leaves:
            await owner.stop()
        else:
            await other.start()
        await until(lambda: any(queue.topic == "T" for queue in other.assignment), 30.0)
        assert s.now < 67  # the last handler ends at 65.4
        await asyncio.sleep(15)
        sent = await producing
        await other.stop()
        if not leaves:
            await owner.stop()
        assert len(seen.attempts) == len(seen.bodies) == sent > 5
        assert seen.twice == 0

    Simulation(3, faults=None).run(main)


def test_lock_that_was_not_renewed_in_time_is_renewed_as_soon_as_its_broker_answers() -> None:
    """Its life would be over before the next turn of renewals: simulated seed 70165."""
    lost: list[MessageQueue] = []

    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        seen = Seen()
        async with member("g", s.namesrv, "one", seen, on_lost=lost.extend) as consumer:
            await asyncio.sleep(21)
            s.machine("broker-a").pause()
            await asyncio.sleep(42)
            s.machine("broker-a").resume()
            await asyncio.sleep(30)
            await send(s.namesrv, b"1")
            await until(lambda: seen.bodies)
            assert len(consumer.assignment) == 2
        assert not lost

    Simulation(3, brokers=1, faults=None).run(main)
