"""Hooks around the calls of handlers."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest

from rmq_async import ConfigError, Consumer, DeadLetter, Delivery, Hook, MessageExt, Outcome, Retry
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.testing.simulation import Simulation
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode

from .support import Seen, create, member, reader, send, until

pytestmark = pytest.mark.virtual_time

TENANT: ContextVar[str] = ContextVar("tenant", default="")


class Noting(Hook):
    """Notes its calls with what it sees."""

    def __init__(self, name: str = "", notes: list[tuple[Any, ...]] | None = None) -> None:
        self.name = name
        self.notes: list[tuple[Any, ...]] = [] if notes is None else notes

    def before_consume(self, delivery: Delivery) -> None:
        delivery.values[self] = delivery.state
        self.notes.append((f"{self.name}before", delivery.messages[0].body, delivery.attempt, delivery.state, delivery.outcome))

    @property
    def taken(self) -> list[tuple[Any, ...]]:
        """The notes, which it forgets then."""
        notes, self.notes = self.notes, []
        return notes

    def after_consume(self, delivery: Delivery) -> None:
        assert delivery.values.pop(self) == "running"
        assert delivery.elapsed is not None
        error = type(delivery.error).__name__ if delivery.error is not None else None
        body, attempt = delivery.messages[0].body, delivery.attempt
        self.notes.append((f"{self.name}after", body, attempt, delivery.state, delivery.outcome, error))


async def test_hooks_see_each_call_in_their_order_with_its_outcome() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        notes: list[tuple[Any, ...]] = []

        async def work(message: MessageExt) -> None:
            notes.append(("handler", message.body))
            if message.body == b"again" and not message.reconsume_times:
                raise ValueError
            if message.body == b"dead":
                raise DeadLetter

        hooks = [Noting("1 ", notes), Noting("2 ", notes)]
        async with member("g", server.namesrv, "one", work, hooks=hooks, retry=Retry(delays=(1,))) as consumer:
            for body, calls in ((b"fine", 1), (b"again", 2), (b"dead", 1)):
                await send(server.namesrv, body)
                await consumer.wait_settled(calls)

        def around(body: bytes, attempt: int, outcome: Outcome, error: str | None) -> list[tuple[Any, ...]]:
            return [
                *[(f"{name} before", body, attempt, "running", None) for name in (1, 2)],
                ("handler", body),
                *[(f"{name} after", body, attempt, "finished", outcome, error) for name in (1, 2)],
            ]

        assert notes == [
            *around(b"fine", 1, Outcome.DONE, None),
            *around(b"again", 1, Outcome.RETRIED, "ValueError"),
            *around(b"again", 2, Outcome.DONE, None),
            *around(b"dead", 1, Outcome.DEAD_LETTERED, "DeadLetter"),
        ]


@pytest.mark.parametrize("plain", [False, True])
async def test_handler_sees_the_context_of_before_consume_and_hooks_see_frames(plain: bool) -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        seen: list[str] = []
        errors: list[BaseException] = []

        class Tenants(Hook):
            def before_consume(self, delivery: Delivery) -> None:
                TENANT.set(delivery.messages[0].tags or "")
                assert delivery.group == "g"

            def after_consume(self, delivery: Delivery) -> None:
                assert TENANT.get() == delivery.messages[0].tags
                assert delivery.error is not None
                errors.append(delivery.error)
                frame = delivery.error.__traceback__
                while frame is not None and frame.tb_next is not None:
                    frame = frame.tb_next
                assert frame is not None
                seen.append(frame.tb_frame.f_code.co_name)

        async def work(message: MessageExt) -> None:
            seen.append(TENANT.get())
            raise ValueError

        def plain_work(message: MessageExt) -> None:
            seen.append(TENANT.get())
            raise ValueError

        async with member("g", server.namesrv, "one", plain_work if plain else work, hooks=[Tenants()]) as consumer:
            await send(server.namesrv, b"x", tags="blue")
            await consumer.wait_settled(1)
            await until(lambda: len(seen) == 2)
        assert seen == ["blue", "plain_work" if plain else "work"]
        assert errors[0].__traceback__ is None


async def test_errors_of_hooks_change_nothing_and_are_reported_when_their_number_doubles() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        reports: list[str] = []
        loop = asyncio.get_running_loop()
        kept = loop.get_exception_handler()
        loop.set_exception_handler(lambda _, context: reports.append(f"{context['message']}: {context['exception']!r}"))

        class Fails(Hook):
            def before_consume(self, delivery: Delivery) -> None:
                raise asyncio.CancelledError

            def after_consume(self, delivery: Delivery) -> None:
                raise ValueError("of a hook")

        later = Noting()
        async with member("g", server.namesrv, "one", Seen(), hooks=[Fails(), later]) as consumer:
            await send(server.namesrv, *[b"%d" % number for number in range(5)])
            settled = await consumer.wait_settled(5)
            await until(lambda: len(later.notes) == 10)
        loop.set_exception_handler(kept)
        assert [each.outcome for each in settled] == [Outcome.DONE] * 5
        counts = [text.partition(" raised, ")[2].partition(" ")[0] for text in reports]
        assert counts == ["", "", "2", "2", "4", "4"]
        assert "Fails.before_consume" in reports[0]
        assert "CancelledError()" in reports[0]
        assert "ValueError('of a hook')" in reports[1]


def test_hooks_see_calls_that_time_out_and_calls_that_a_stop_ends() -> None:
    async def main(s: Simulation) -> None:
        await create(s.namesrv)
        hook = Noting()
        consumer = Consumer("g", namesrv=s.namesrv, hooks=[hook], handover_timeout=1.0, retry=Retry(delays=(1,)))
        began: list[bytes] = []

        async def work(message: MessageExt) -> None:
            began.append(message.body)
            await asyncio.sleep(3600)

        consumer.subscribe("T", work, timeout=2.0)
        await consumer.start()
        await send(s.namesrv, b"x")
        await consumer.wait_settled(1)
        await until(lambda: len(began) == 2, 30)
        await consumer.stop()
        assert hook.notes == [
            ("before", b"x", 1, "running", None),
            ("after", b"x", 1, "finished", Outcome.RETRIED, "HandlerTimeoutError"),
            ("before", b"x", 2, "running", None),
            ("after", b"x", 2, "finished", Outcome.ABANDONED, None),
        ]

    Simulation(1, brokers=1, faults=None).run(main)


async def test_request_methods_see_the_requests_of_the_consumer() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        codes: set[int] = set()

        class Requests(Hook):
            def before_request(self, address: str, command: RemotingCommand) -> None:
                codes.add(command.code)

        async with member("g", server.namesrv, "one", Seen(), hooks=[Requests()]) as consumer:
            await send(server.namesrv, b"x")
            await consumer.wait_settled(1)
        assert {RequestCode.HEART_BEAT, RequestCode.PULL_MESSAGE, RequestCode.UPDATE_CONSUMER_OFFSET} <= codes
        codes.clear()
        async with member("g", server.namesrv, "one", Seen()):
            pass
        assert not codes


async def test_hooks_see_each_step_by_hand_with_its_outcome() -> None:
    """Those of an iteration, of ``receive``, of marks, and what goes back into the buffer."""
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        hook = Noting()
        async with reader(server.namesrv, start_from="earliest", hooks=[hook], retry=Retry(delays=(1,))) as consumer:
            await send(server.namesrv, b"1", b"2", b"3", b"4", b"5")
            iterator = aiter(consumer)
            assert (await anext(iterator)).body == b"1"
            assert hook.taken == [("before", b"1", 1, "running", None)]
            assert (await anext(iterator)).body == b"2"
            await iterator.aclose()
            assert hook.taken == [
                ("after", b"1", 1, "finished", Outcome.DONE, None),
                ("before", b"2", 1, "running", None),
                ("after", b"2", 1, "finished", None, None),
            ]
            batch = await consumer.receive(3)
            assert await consumer.retry(batch[0], 1.0)
            assert await consumer.dead_letter(batch[1])
            assert hook.taken == [("before", b"2", 1, "running", None)]
            assert consumer.done(batch[2])
            assert hook.taken == [("after", b"2", 1, "finished", Outcome.DEAD_LETTERED, "DeadLetter")]
            batches = consumer.batches(2, wait=5.0)
            marked = await anext(batches)
            assert {message.body for message in marked} == {b"5", b"2"}
            marked.mark_retry(marked[0], 1.0)
            (again,) = await anext(batches)
            attempt = marked[0].reconsume_times + 1
            assert hook.taken == [
                ("before", again.body, 2, "running", None),
                ("after", again.body, 2, "finished", Outcome.RETRIED, "RetryLater"),
                ("before", again.body, attempt + 1, "running", None),
            ]
        assert hook.taken == [("after", again.body, attempt + 1, "finished", None, None)]


def test_hooks_see_messages_that_were_in_hand_for_too_long() -> None:
    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        hook = Noting()
        consumer = reader(s.namesrv, start_from="earliest", hooks=[hook])
        consumer.subscriptions[0].timeout = 10.0
        async with consumer:
            await send(s.namesrv, b"1")
            await consumer.receive(1)
            await consumer.wait_settled(1, timeout=20.0)
        assert hook.taken[1:] == [("after", b"1", 1, "finished", Outcome.RETRIED, "HandlerTimeoutError")]

    Simulation(3, brokers=1, faults=None).run(main)


async def test_context_of_hooks_by_hand_is_one_of_their_own() -> None:
    """What one step sets there is there at its end, in any task, and not in the caller."""
    ends: list[str] = []

    class Tenant(Hook):
        def before_consume(self, delivery: Delivery) -> None:
            delivery.values[self] = TENANT.set(delivery.messages[0].body.decode())

        def after_consume(self, delivery: Delivery) -> None:
            ends.append(TENANT.get())
            TENANT.reset(delivery.values.pop(self))

    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        async with reader(server.namesrv, start_from="earliest", hooks=[Tenant()]) as consumer:
            await send(server.namesrv, b"one", b"two")
            first, second = await consumer.receive(1), await consumer.receive(1)
            assert not TENANT.get()

            async def settle() -> None:
                assert consumer.done(*first, *second)

            await asyncio.create_task(settle())
    assert ends == ["one", "two"]


def test_hooks_are_checked() -> None:
    with pytest.raises(ConfigError, match="hooks must be a sequence of Hook objects"):
        Consumer("g", hooks=Noting())  # type: ignore[arg-type]

    class Awaits(Hook):
        async def after_consume(self, delivery: Delivery) -> None:
            """Is refused."""

    with pytest.raises(ConfigError, match=r"after_consume\(\) of hook .* must be a plain function"):
        Consumer("g", hooks=[Awaits()])
