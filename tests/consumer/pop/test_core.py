"""Leases: who asks for what, and never twice. The broker is a list of what was asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rmq_async import machine
from rmq_async.consumer.held_queue import HeldQueue
from rmq_async.consumer.pop import acks
from rmq_async.consumer.pop.acks import Lease, LeaseState
from rmq_async.consumer.pop.core import PopCore
from rmq_async.consumer.pop.pop_requests import Changed, Popped, Wanted
from rmq_async.consumer.subscription import Subscription
from rmq_async.consumer.supervisor import Supervisor
from rmq_async.errors import ConnectError, ConnectionLostError, RequestTimeoutError, RocketMQError, SystemBusyError
from rmq_protocol.message import MessageExt, MessageQueue
from rmq_protocol.pop import ExtraInfo

from ...support.waiting import limit

pytestmark = pytest.mark.virtual_time


async def handler(message: MessageExt) -> None:
    """Never called here."""


SUBSCRIPTION = Subscription("T", handler)
UNANSWERED = RequestTimeoutError("no answer", maybe_stored=True)


class Broker:
    """Stands for Requests. ``answers``: errors of the next changes, in their order; None for an answer. ``refusals``: of acks."""

    def __init__(self) -> None:
        self.pops: list[Wanted] = []
        self.acks: list[list[int]] = []
        self.acked: list[ExtraInfo] = []
        self.changes: list[tuple[ExtraInfo, int, bool]] = []
        self.answers: list[RocketMQError | None] = []
        self.refusals: list[RocketMQError] = []
        self.bugs: list[Exception] = []
        self.ack_takes = 0.0
        self.with_each_ack: Callable[[], None] | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.ahead = 1_000_000_000_000
        self.says_time = True

    def now(self) -> int:
        return self.ahead + round(machine.monotonic() * 1000)

    async def pop(self, wanted: Wanted) -> Popped:
        self.pops.append(wanted)
        sent = machine.monotonic()
        messages = [MessageExt("T", b"", queue=MessageQueue("T", "b", 0), queue_offset=at) for at in range(wanted.messages)]
        now = self.now()
        handles = [ExtraInfo(0, now, wanted.invisible_ms, 0, "0", "b", 0, at) for at in range(wanted.messages)]
        return Popped(
            messages, handles, (), (), False, 0, now if self.says_time else 0, wanted.invisible_ms, sent, machine.monotonic()
        )

    async def acknowledge(self, broker: str, handles: Sequence[tuple[str, ExtraInfo]], timeout: float) -> None:
        if self.bugs:
            raise self.bugs.pop(0)
        if self.refusals:
            raise self.refusals.pop(0)
        if self.ack_takes:
            await asyncio.sleep(self.ack_takes)
        if self.with_each_ack is not None:
            self.with_each_ack()
        self.acks.append([handle.msg_queue_offset or 0 for _, handle in handles])
        self.acked += [handle for _, handle in handles]

    async def change(self, topic: str, handle: ExtraInfo, invisible_ms: int, timeout: float, *, suspend: bool) -> Changed:
        self.changes.append((handle, invisible_ms, suspend))
        await self.gate.wait()
        if self.answers and (error := self.answers.pop(0)) is not None:
            raise error
        now = machine.monotonic()
        offset = handle.msg_queue_offset or 0
        new = handle._replace(ck_queue_offset=offset, pop_time=self.now(), invisible_time=invisible_ms)
        return Changed(new, invisible_ms, now, now)


class Core(PopCore):
    """With what stands around it."""

    broker: Broker

    async def take(self, count: int = 1) -> list[Lease]:
        held = HeldQueue(MessageQueue("T", "b", -1), MessageQueue("T", "b", -1), SUBSCRIPTION, 0)
        popped = await self.receive("T", "b", SUBSCRIPTION, count, 5.0)
        return [lease for lease in self.leases(held, "T", popped) if lease is not None]


@asynccontextmanager
async def core(invisible: float = 60.0, max_lease: float = 3600.0, *, renew: bool = False) -> AsyncIterator[Core]:
    supervisor, broker = Supervisor(), Broker()
    found = Core(broker, supervisor, invisible, max_lease, lambda leases: leases)  # type: ignore[arg-type]
    found.broker = broker
    if renew:
        supervisor.run("renewal", found.renew)
    try:
        yield found
    finally:
        await supervisor.close()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(limit(5)):
        while not condition():
            await asyncio.sleep(0.001)


async def test_first_pop_asks_for_the_time_and_is_not_held() -> None:
    async with core() as c:
        await c.take()
        assert c.broker.pops[0].poll_ms == 0
        await c.take()
        wanted = c.broker.pops[1]
        assert wanted.poll_ms == 5000
        assert abs(wanted.born_ms - c.broker.now()) < 1000  # by the broker's clock, which is years from ours
        c.doubt_clock("b")
        await c.take()
        assert c.broker.pops[2].poll_ms == 0


async def test_broker_with_a_clock_far_ahead_is_asked_with_a_later_date() -> None:
    async with core() as c:
        c.broker.says_time = False
        await c.take()
        await c.take()
        first, second = (wanted.born_ms for wanted in c.broker.pops)
        assert second - first > 86_400_000


async def test_acks_are_gathered() -> None:
    async with core() as c:
        leases = await c.take(32)
        for lease in leases[:31]:
            c.ack(lease)
        await asyncio.sleep(0)
        assert c.broker.acks == []
        c.ack(leases[31])
        await until(lambda: c.acks.count == 32)
        assert len(c.broker.acks) == 1
        (lease,) = await c.take()
        c.ack(lease)
        await c.acks.flush()
        assert (len(c.broker.acks), c.acks.pending) == (2, 0)


async def test_acks_without_an_answer_are_sent_again() -> None:
    async with core() as c:
        c.broker.refusals = [UNANSWERED, ConnectError("refused")]
        for lease in await c.take(3):
            c.ack(lease)
        await until(lambda: c.acks.errors)
        await c.acks.flush()
        assert c.broker.acks == [[0, 1, 2]]
        assert (c.acks.lost, c.acks.errors) == (0, {})


async def test_late_ack_is_sent_once_and_not_repeated_after_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    async with core() as c:
        late, later = await c.take(2)
        late.expires = later.expires = machine.monotonic() - 10.0
        c.ack(late)
        await c.acks.flush()
        assert c.broker.acks == [[0]]
        c.broker.refusals = [UNANSWERED]
        c.ack(later)
        with pytest.raises(RequestTimeoutError):
            await c.acks.flush()
        assert (c.broker.acks, c.acks.lost) == ([[0]], 1)
        await until(lambda: not c.acks.errors)  # nothing waits that the error could keep


async def test_flush_ends_under_steady_load() -> None:
    async with core() as c:
        leases = await c.take(200)
        c.broker.with_each_ack = lambda: c.ack(leases.pop())  # there is always something to send
        c.ack(leases.pop())
        async with asyncio.timeout(1):
            await c.acks.flush()
        assert c.acks.pending
        c.broker.with_each_ack = None


async def test_cancelled_flush_leaves_acks_to_be_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acks, "GATHER_TIME", 0.3)
    async with core() as c:
        first, second, third = await c.take(3)
        c.broker.ack_takes = 0.02
        c.ack(first)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await c.acks.flush()
        await until(lambda: not c.acks.pending)
        c.ack(second)
        for _ in range(10):
            await asyncio.sleep(0)
        c.ack(third)
        await until(lambda: not c.acks.pending)
        assert c.broker.acks == [[0], [1, 2]]


async def test_acks_go_on_after_an_error_that_none_expects(caplog: pytest.LogCaptureFixture) -> None:
    async with core() as c:
        c.broker.bugs = [KeyError("a bug")]
        leases = await c.take(3)
        for lease in leases:
            c.ack(lease)
        await until(lambda: c.acks.errors)
        assert "a bug" in c.acks.errors["b"]
        await c.acks.flush()
        assert c.broker.acks == [[0, 1, 2]]
        assert (c.acks.lost, c.acks.errors, c.acks.pending) == (0, {}, 0)
        assert "acks to b failed and is restarted" in caplog.text


async def test_ack_during_a_change_waits_for_the_new_handle() -> None:
    async with core() as c:
        (lease,) = await c.take()
        c.broker.gate.clear()
        extension = asyncio.create_task(c.extend(lease))
        await until(lambda: c.broker.changes)
        c.ack(lease)
        await c.acks.flush()
        assert c.broker.acks == []
        c.broker.gate.set()
        assert await extension
        await until(lambda: c.broker.acked)
        assert c.broker.acked[0] == lease.handle != c.broker.changes[0][0]


async def test_ack_after_a_change_without_an_answer_names_the_old_handle() -> None:
    async with core() as c:
        (lease,) = await c.take()
        old, c.broker.answers = lease.handle, [UNANSWERED]
        assert not await c.extend(lease)
        assert (lease.state, c.unsure) == (LeaseState.ADRIFT, 1)
        assert not await c.extend(lease)  # it is never changed again
        c.ack(lease)
        await c.acks.flush()
        assert (c.broker.acked, len(c.broker.changes)) == ([old], 1)


@pytest.mark.parametrize("error", [UNANSWERED, ConnectionLostError("lost", maybe_stored=True)])
async def test_nack_without_an_answer_is_not_repeated(error: RocketMQError) -> None:
    async with core() as c:
        (lease,) = await c.take()
        c.broker.answers = [error]
        assert not await c.nack(lease, 1.0)
        assert (lease.state, len(c.broker.changes)) == (LeaseState.OVER, 1)
        c.ack(lease)
        assert not await c.nack(lease, 1.0)
        await c.acks.flush()
        assert (len(c.broker.changes), c.broker.acks) == (1, [])


@pytest.mark.parametrize("error", [ConnectError("refused"), SystemBusyError("busy"), ConnectionLostError("lost")])
async def test_nack_that_was_not_done_is_repeated(error: RocketMQError) -> None:
    async with core() as c:
        (lease,) = await c.take()
        c.broker.answers = [error]
        assert await c.nack(lease, 90.0)
        assert len(c.broker.changes) == 2
        assert 90_000 <= c.broker.changes[1][1] <= 99_000  # never sooner than asked for
        assert not c.broker.changes[1][2]


async def test_nack_during_an_extension_changes_the_new_handle() -> None:
    async with core() as c:
        (lease,) = await c.take()
        c.broker.gate.clear()
        extension = asyncio.create_task(c.extend(lease))
        await until(lambda: c.broker.changes)
        nack = asyncio.create_task(c.nack(lease, 1.0, suspend=True))
        await asyncio.sleep(0.01)
        assert len(c.broker.changes) == 1
        c.broker.gate.set()
        assert [await extension, await nack] == [True, True]
        assert c.broker.changes[1][0] != c.broker.changes[0][0]
        assert c.broker.changes[1][2]


async def test_change_never_follows_an_ack() -> None:
    async with core() as c:
        (lease,) = await c.take()
        c.ack(lease)
        assert not await c.extend(lease)
        assert not await c.nack(lease, 1.0)
        assert c.broker.changes == []


async def test_nack_of_an_expired_lease_asks_for_nothing() -> None:
    async with core() as c:
        (lease,) = await c.take()
        lease.expires = machine.monotonic() - 0.001
        assert not await c.nack(lease, 1.0)
        assert c.broker.changes == []


async def test_held_leases_are_extended_again_and_again() -> None:
    async with core(0.3, renew=True) as c:
        leases = await c.take(3)
        c.ack(leases[0])
        await until(lambda: c.extended >= 6)
        assert {handle.msg_queue_offset for handle, _, _ in c.broker.changes} == {1, 2}
        for lease in leases:
            c.ack(lease)
        await c.acks.flush()
        await asyncio.sleep(0)
        count = len(c.broker.changes)
        await asyncio.sleep(0.4)
        assert len(c.broker.changes) == count
        assert (c.expired, c.unsure) == (0, 0)


async def test_leases_of_many_pops_are_extended_together() -> None:
    async with core(1.0, renew=True) as c:
        spawn, started = c.spawn, list[str]()

        def count(name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
            started.append(name)
            return spawn(name, work)

        c.spawn = count  # type: ignore[method-assign]
        leases = [lease for _ in range(300) for lease in await c.take()]
        for lease in leases[:100]:
            c.ack(lease)
        await until(lambda: c.extended == 200)
        assert 1 <= len(started) < 30
        for lease in leases:
            c.ack(lease)


async def test_leases_are_extended_up_to_the_longest() -> None:
    async with core(0.2, 0.5, renew=True) as c:
        (lease,) = await c.take()
        await until(lambda: c.extended)
        await asyncio.sleep(0.8)
        assert 1 <= c.extended <= 3
        c.ack(lease)  # late, and sent all the same
        await c.acks.flush()
        assert c.acks.count == 1


async def test_extension_that_was_not_done_is_tried_until_the_lease_ends() -> None:
    async with core(0.6, renew=True) as c:
        (lease,) = await c.take()
        c.broker.answers = [ConnectError("refused")] * 50
        await until(lambda: c.expired)
        assert 1 <= len(c.broker.changes) < 10
        assert lease.state is LeaseState.HELD
