"""Starting, stopping, sharing, and the errors of calls that come too early or too late. Settings: see test_settings.py."""

from __future__ import annotations

import asyncio

import pytest

from rmq_async import Producer, errors
from rmq_async.client.instance import _instances
from rmq_async.embedded import EmbeddedRocketMQ

from ..support.fakes import TOPIC, Cluster, late, silence
from .support import Calls, Send, every_call, every_way, message, messages, outcomes, producer, spin, timed, until

pytestmark = pytest.mark.virtual_time


async def test_before_start_and_after_stop_every_call_is_refused(cluster: Cluster) -> None:
    sender = producer(cluster)
    for word in ("not started", "stopped"):
        for error in await every_call(sender):
            assert isinstance(error, errors.ClientStateError)
            assert word in str(error)
        await sender.start()
        await sender.stop()
    assert not cluster.sends


async def test_start_and_stop_may_be_called_at_any_time(cluster: Cluster) -> None:
    sender = producer(cluster)
    await sender.stop()
    await sender.aclose()
    await sender.start()
    await sender.start()
    assert "group" in repr(sender)
    await sender.send(message())
    await sender.stop()
    await sender.stop()
    await sender.start()
    await sender.send(message())
    await sender.aclose()
    assert len(cluster.sends) == 2
    assert cluster.a.unregistered == ["group", "group"]


async def test_stop_during_start(cluster: Cluster) -> None:
    for steps in range(1, 30):
        sender = producer(cluster)
        starting = asyncio.ensure_future(sender.start())
        await spin(steps)
        await sender.stop()
        (result,) = await outcomes(starting)
        assert result is None or isinstance(result, errors.ClientStateError)
        assert not _instances, steps
        for error in await every_call(sender):
            assert isinstance(error, errors.ClientStateError)


async def test_a_second_stop_waits_too(cluster: Cluster) -> None:
    cluster.a.answer = late(0.1)
    sender = producer(cluster)
    await sender.start()
    sending = asyncio.ensure_future(sender.send(message()))
    await until(lambda: cluster.sends)
    first = asyncio.ensure_future(sender.stop())
    await spin()
    with timed(0.09, 0.1):
        await sender.stop()
    assert first.done()
    assert sending.done()
    assert not _instances


async def test_two_starts_at_once(cluster: Cluster) -> None:
    sender = producer(cluster)
    assert await outcomes(sender.start(), sender.start()) == [None, None]
    await sender.send(message())
    await sender.stop()
    assert cluster.a.unregistered == ["group"]


async def test_starts_that_join_one_that_fails_get_errors_of_their_own(cluster: Cluster) -> None:
    await cluster.name_server.stop()
    sender = producer(cluster)
    first, second, third = await outcomes(sender.start(), sender.start(), sender.start())
    assert len({id(first), id(second), id(third)}) == 3
    assert {(type(error), str(error)) for error in (first, second, third)} == {(errors.NameServerError, str(first))}


async def test_a_start_that_joined_a_cancelled_one_starts(cluster: Cluster) -> None:
    for steps in range(1, 12):
        sender = producer(cluster)
        starts = [asyncio.ensure_future(sender.start()) for _ in range(3)]
        await spin(steps)
        starts[0].cancel()
        ended = await outcomes(*starts)
        assert ended[0] is None or isinstance(ended[0], asyncio.CancelledError)
        assert ended[1:] == [None, None], steps
        await sender.send(message())
        await sender.stop()
    assert not _instances


async def test_a_stop_ends_all_starts_under_way(cluster: Cluster) -> None:
    for steps in range(1, 30):
        sender = producer(cluster)
        starts = [asyncio.ensure_future(sender.start()) for _ in range(3)]
        await spin(steps)
        await sender.stop()
        for result in await outcomes(*starts):
            assert result is None or isinstance(result, errors.ClientStateError)
        assert "not started" in repr(sender) or "stopped" in repr(sender), steps
        assert not _instances, steps


async def test_stop_waits_for_what_was_accepted(cluster: Cluster) -> None:
    cluster.a.answer = late(0.1)
    sender = producer(cluster)
    await sender.start()
    sends = [asyncio.ensure_future(sender.send(item)) for item in messages(20)]
    future = await sender.send_async(message())
    await sender.send_oneway(message())
    with timed(0.05, 0.1):
        await sender.stop()
    assert future.result().attempts == 1
    assert len(await asyncio.gather(*sends)) == 20
    assert len(cluster.sends) == 22


async def test_while_it_stops_new_calls_are_refused_and_waiting_ones_too(cluster: Cluster) -> None:
    cluster.a.answer = late(0.1)
    sender = producer(cluster, async_limit=2)
    await sender.start()
    sends = [asyncio.ensure_future(sender.send(item)) for item in messages(2)]
    await until(lambda: len(cluster.sends) == 2)
    waiting = [asyncio.ensure_future(sender.send(item, key=key)) for item in messages(2) for key in (None, 1)]
    await spin(2)
    stopping = asyncio.ensure_future(sender.stop())
    await spin(3)
    for error in await outcomes(*waiting):
        assert isinstance(error, errors.ClientStateError)
        assert "stopping" in str(error)
    for error in await every_call(sender):
        assert isinstance(error, errors.ClientStateError)
    await stopping
    assert len(await asyncio.gather(*sends)) == 2


async def test_after_its_timeout_stop_ends_the_rest(cluster: Cluster) -> None:
    cluster.a.answer = silence
    sender = producer(cluster, timeout=30.0, stop_timeout=0.1)
    await sender.start()
    sends = [asyncio.ensure_future(sender.send(item)) for item in messages(10)]
    sends += [await sender.send_async(item) for item in messages(10)]  # type: ignore[misc]
    await until(lambda: len(cluster.sends) == 20)
    with timed(0.1, 0.1):
        await sender.stop()
    for error in await outcomes(*sends):
        assert isinstance(error, errors.ClientStateError)
        assert error.maybe_stored


async def test_after_its_timeout_stop_ends_keyed_calls(cluster: Cluster) -> None:
    """Those that wait in the client for the one under way were not sent, and their errors say so."""
    cluster.a.answer = silence
    sender = producer(cluster, timeout=30.0, stop_timeout=0.1)
    await sender.start()
    items = messages(20)
    sends = [asyncio.ensure_future(sender.send(item, key=1)) for item in items[:10]]
    await until(lambda: cluster.sends)
    sends += [asyncio.ensure_future(sender.send(item, key=1)) for item in items[10:]]
    await spin(5)
    with timed(0.1, 0.1):
        await sender.stop()
    (sent,) = cluster.sends
    ended = await outcomes(*sends)
    assert {type(error) for error in ended} == {errors.ClientStateError}
    assert [error.maybe_stored for error in ended] == [item.body in sent.bodies for item in items]
    assert not ended[-1].maybe_stored


@every_way(1)
async def test_stop_says_of_each_call_whether_it_may_be_stored(cluster: Cluster, send: Send) -> None:
    cluster.a.answer = silence
    sender = producer(cluster, timeout=30.0, broker_window=1)
    await sender.start()
    written = asyncio.ensure_future(send(sender))
    await until(lambda: len(cluster.sends) == 1)
    held = [asyncio.ensure_future(send(sender, **options)) for options in ({}, {"queue": cluster.queue()})]
    await asyncio.sleep(0.02)
    await sender.stop(0.0)
    failures = await outcomes(written, *held)
    assert {type(error) for error in failures} == {errors.ClientStateError}
    assert [error.maybe_stored for error in failures] == [True, False, False]
    assert "may have been stored" in str(failures[0])
    assert "before the message was stored" in str(failures[1])
    assert len(cluster.sends) == 1


async def test_stop_between_attempts_of_which_none_was_stored_says_so(cluster: Cluster) -> None:
    sender = producer(cluster, timeout=30.0, retries=9)
    await sender.start()
    await sender.fetch_publish_queues(TOPIC)
    await cluster.a.stop()
    sending = asyncio.ensure_future(sender.send(message()))
    await asyncio.sleep(0.1)
    await sender.stop(0.0)
    (error,) = await outcomes(sending)
    assert (type(error), error.maybe_stored) == (errors.ClientStateError, False)


async def test_stop_with_ten_thousand_in_flight(cluster: Cluster) -> None:
    cluster.a.answer = silence
    calls = Calls()
    sender = producer(cluster, timeout=30.0, stop_timeout=0.05)
    await sender.start()
    futures = [await sender.send_async(item, **calls.both) for item in messages(10_000)]
    with timed(0.05, 1.0):
        await sender.stop()
    assert all(future.done() for future in futures)
    assert len(calls.errors) == 10_000
    assert {type(error) for error in calls.errors} == {errors.ClientStateError}


@pytest.mark.parametrize("shared", [False, True])
async def test_stop_ends_those_who_have_not_got_to_sending(shared: bool) -> None:
    """They wait for a route, a connection or a turn; another producer keeps the client instance alive, or none does."""
    async with Cluster(1) as cluster:
        cluster.name_server.answer = silence
        neighbour = producer(cluster, "neighbour")
        if shared:
            await neighbour.start()
        sender = producer(cluster, timeout=30.0)
        await sender.start()
        sends = [asyncio.ensure_future(sender.send(item)) for item in messages(3)]
        sends += [asyncio.ensure_future(sender.send(item, key=1)) for item in messages(3)]
        sends += [asyncio.ensure_future(sender.send_batch([item])) for item in messages(3)]
        sends += [asyncio.ensure_future(sender.send_async(item)) for item in messages(3)]  # type: ignore[misc]
        sends += [asyncio.ensure_future(sender.send_oneway(item, key=1)) for item in messages(3)]  # type: ignore[misc]
        await spin(5)
        with timed(0.05, 0.05):
            await sender.stop(0.05)
        with timed(most=0.01):
            results = await outcomes(*sends)
        assert {type(error) for error in results} == {errors.ClientStateError}
        assert not any(error.maybe_stored for error in results)
        cluster.name_server.answer = None
        await asyncio.sleep(0.02)
        assert not cluster.sends
        await neighbour.stop()


async def test_a_cancelled_stop_leaves_nothing_and_takes_no_more_time(cluster: Cluster) -> None:
    cluster.a.answer = silence
    cluster.a.silent = True
    for steps in range(1, 40):
        sender = producer(cluster, timeout=30.0, stop_timeout=30.0)
        await sender.start()
        sending = asyncio.ensure_future(sender.send(message()))
        future = await sender.send_async(message())
        await spin(3)
        stopping = asyncio.ensure_future(sender.stop())
        await spin(steps)
        with timed(most=0.05):
            stopping.cancel()
            await outcomes(stopping)
        for error in await outcomes(sending, future):
            assert isinstance(error, errors.ClientStateError)
        assert not _instances


async def test_the_group_is_unregistered_at_the_end(cluster: Cluster) -> None:
    async with producer(cluster, "one") as one:
        async with producer(cluster, "two") as two:
            await one.send(message())
            await two.send(message())
            assert len(cluster.a.links) == 1
        assert cluster.a.unregistered == ["two"]
        await one.send(message())
    assert cluster.a.unregistered == ["two", "one"]
    assert len(cluster.a.links) == 1


async def test_the_same_group_twice(cluster: Cluster) -> None:
    async with producer(cluster) as sender:
        twin = producer(cluster)
        with pytest.raises(errors.ConfigError, match="share that producer, or set another instance_name"):
            await twin.start()
        await sender.send(message())
        async with producer(cluster, instance_name="another") as other:
            await other.send(message())
    async with producer(cluster) as sender:
        await sender.send(message())


async def test_start_without_a_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    sender = Producer("group")
    with pytest.raises(errors.NameServerError, match="no name server is configured"):
        await sender.start()
    with pytest.raises(errors.ClientStateError):
        await sender.send(message())


async def test_the_environment_names_the_name_server(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", cluster.namesrv)
    async with Producer("group") as sender:
        await sender.send(message())


async def test_start_with_a_name_server_that_cannot_be_reached_or_does_not_answer(cluster: Cluster) -> None:
    cluster.name_server.serve = lambda link, command: None  # type: ignore[method-assign]
    sender = producer(cluster, request_timeout=0.2)
    with timed(0.15, 0.2), pytest.raises(errors.NameServerError, match=cluster.namesrv):
        await sender.start()
    assert not _instances
    await cluster.name_server.stop()
    with timed(most=0.2), pytest.raises(errors.NameServerError, match=cluster.namesrv):
        await sender.start()
    del cluster.name_server.serve  # type: ignore[method-assign]
    await cluster.name_server.start()
    await sender.start()
    await sender.send(message())
    await sender.stop()


async def test_cancelling_start_leaves_nothing(cluster: Cluster) -> None:
    for steps in range(40):
        sender = producer(cluster)
        starting = asyncio.ensure_future(sender.start())
        await spin(steps)
        starting.cancel()
        (result,) = await outcomes(starting)
        if result is None:
            await sender.stop()
        assert not _instances, steps
    await sender.start()
    await sender.stop()


async def test_stop_of_an_idle_producer_waits_a_second_at_most_for_a_silent_broker() -> None:
    async with EmbeddedRocketMQ() as server:
        async with Producer("p", namesrv=server.namesrv) as sender:
            await sender.send(message())
            server.stall()
            with timed(0.9, 1.2):
                await sender.stop()
        server.resume()
