"""``send_async``: a future and exactly one callback, in every case."""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
from typing import Any

import pytest

from rmq_async import Producer, SendError, errors

from ..support.fakes import TOPIC, Cluster, each, late, refuse, silence, stored
from ..support.instances import client_of
from .support import Calls, message, messages, outcomes, producer, spin, until


async def test_the_callback_comes_before_the_waiter(cluster: Cluster) -> None:
    order: list[str] = []

    async def wait(future: asyncio.Future[Any]) -> None:
        await future
        order.append("awaited")

    async with producer(cluster) as sender:
        cluster.a.answer = late(0.01)
        future = await sender.send_async(message(), on_success=lambda result: order.append("called"))
        future.add_done_callback(lambda _: order.append("done"))
        await wait(future)
    assert order[0] == "called"
    assert sorted(order) == ["awaited", "called", "done"]


async def test_results_of_callback_and_future_are_the_same(cluster: Cluster) -> None:
    calls = Calls()
    async with producer(cluster) as sender:
        future = await sender.send_async(message(), **calls.both)
        assert isinstance(future, asyncio.Future)
        result = await future
    assert calls.results == [result]
    assert calls.results[0] is result
    assert not calls.errors


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (refuse(13), errors.MessageIllegalError),
        (refuse(1), errors.SendError),
        (silence, errors.RequestTimeoutError),
    ],
)
async def test_errors_of_callback_and_future_are_the_same(cluster: Cluster, answer: Any, kind: type[Exception]) -> None:
    calls = Calls()
    cluster.a.answer = answer
    async with producer(cluster, timeout=0.2) as sender:
        future = await sender.send_async(message(), **calls.both)
        with pytest.raises(kind) as caught:
            await future
    assert calls.errors == [caught.value]
    assert not calls.results


async def test_a_coroutine_function_is_refused_at_the_call(cluster: Cluster) -> None:
    async def coroutine(result: Any) -> None:
        raise AssertionError

    class Callable:
        async def __call__(self, result: Any) -> None:
            raise AssertionError

    async with producer(cluster) as sender:
        before = cluster.received
        for bad in (coroutine, functools.partial(coroutine), Callable(), 3):
            for name in ("on_success", "on_error"):
                with pytest.raises(TypeError, match=name):
                    await sender.send_async(message(), **{name: bad})  # type: ignore[arg-type]
        assert cluster.received == before
        assert sender.health().unanswered == 0


async def test_a_callback_that_raises_is_reported_and_harms_no_other(
    cluster: Cluster, loop_errors: list[dict[str, Any]]
) -> None:
    def bad(_: Any) -> None:
        raise ZeroDivisionError("a bug")

    async with producer(cluster) as sender:
        futures = [await sender.send_async(item, on_success=bad) for item in messages(3)]
        assert len(await asyncio.gather(*futures)) == 3
        cluster.a.answer = refuse(13)
        future = await sender.send_async(message(), on_error=bad)
        with pytest.raises(errors.MessageIllegalError):
            await future
        assert len(cluster.a.open_links) == 1, "the connection is the same"
    assert [type(context["exception"]) for context in loop_errors] == [ZeroDivisionError] * 4
    assert all("callback" in context["message"] for context in loop_errors)
    loop_errors.clear()


async def test_a_callback_that_raises_what_it_is_given(cluster: Cluster, loop_errors: list[dict[str, Any]]) -> None:
    """For a cancelled send that is a CancelledError, which is no Exception."""

    def reraise(error: BaseException) -> None:
        raise error

    cluster.a.answer = silence
    async with producer(cluster, stop_timeout=0) as sender:
        neighbour = await sender.send_async(message())
        future = await sender.send_async(message(), on_error=reraise)
        await until(lambda: len(cluster.sends) == 2)
        assert future.cancel()
        assert future.cancelled()
        assert not neighbour.done()
        assert len(cluster.a.open_links) == 1
    await outcomes(neighbour)
    assert [type(context["exception"]) for context in loop_errors] == [asyncio.CancelledError]
    loop_errors.clear()


async def test_cancelling_frees_the_place_and_calls_back_at_once(cluster: Cluster) -> None:
    calls = Calls()
    cluster.a.answer = silence
    async with producer(cluster, timeout=60) as sender:
        future = await sender.send_async(message(), **calls.both)
        connection = (await client_of(sender)).pool.open[cluster.a.address]
        await until(lambda: connection.pending == 1)  # the heartbeat is answered
        assert future.cancel()
        assert [type(error) for error in calls.errors] == [asyncio.CancelledError]
        assert connection.pending == 0
        assert sender.health().unanswered == 0
        assert not future.cancel()
        with pytest.raises(asyncio.CancelledError):
            await future
    assert calls.count == 1


async def test_cancelling_the_waiter_cancels_the_send(cluster: Cluster) -> None:
    calls = Calls()
    cluster.a.answer = silence
    async with producer(cluster) as sender:
        future = await sender.send_async(message(), **calls.both)

        async def wait() -> None:
            await future

        waiting = asyncio.ensure_future(wait())
        await spin(2)
        waiting.cancel()
        await outcomes(waiting)
        assert future.cancelled()
    assert [type(error) for error in calls.errors] == [asyncio.CancelledError]


async def test_cancelling_while_it_is_being_tried_again(cluster: Cluster) -> None:
    for steps in range(12):
        calls = Calls()
        cluster.a.answer = each(refuse(1), silence)
        cluster.a.sends.clear()
        async with producer(cluster) as sender:
            future = await sender.send_async(message(), **calls.both)
            await until(lambda: cluster.a.sends)
            await spin(steps)
            future.cancel()
            await outcomes(future)
            assert sender.health().unanswered == 0
        assert [type(error) for error in calls.errors] == [asyncio.CancelledError], steps


async def test_a_retry_that_others_cancel_before_it_begins_ends_the_send(cluster: Cluster) -> None:
    calls = Calls()
    cluster.a.answer = refuse(1)

    def retries() -> list[asyncio.Task[Any]]:
        return [task for task in asyncio.all_tasks() if task.get_name() == "rmq_async send retry"]

    async with producer(cluster) as sender:
        future = await sender.send_async(message(), **calls.both)
        while not retries():
            await spin()
        retries()[0].cancel()
        await outcomes(future)
        assert future.cancelled()
        assert sender.health().unanswered == 0
    assert [type(error) for error in calls.errors] == [asyncio.CancelledError]
    assert len(cluster.sends) == 1


async def test_a_callback_may_cancel_the_futures_its_own_included(cluster: Cluster) -> None:
    """The first answer wins a race and the others are given up: each gets one callback, and one credit goes back."""
    calls = Calls()
    futures: list[asyncio.Future[Any]] = []

    def won(result: Any) -> None:
        calls.results.append(result)
        for future in futures:
            future.cancel()

    def lost(error: BaseException) -> None:
        calls.errors.append(error)
        for future in futures:
            future.cancel()

    async with producer(cluster) as sender:
        cluster.a.answer = each(stored, silence)
        futures += [await sender.send_async(item, on_success=won, on_error=lost) for item in messages(5)]
        first, *others = await outcomes(*futures)
        assert calls.results == [first]
        assert [type(error) for error in others] == [asyncio.CancelledError] * 4
        assert calls.count == 5
        assert sender.health().unanswered == 0
        futures.clear()
        cluster.a.answer = each(refuse(13), silence)
        futures += [await sender.send_async(item, on_success=won, on_error=lost) for item in messages(5)]
        kinds = [type(error) for error in await outcomes(*futures)]
        assert kinds == [errors.MessageIllegalError] + [asyncio.CancelledError] * 4
        assert calls.count == 10
        assert sender.health().unanswered == 0


async def test_a_callback_may_send(cluster: Cluster) -> None:
    sent: list[asyncio.Task[Any]] = []

    async with producer(cluster) as sender:

        def again(_: Any) -> None:
            if len(sent) < 5:
                sent.append(asyncio.ensure_future(follow()))

        async def follow() -> None:
            await (await sender.send_async(message(b"follow"), on_success=again))

        await (await sender.send_async(message(), on_success=again))
        await until(lambda: len(sent) == 5)
        await asyncio.gather(*sent)
    assert cluster.a.bodies == [b"body", *[b"follow"] * 5]


async def test_a_callback_may_send_at_once(cluster: Cluster) -> None:
    """Within the read that brought the answer, while other frames of that read still wait to be looked at."""
    calls = Calls()
    left = 100

    async with producer(cluster, broker_window=2, async_limit=4) as sender:

        def again(result: Any) -> None:
            nonlocal left
            calls.results.append(result)
            if left:
                left -= 1
                sending = sender.send_async(message(b"%d" % left), on_success=again, on_error=calls.errors.append)
                with pytest.raises(StopIteration):
                    sending.send(None)

        await sender.send(message())
        for _ in range(4):
            await sender.send_async(message(), on_success=again, on_error=calls.errors.append)
        await until(lambda: calls.count == 104)
    assert not calls.errors
    assert [body for body in cluster.a.bodies if body != b"body"] == [b"%d" % number for number in reversed(range(100))]


async def test_a_callback_may_stop_the_producer(cluster: Cluster) -> None:
    stops: list[asyncio.Future[None]] = []
    calls = Calls()
    sender = producer(cluster)
    await sender.start()
    futures = [
        await sender.send_async(message(), on_success=lambda _: stops.append(asyncio.ensure_future(sender.stop()))),
        *[await sender.send_async(item, **calls.both) for item in messages(5)],
    ]
    await asyncio.gather(*futures)
    await asyncio.gather(*stops)
    assert len(calls.results) == 5


@pytest.mark.virtual_time
async def test_stop_calls_back_and_resolves_each_future(cluster: Cluster) -> None:
    calls = Calls()
    cluster.a.answer = silence
    sender = producer(cluster, stop_timeout=0.1)
    await sender.start()
    futures = [await sender.send_async(item, **calls.both) for item in messages(50)]
    await until(lambda: len(cluster.sends) == 50)
    cluster.a.answer = refuse(1)
    futures += [await sender.send_async(item, **calls.both) for item in messages(50)]
    await spin(3)
    await sender.stop(0.05)
    assert all(future.done() for future in futures)
    kinds = {type(error) for error in await outcomes(*futures)}
    assert kinds <= {errors.ClientStateError, errors.SendError}
    assert calls.count == len(calls.errors) == 100
    assert errors.ClientStateError in kinds


async def test_a_dropped_future_logs_nothing_when_there_is_a_callback(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    calls = Calls()
    caplog.set_level(logging.WARNING)
    cluster.a.answer = refuse(13)
    async with producer(cluster) as sender:
        for _ in range(3):
            await sender.send_async(message(), on_error=calls.errors.append)
        await until(lambda: calls.count == 3)
    assert not caplog.records


async def test_a_dropped_future_without_a_callback_is_reported_by_the_loop(
    cluster: Cluster, loop_errors: list[dict[str, Any]]
) -> None:
    cluster.a.answer = refuse(13)
    async with producer(cluster) as sender:
        await sender.send_async(message())
        await sender.flush()
    gc.collect()
    await spin(2)
    gc.collect()
    assert [type(context["exception"]) for context in loop_errors] == [errors.MessageIllegalError]
    loop_errors.clear()


@pytest.mark.virtual_time
async def test_it_waits_for_route_and_connection_and_not_for_the_answer(cluster: Cluster) -> None:
    cluster.name_server.delay = 0.05
    cluster.a.answer = late(0.2)
    async with producer(cluster) as sender:
        future = await sender.send_async(message())
        assert not future.done()
        assert sender.health().brokers["a"].connected
        assert not cluster.sends or cluster.a.answer
        await future


async def test_what_the_call_itself_raises_goes_to_no_callback(cluster: Cluster) -> None:
    calls = Calls()
    async with producer(cluster, async_limit=1, stop_timeout=0) as sender:
        bad = [
            (message(b""), {}, errors.InvalidMessageError),
            (message(topic="NOWHERE"), {}, errors.TopicNotFoundError),
            (message(), {"queue": cluster.queue()._replace(topic="OTHER")}, errors.SelectorError),
            (message(), {"key": 1.5}, errors.SelectorError),
            (message(), {"timeout": 0}, ValueError),
        ]
        for item, options, kind in bad:
            with pytest.raises(kind):
                await sender.send_async(item, **calls.both, **options)  # type: ignore[arg-type]
        cluster.a.answer = silence
        future = await sender.send_async(message(), **calls.both)
        with pytest.raises(errors.BackpressureError):
            await sender.send_async(message(), **calls.both, timeout=0.02)
        assert calls.count == 0
    assert isinstance((await outcomes(future))[0], errors.ClientStateError)
    assert calls.count == 1


@pytest.mark.virtual_time
async def test_retries_of_its_own(cluster: Cluster) -> None:
    cluster.a.answer = each(refuse(1), refuse(1), refuse(1), stored)
    async with producer(cluster, retries=0, async_retries=3) as sender:
        assert (await (await sender.send_async(message()))).attempts == 4
    cluster.a.answer = refuse(1)
    async with producer(cluster, retries=3, async_retries=0) as sender:
        with pytest.raises(errors.BrokerSystemError):
            await (await sender.send_async(message()))


async def test_it_needs_no_one_to_await_it(cluster: Cluster) -> None:
    async with Producer("group", namesrv=cluster.namesrv) as sender:
        for item in messages(100):
            await sender.send_async(item)
    assert sorted(cluster.a.bodies) == [item.body for item in messages(100)]
    assert {sent.queue.topic for sent in cluster.sends} == {TOPIC}


@pytest.mark.virtual_time
async def test_a_connection_that_closed_unnoticed_costs_an_asynchronous_send_no_credit(cluster: Cluster) -> None:
    async with producer(cluster, async_retries=0) as sender:
        await sender.send(message())
        connection = (await client_of(sender)).pool.open[cluster.a.address]
        connection.requests.is_open = False
        accepted = await sender.send_async(message(), timeout=0.2)
        with pytest.raises(SendError) as caught:
            await accepted
        assert {type(attempt.error) for attempt in caught.value.attempts} == {errors.ConnectionLostError}
        connection.requests.is_open = True
        assert sender.health().unanswered == 0
