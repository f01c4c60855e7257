"""Ends that do not go as planned: a stop that is cancelled again and again, or has a wrong time, a handler that ends the process,
and one whose RetryLater or DeadLetter cannot be used."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
import traceback
import weakref
from datetime import timedelta
from math import inf, nan
from typing import Any

import pytest

from rmq_async import (
    ClientStateError,
    Consumer,
    DeadLetter,
    Delivery,
    Hook,
    Message,
    MessageExt,
    Outcome,
    Producer,
    Retry,
    RetryLater,
)
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode

from .support import Seen, create, send, until

MODES = pytest.mark.parametrize("mode", ["pull", "pop"])


class Watching(Hook):
    """Counts requests."""

    def __init__(self) -> None:
        self.requests = 0

    def before_request(self, address: str, command: RemotingCommand) -> None:
        self.requests += 1


async def _cancelled_again_and_again(consumer: Consumer, steps: int) -> None:
    """Begins a stop, and cancels it after so many turns of the loop, and in each later turn."""
    stop = asyncio.ensure_future(consumer.stop())
    for _ in range(steps):
        await asyncio.sleep(0)
    while not stop.done():
        stop.cancel()
        await asyncio.sleep(0)
    assert stop.cancelled()


@MODES
@pytest.mark.parametrize("steps", [1, 2, 3, 5, 8, 20])
async def test_stop_cancelled_again_and_again_leaves_nothing(mode: Any, steps: int) -> None:
    """Its handler is cancelled, and what it has registered at the client, which a producer shares, is removed."""
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        began, ended, hook = asyncio.Event(), asyncio.Event(), Watching()

        async def handle(_: MessageExt) -> None:
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        async with Producer("p", namesrv=server.namesrv):
            consumer = Consumer("g", namesrv=server.namesrv, mode=mode, start_from="earliest", hooks=[hook])
            consumer.subscribe("T", handle)
            await send(server.namesrv, b"1")
            await consumer.start()
            await asyncio.wait_for(began.wait(), 60)
            await _cancelled_again_and_again(consumer, steps)
            await asyncio.wait_for(ended.wait(), 60)
            assert not [thread for thread in threading.enumerate() if "loop watch" in thread.name]
            requests = hook.requests
            async with Consumer("other", namesrv=server.namesrv, topics="T", start_from="earliest") as other:
                (message,) = await other.receive(timeout=60)
            assert message.body == b"1"
            assert hook.requests == requests


@pytest.mark.virtual_time
async def test_stop_cancelled_during_on_revoked_begins_no_call() -> None:
    """Neither with the message behind the one whose call it has cancelled, nor later."""
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        async with Producer("p", namesrv=server.namesrv) as producer:
            queue = (await producer.fetch_publish_queues("T"))[0]
            for body, key in ((b"1", "a"), (b"behind", "a"), (b"2", "b")):
                await producer.send(Message("T", body, sharding_key=key), queue=queue)
        calls: list[bytes] = []

        async def handle(message: MessageExt) -> None:
            calls.append(message.body)
            if message.body != b"2":
                await asyncio.Event().wait()

        async def revoked(_: object) -> None:
            await asyncio.Event().wait()

        consumer = Consumer("g", namesrv=server.namesrv, broadcast=True, start_from="earliest", on_revoked=revoked)
        consumer.subscribe("T", handle, order="key")
        await consumer.start()
        await until(lambda: consumer.stats().handled == 1)
        await _cancelled_again_and_again(consumer, 3)
        await asyncio.sleep(60)
        assert calls == [b"1", b"2"]
        assert len(asyncio.all_tasks()) == 1


@pytest.mark.virtual_time
async def test_stop_cancelled_during_on_revoked_gives_nothing_back_later(caplog: pytest.LogCaptureFixture) -> None:
    """A handler fails when the tasks that give messages back have ended already."""
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        await send(server.namesrv, b"1")
        began, fails = asyncio.Event(), asyncio.Event()

        async def handle(_: MessageExt) -> None:
            began.set()
            await fails.wait()
            raise ValueError("as planned")

        async def revoked(_: object) -> None:
            await asyncio.Event().wait()

        consumer = Consumer("g", namesrv=server.namesrv, start_from="earliest", on_revoked=revoked)
        consumer.subscribe("T", handle)
        await consumer.start()
        await began.wait()
        server.refuse_give_backs(1)
        server.delay(0.4)  # of the unlocks
        stop = asyncio.ensure_future(consumer.stop())
        await asyncio.sleep(0)
        stop.cancel()
        await asyncio.sleep(0.1)
        fails.set()
        await asyncio.wait([stop])
        await asyncio.sleep(60)
        assert "attempt 1 failed" in caplog.text
        assert "not taken" not in caplog.text
        assert not server.requests[RequestCode.CONSUMER_SEND_MSG_BACK]


@MODES
async def test_stop_in_any_turn_of_a_start_ends_it(mode: Any) -> None:
    """A start that has ended by then is followed by the stop, also where two tasks ask for it."""
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        for turns in range(1, 1000):  # real time: in virtual time none passes while turns are counted
            consumer = Consumer("g", namesrv=server.namesrv, mode=mode, start_from="earliest")
            consumer.subscribe("T", Seen())
            start = asyncio.ensure_future(consumer.start())
            for _ in range(turns):
                await asyncio.sleep(0)
            is_over = start.done()
            await asyncio.gather(consumer.stop(), consumer.stop())
            assert repr(consumer) in ("<Consumer g stopped>", "<Consumer g not started>"), turns
            assert is_over or isinstance((await asyncio.gather(start, return_exceptions=True))[0], ClientStateError | None)
            if is_over:
                break
        assert is_over


@pytest.mark.virtual_time
@MODES
async def test_stop_with_a_wrong_time_in_a_handler_changes_nothing(mode: Any) -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        consumer = Consumer("g", namesrv=server.namesrv, mode=mode, start_from="earliest")
        errors: list[ValueError] = []

        async def handle(message: MessageExt) -> None:
            if message.body == b"1":
                try:
                    await consumer.stop(-1)
                except ValueError as error:
                    errors.append(error)

        consumer.subscribe("T", handle)
        async with consumer:
            for body in (b"1", b"2"):
                await send(server.namesrv, body)
                await consumer.wait_settled(1)
            assert consumer.health().ready
        assert len(errors) == 1
        assert "timeout must be at least 0 seconds, not -1" in str(errors[0])


@pytest.mark.parametrize("order", [None, "queue"])
@pytest.mark.parametrize("how", ["at once", "later", "in a thread"])
def test_handler_that_exits_the_process_holds_no_stop_up(how: str, order: Any) -> None:
    """Its message stays uncommitted."""
    servers: list[EmbeddedRocketMQ] = []
    seconds: list[float] = []

    async def later(_: MessageExt) -> None:
        if how == "later":
            await asyncio.sleep(0.01)
        sys.exit(3)

    def plain(_: MessageExt) -> None:
        sys.exit(3)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: None)  # no one asks for the result of the call
        async with EmbeddedRocketMQ() as server:
            servers.append(server)
            await create(server.namesrv, queues=1)
            consumer = Consumer("g", namesrv=server.namesrv, stop_timeout=600.0)
            consumer.subscribe("T", plain if how == "in a thread" else later, order=order)
            await consumer.start()
            try:
                await send(server.namesrv, b"1")
                await asyncio.sleep(600)
            finally:
                began = loop.time()
                await consumer.stop()
                seconds.append(loop.time() - began)

    with pytest.raises(SystemExit):
        asyncio.run(main())
    assert seconds[0] < 60
    assert sum(servers[0].progress("g").values()) == 0


class _Later(RetryLater):
    """Has no delay."""

    def __init__(self) -> None:
        Exception.__init__(self, "later")


class _Dead(DeadLetter):
    """Has no reason."""

    def __init__(self) -> None:
        Exception.__init__(self, "dead")


@pytest.mark.virtual_time
@pytest.mark.parametrize("options", [{}, {"order": "queue"}, {"batch_size": 2}, {"mode": "pop"}])
@pytest.mark.parametrize(
    "error",
    [RetryLater(timedelta(seconds=1)), RetryLater("soon"), RetryLater(nan), _Later()],  # type: ignore[arg-type]
)
async def test_retry_later_without_a_usable_delay_waits_for_the_usual_one(
    error: RetryLater, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    settings = {name: options[name] for name in options.keys() & {"mode"}}
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        consumer = Consumer("g", namesrv=server.namesrv, start_from="earliest", handover_timeout=0.1, **settings)

        async def handle(_: object) -> None:
            raise error

        consumer.subscribe("T", handle, retry=Retry(limit=3), **{name: options[name] for name in options.keys() - settings})
        async with consumer:
            await send(server.namesrv, b"1")
            (settled,) = await consumer.wait_settled(1)
            assert settled.outcome is Outcome.RETRIED
            assert consumer.stats().retried == 1
        assert (
            f"{type(error).__name__} in the handling of topic T has an invalid value; the default delay is used" in caplog.text
        )


@pytest.mark.virtual_time
@pytest.mark.parametrize("options", [{}, {"mode": "pop"}])
@pytest.mark.parametrize(("delay", "usual"), [(nan, True), (-inf, False), pytest.param(10**400, True, id="huge")])
@pytest.mark.parametrize("error", [ValueError("x"), RetryLater()])
async def test_function_of_delays_that_returns_no_time(
    error: Exception, delay: float, usual: bool, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The message is delivered again all the same, and the log names the function, not the RetryLater without a delay."""
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        consumer = Consumer("g", namesrv=server.namesrv, start_from="earliest", handover_timeout=0.1, **options)

        async def handle(_: object) -> None:
            raise error

        consumer.subscribe("T", handle, retry=Retry(limit=3, delays=lambda attempt: delay))
        async with consumer:
            await send(server.namesrv, b"1")
            (settled,) = await consumer.wait_settled(1)
            assert settled.outcome is Outcome.RETRIED
            assert consumer.stats().retried == 1
    assert ("Retry.delays in the handling of topic T has an invalid value; the default delay is used" in caplog.text) is usual


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (RetryLater(), ""),
        (_Later(), ""),
        (RetryLater(0.1 + 0.2), "again in 0.3 s"),
        (RetryLater(timedelta(1)), "again in datetime.timedelta(days=1)"),
    ],  # type: ignore[arg-type]
)
def test_retry_later_as_text(error: RetryLater, text: str) -> None:
    assert str(error) == text


@pytest.mark.virtual_time
@pytest.mark.parametrize("how", ["cause", "context", "group"])
async def test_error_that_is_kept_keeps_no_frames(how: str, caplog: pytest.LogCaptureFixture) -> None:
    """Hooks see the tracebacks before."""
    caplog.set_level(logging.CRITICAL, "rmq_async")  # a record keeps the traceback that it shows

    class Local:
        """A local variable of a handler."""

    locals_of_calls: weakref.WeakSet[Local] = weakref.WeakSet()
    lines: list[int] = []

    class Reading(Hook):
        def after_consume(self, delivery: Delivery) -> None:
            assert delivery.error is not None
            lines.append("".join(traceback.format_exception(delivery.error)).count("in handle\n"))

    async def handle(_: MessageExt) -> None:
        local = Local()
        locals_of_calls.add(local)
        await asyncio.sleep(0)
        try:
            raise KeyError(1)
        except KeyError as error:
            if how == "group":
                raise ExceptionGroup("several", [error]) from None
            if how == "cause":
                raise ValueError("no account") from error
            raise ValueError("no account")  # noqa: B904 - the other error is its context

    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        consumer = Consumer("g", namesrv=server.namesrv, start_from="earliest", hooks=[Reading()])
        consumer.subscribe("T", handle)
        async with consumer:
            await send(server.namesrv, b"1", b"2")
            await until(lambda: consumer.stats().failed == 2)
            gc.collect()
            assert not locals_of_calls
            assert [type(each.error).__name__ for each in await consumer.wait_settled(2)] == [
                "ExceptionGroup" if how == "group" else "ValueError"
            ] * 2
    assert lines == [2, 2]


async def test_dead_letter_without_a_reason_is_one(caplog: pytest.LogCaptureFixture) -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)

        async def work(_: MessageExt) -> None:
            raise _Dead

        consumer = Consumer("g", namesrv=server.namesrv, start_from="earliest")
        consumer.subscribe("T", Seen(work))
        async with consumer:
            await send(server.namesrv, b"1")
            await until(lambda: consumer.stats().dead_lettered == 1)
        assert [record.levelno for record in caplog.records if "dead-lettered" in record.getMessage()] == [logging.ERROR]
