"""``on_assigned``, ``on_revoked``, ``on_released`` and ``on_lost``."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, Literal

import pytest

from rmq_async import Admin, Consumer, Message, MessageExt, MessageQueue, Producer, QueueLostError
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.testing.simulation import Simulation

from .support import Seen, create, member, send, until

pytestmark = pytest.mark.virtual_time

KINDS: Final = ("on_assigned", "on_revoked", "on_released", "on_lost")
Kind = Literal["on_assigned", "on_revoked", "on_released", "on_lost"]
ALL = frozenset({*(MessageQueue("T", "broker-a", number) for number in range(4)), MessageQueue("%RETRY%g", "broker-a", 0)})
USER: ContextVar[str] = ContextVar("user", default="")


class Calls:
    """Callbacks that note their calls, and those of handlers. ``works``: awaited in a callback of that kind."""

    def __init__(self, **works: Callable[[frozenset[MessageQueue]], Any]) -> None:
        self.events: list[tuple[str, frozenset[MessageQueue]]] = []
        self.works = works
        self.options: dict[str, Any] = {kind: functools.partial(self.called, kind) for kind in KINDS}

    async def called(self, kind: str, queues: frozenset[MessageQueue]) -> None:
        self.events.append((kind, queues))
        if kind in self.works:
            await self.works[kind](queues)
        self.events.append((f"{kind} ended", queues))

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.events]

    def of(self, kind: str) -> list[frozenset[MessageQueue]]:
        return [queues for found, queues in self.events if found == kind]


async def test_callbacks_come_before_the_first_pull_and_around_the_drain() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        calls, began = Calls(), asyncio.Event()
        calls.works = {
            "on_assigned": lambda _: asyncio.sleep(0.2),
            "on_released": lambda _: noted(f"committed {sum(server.progress('g').values())}"),
        }

        async def noted(event: str) -> None:
            calls.events.append((event, frozenset()))

        async def work(message: MessageExt) -> None:
            await noted("handler began")
            began.set()
            await asyncio.sleep(0.2)
            await noted("handler ended")

        await send(server.namesrv, b"x")
        async with member("g", server.namesrv, "one", work, start_from="earliest", **calls.options):
            await began.wait()
        assert calls.of("on_assigned") == calls.of("on_revoked") == [ALL]
        assert frozenset().union(*calls.of("on_released")) == ALL
        kinds = calls.kinds
        assert kinds[:5] == ["on_assigned", "on_assigned ended", "handler began", "on_revoked", "on_revoked ended"]
        assert kinds.index("handler ended") < kinds.index("committed 1")
        assert [kind for kind in kinds if kind.startswith("on_") and not kind.endswith("ended")][2:] == (
            ["on_released"] * len(calls.of("on_released"))
        )


async def test_on_released_comes_when_another_member_can_have_the_queues() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        events: list[tuple[str, str, frozenset[MessageQueue]]] = []

        def options(name: str) -> dict[str, Any]:
            return {kind: functools.partial(noted, name, kind) for kind in KINDS}

        def noted(name: str, kind: str, queues: frozenset[MessageQueue]) -> None:
            events.append((name, kind, queues))

        async with member("g", server.namesrv, "one", Seen(), **options("one")):
            assert events == [("one", "on_assigned", ALL)]
            async with member("g", server.namesrv, "two", Seen(), **options("two")) as two:
                await until(lambda: len(two.assignment) == 2)
                assert {(name, kind) for name, kind, _ in events[1:]} == {
                    ("one", "on_revoked"),
                    ("one", "on_released"),
                    ("two", "on_assigned"),
                }
                of = {
                    key: frozenset().union(*(queues for *found, queues in events[1:] if tuple(found) == key))
                    for key in {(name, kind) for name, kind, _ in events[1:]}
                }
                assert of["one", "on_revoked"] == of["one", "on_released"] == of["two", "on_assigned"] == two.assignment
                assert events[1][:2] == ("one", "on_revoked")
        assert {kind for _, kind, _ in events} == {"on_assigned", "on_revoked", "on_released"}


async def test_queue_stays_with_its_member_while_on_revoked_runs() -> None:
    over = asyncio.Event()
    calls = Calls(on_revoked=lambda _: over.wait())
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        async with member("g", server.namesrv, "one", Seen(), handover_timeout=20.0, **calls.options):
            async with member("g", server.namesrv, "two", Seen()) as two:
                await until(lambda: "on_revoked" in calls.kinds)
                await asyncio.sleep(5.0)
                assert two.assignment == frozenset()
                over.set()
                await until(lambda: len(two.assignment) == 2)
            assert calls.kinds.index("on_revoked ended") < calls.kinds.index("on_released")


async def test_seek_in_on_assigned_works_before_the_first_pull_and_during_start() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        await send(server.namesrv, *[b"%d" % number for number in range(20)])
        states: list[str] = []

        async def jump(queues: frozenset[MessageQueue]) -> None:
            states.append(repr(consumer))
            await asyncio.gather(*[consumer.seek(queue, "latest") for queue in queues if queue.topic == "T"])
            assert {await consumer.committed(queue) for queue in queues if queue.topic == "T"} == {5}

        seen = Seen()
        consumer = member("g", server.namesrv, "one", seen, start_from="earliest", on_assigned=jump)
        async with consumer:
            await send(server.namesrv, b"new")
            await consumer.wait_settled(1)
            await consumer.wait_idle()
        assert states == ["<Consumer g starting>"]
        assert dict(seen.bodies) == {b"new": 1}


@pytest.mark.parametrize("kind", ["on_revoked", "on_released"])
async def test_commit_in_a_callback_of_the_end_writes(kind: str) -> None:
    """It waits neither for handlers nor for the release that waits for the callback."""
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        queue, began, found = MessageQueue("T", "broker-a", 0), asyncio.Event(), []

        async def commits(queues: frozenset[MessageQueue]) -> None:
            if queue in queues:
                await asyncio.wait_for(consumer.commit(), 1)
                found.append(server.progress("g")[queue])
                if kind == "on_revoked":
                    found.append(consumer.position(queue))
                    assert queue not in consumer.assignment
                with pytest.raises(QueueLostError):
                    await consumer.seek(queue, 0)

        async def work(message: MessageExt) -> None:
            if message.body == b"slow":
                began.set()
                await asyncio.sleep(0.5)

        consumer = member("g", server.namesrv, "one", work, start_from="earliest", commit_interval=60, **{kind: commits})
        async with consumer:
            await send(server.namesrv, b"1", b"slow")
            await began.wait()
            await consumer.wait_settled(1)
        assert found == ([1, 1] if kind == "on_revoked" else [2])


async def test_errors_of_callbacks_are_logged_and_the_handover_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)

        def fails(queues: frozenset[MessageQueue]) -> None:
            raise ValueError("of a callback")

        async def is_cancelled(queues: frozenset[MessageQueue]) -> None:
            raise asyncio.CancelledError

        options: dict[str, Any] = {"on_assigned": fails, "on_revoked": is_cancelled, "on_released": fails}
        seen = Seen()
        async with member("g", server.namesrv, "one", seen, **options) as consumer:
            await send(server.namesrv, b"x")
            await consumer.wait_settled(1)
        errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
        assert errors
        assert all("fails raised for" in error and "; the handover continues" in error for error in errors)
        assert errors[0].startswith("on_assigned ")
        assert "T" in errors[0]
        async with member("g", server.namesrv, "two", seen) as consumer:
            await send(server.namesrv, b"y")
            await consumer.wait_settled(1)
        assert seen.bodies == {b"x": 1, b"y": 1}


def test_callbacks_that_hang_are_cancelled_after_handover_timeout(caplog: pytest.LogCaptureFixture) -> None:
    """``on_revoked`` and the drain share that time: the next owner waits no longer."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv)
        cancelled: list[tuple[str, float]] = []
        began = 0.0

        async def hangs(kind: str, queues: frozenset[MessageQueue]) -> None:
            nonlocal began
            began = s.now
            try:
                await asyncio.sleep(3600)
            finally:
                cancelled.append((kind, round(s.now - began)))

        options: dict[str, Any] = {
            kind: functools.partial(hangs, kind) for kind in ("on_assigned", "on_revoked", "on_released")
        }
        one = member("g", s.namesrv, "one", seen := Seen(), handover_timeout=4.0, **options)
        await one.start()
        await send(s.namesrv, b"x")
        await until(lambda: seen.bodies)
        assert cancelled == [("on_assigned", 4)]
        two = member("g", s.namesrv, "two", Seen(), handover_timeout=4.0)
        joined = s.now
        await two.start()
        await until(lambda: len(two.assignment) > 0)
        assert 4.0 < s.now - joined < 5.0
        await asyncio.sleep(10)
        stopping = s.now
        await one.stop()
        assert 11.9 < s.now - stopping < 12.1
        await two.stop()
        assert {kind for kind, _ in cancelled} == {"on_assigned", "on_revoked", "on_released"}
        assert {seconds for _, seconds in cancelled} == {4}

    Simulation(3, brokers=1, faults=None).run(main)
    texts = [record.getMessage() for record in caplog.records if "the handover continues" in record.getMessage()]
    assert texts[0].startswith("on_assigned ")
    assert texts[0].endswith(
        "hangs was cancelled after 4.0 s; the handover continues; let the function return sooner, or raise handover_timeout, or "
        "during a stop, stop_timeout"
    )


async def test_stop_with_little_time_ends_callbacks_that_hang() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)

        async def hangs(queues: frozenset[MessageQueue]) -> None:
            started.append(queues)
            await asyncio.sleep(3600)

        started: list[frozenset[MessageQueue]] = []
        consumer = member("g", server.namesrv, "one", Seen(), on_revoked=hangs, on_released=hangs)
        await consumer.start()
        began = asyncio.get_running_loop().time()
        await consumer.stop(1.2)
        assert 1.2 < asyncio.get_running_loop().time() - began < 1.3
        assert len(started) >= 2


@pytest.mark.parametrize("kind", ["on_assigned", "on_revoked", "on_released"])
async def test_stop_in_a_callback_only_begins_it(kind: str) -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        returned: list[str] = []

        async def stops(queues: frozenset[MessageQueue]) -> None:
            async with asyncio.timeout(1):
                await consumer.stop()
            returned.append(repr(consumer))

        consumer = member("g", server.namesrv, "one", Seen(), **{kind: stops})
        if kind == "on_assigned":
            with pytest.raises(Exception, match="was stopped while it started"):
                await consumer.start()
            await until(lambda: repr(consumer) in ("<Consumer g stopped>", "<Consumer g not started>"))
        else:
            await consumer.start()
            await consumer.stop()
            assert repr(consumer) == "<Consumer g stopped>"
        assert returned
        assert "stopped" not in returned[0]


async def test_callbacks_see_names_without_the_namespace_and_the_context_of_start() -> None:
    async with EmbeddedRocketMQ() as server:
        async with Admin(namesrv=server.namesrv, namespace="blue") as admin:
            await admin.create_topic("T", queues=4)
        found: list[tuple[str, frozenset[MessageQueue]]] = []

        def noted(queues: frozenset[MessageQueue]) -> None:
            found.append((USER.get(), queues))
            USER.set("of the callback")

        options: dict[str, Any] = dict.fromkeys(KINDS, noted)
        USER.set("me")
        async with member("g", server.namesrv, "one", Seen(), namespace="blue", **options) as consumer:
            assert consumer.assignment == ALL
            async with Producer("p", namesrv=server.namesrv, namespace="blue") as producer:
                await producer.send(Message("T", b"x"))
        assert [user for user, _ in found] == ["me"] * len(found)
        assert [queues for _, queues in found][:2] == [ALL, ALL]
        assert frozenset().union(*[queues for _, queues in found][2:]) == ALL


def test_on_lost_comes_for_queues_that_another_member_has_taken() -> None:
    """A member that stands still for longer than its locks live finds them with another one."""
    calls = Calls()

    async def main(s: Simulation) -> None:
        await create(s.namesrv)

        async def serve() -> None:
            async with member("g", s.namesrv, "stands still", Seen(), **calls.options):
                await asyncio.Event().wait()

        machine = s.machine("service")
        machine.run(serve)
        await until(lambda: calls.of("on_assigned"))
        other = member("g", s.namesrv, "other", Seen())
        machine.pause()
        await other.start()
        await until(lambda: len(other.assignment) == 4 + 1, 300)
        machine.resume()
        await until(lambda: calls.of("on_lost"), 60)
        await asyncio.sleep(60)
        lost = frozenset().union(*calls.of("on_lost"))
        assert lost == ALL
        assert "on_released" not in calls.kinds
        assert len(calls.of("on_assigned")) > 1
        await other.stop()

    Simulation(5, brokers=1, faults=None).run(main)


def test_queue_that_is_revoked_before_on_assigned_has_ended_keeps_the_order() -> None:
    async def main(s: Simulation) -> None:
        await create(s.namesrv)
        calls = Calls(on_assigned=lambda _: asyncio.sleep(7))
        consumer = member("g", s.namesrv, "one", seen := Seen(), start_from="earliest", **calls.options)
        await send(s.namesrv, b"x")
        await consumer.start()
        assert calls.kinds == ["on_assigned"]
        await consumer.stop()
        assert calls.kinds[:4] == ["on_assigned", "on_assigned ended", "on_revoked", "on_revoked ended"]
        assert set(calls.kinds[4:]) == {"on_released", "on_released ended"}
        assert not seen.bodies

    Simulation(7, brokers=1, faults=None).run(main)


async def test_callback_is_checked() -> None:
    assert Consumer("g", on_lost=None).config.on_lost is None
    with pytest.raises(Exception, match="on_lost must be None or a function that takes a frozenset of queues, not 'x'"):
        Consumer("g", on_lost="x")  # type: ignore[arg-type]
