"""A server that sends its clients away (1500): another connection, or another broker; what is under way is still answered."""

from __future__ import annotations

import asyncio
import logging

import pytest

from rmq_async import Admin, MessageQueue, PullConsumer, SendError, SendStatus, errors
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.errors import GoAwayError
from rmq_async.transport import CloseReason
from rmq_protocol.constants import RequestCode
from rmq_protocol.recall import RecallHandle, encode_recall_handle

from ..support.fakes import TOPIC, Cluster, Link, Sent, each, late, refuse, silence, stored
from ..support.instances import client_of
from .support import Send, every_way, message, messages, outcomes, producer, timed, until

pytestmark = pytest.mark.virtual_time


@every_way(1)
async def test_the_retry_goes_over_a_new_connection_and_the_old_one_is_drained(cluster: Cluster, send: Send) -> None:
    async with producer(cluster, timeout=5.0) as sender:
        await send(sender)
        pool = (await client_of(sender)).pool
        old = pool.get(cluster.a.address)
        assert old is not None
        cluster.a.answer = late(0.3)
        under_way = asyncio.ensure_future(send(sender))
        await until(lambda: len(cluster.sends) == 2)
        cluster.a.answer = each(refuse(1500, "please go away"), stored)
        with timed(most=0.2):
            result = await send(sender)
        assert (result.attempts, len(cluster.a.links)) == (2, 2)
        assert (old.is_open, old.retired, old.close_reason) == (False, True, None)
        assert pool.get(cluster.a.address) is not old
        assert (await under_way).attempts == 1, "what was under way is answered on the old connection"
        await until(lambda: old.close_reason is CloseReason.AWAY, 1.0)
        await until(lambda: len(cluster.a.open_links) == 1)
        assert (await send(sender)).attempts == 1


async def test_a_server_that_sends_new_connections_away_too_is_not_stormed(cluster: Cluster) -> None:
    cluster.a.answer = refuse(1500, "please go away")
    async with producer(cluster, retries=0) as sender:
        with timed(0.45, 0.5), pytest.raises(SendError, match="please go away") as caught:
            await sender.send(message(), timeout=0.5)
        attempts = [*caught.value.attempts]
        if isinstance(attempts[-1].error, errors.RequestTimeoutError):
            attempts.pop()  # the last one may find a busy machine
        else:
            assert (caught.value.code, caught.value.maybe_stored) == (1500, False)
        assert {type(attempt.error) for attempt in attempts} == {GoAwayError}
        assert 3 <= len(cluster.a.links) < 8
        loop = asyncio.get_running_loop()
        began = loop.time()
        while loop.time() - began < 0.3:
            await outcomes(*[sender.send(item, timeout=0.2) for item in messages(20)])
            await asyncio.sleep(0.02)
        assert len(cluster.a.links) < 15
        sending = asyncio.ensure_future(sender.send(message()))
        await asyncio.sleep(0.1)
        cluster.a.answer = stored
        assert (await sending).status is SendStatus.SEND_OK


async def test_a_broker_that_goes_away_under_load_costs_no_send(pair: Cluster) -> None:
    def away(link: Link, sent: Sent) -> None:
        pair.name_server.routes[TOPIC] = pair.route(pair.b)
        refuse(1500)(link, sent)

    async with producer(pair) as sender:
        await asyncio.gather(*[sender.send(item) for item in messages(8)])
        pair.a.answer = away
        results = await asyncio.gather(*[sender.send(item) for item in messages(200)])
        assert {result.queue.broker_name for result in results} == {"b"}
        assert max(result.attempts for result in results) == 2
        routes = (await client_of(sender)).routes
        await until(lambda: {queue.broker_name for queue in routes.cached(TOPIC).publish_queues} == {"b"})
        assert {result.attempts for result in await asyncio.gather(*[sender.send(item) for item in messages(20)])} == {1}
        assert len(pair.a.links) <= 2


@every_way(2)
async def test_a_queue_that_was_given_is_sent_to_until_the_broker_has_looked(cluster: Cluster, send: Send) -> None:
    async with producer(cluster) as sender:
        queue = cluster.queue()
        cluster.a.answer = each(refuse(1500), stored)
        result = await send(sender, queue=queue)
        assert (result.attempts, result.queue, len(cluster.a.links)) == (2, queue, 2)
        cluster.a.answer = each(refuse(1500), refuse(1500), stored)
        assert (await send(sender, queue=queue)).attempts == 3
        cluster.a.answer = each(refuse(1500), refuse(14), stored)
        with pytest.raises(SendError) as caught:
            await send(sender, queue=queue)
        kinds = [type(each.error) for each in caught.value.attempts]
        assert (kinds, caught.value.maybe_stored) == ([GoAwayError, errors.ServiceNotAvailableError], False)
        cluster.a.answer = refuse(14)
        with pytest.raises(errors.ServiceNotAvailableError):
            await send(sender, queue=queue)
    assert not cluster.b.sends


async def test_one_way_sends_go_on_over_a_new_connection(cluster: Cluster) -> None:
    async with producer(cluster, oneway_window=2) as sender:
        cluster.a.answer = each(refuse(1500), stored)
        for item in messages(10):
            await sender.send_oneway(item)
            await asyncio.sleep(0.002)
        await sender.flush(1.0)
        await until(lambda: len(cluster.sends) == 10)
        assert len(cluster.a.links) == 2


async def test_a_drained_connection_is_closed_at_its_bound(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq_async.transport.pool.MAX_RETIRED", 0.2)
    async with producer(cluster, retries=0, timeout=5.0) as sender:
        cluster.a.answer = each(silence, refuse(1500), stored)
        both = await outcomes(sender.send(message()), sender.send(message()))
        (lost,) = [each for each in both if isinstance(each, errors.RocketMQError)]
        assert type(lost) is errors.ConnectionLostError
        assert "the server is shutting down (GO_AWAY)" in str(lost)
        assert lost.maybe_stored


async def test_stop_ends_what_waits_on_a_drained_connection(cluster: Cluster) -> None:
    async with producer(cluster, retries=0, timeout=5.0) as sender:
        await sender.send(message())
        cluster.a.answer = each(silence, refuse(1500))
        waiting = asyncio.ensure_future(sender.send(message()))
        await until(lambda: len(cluster.sends) == 2)
        assert type((await outcomes(sender.send(message(), timeout=0.1)))[0]) is SendError
        with timed(most=0.3):
            await sender.stop(0.05)
        assert type((await outcomes(waiting))[0]) is errors.ClientStateError


async def test_routes_are_looked_at_anew_also_when_it_was_no_send_that_was_sent_away(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq_async.client.route_table.SWEEP_AFTER", 0.02)
    async with producer(cluster) as sender:
        await sender.send(message())
        monkeypatch.setattr(cluster.a, "serve", lambda link, command: link.reply(command, 1500, "please go away"))
        with pytest.raises(GoAwayError):
            await sender.recall(TOPIC, encode_recall_handle(RecallHandle(TOPIC, "a", "1", "id")))
        await until(lambda: cluster.name_server.asked.count(TOPIC) == 2, 1.0)


async def test_what_is_not_sent_but_asked_is_asked_once_more(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rmq_async")
    async with (
        EmbeddedRocketMQ() as server,
        PullConsumer("group", namesrv=server.namesrv) as consumer,
        Admin(namesrv=server.namesrv) as admin,
    ):
        await admin.create_topic(TOPIC, queues=1)
        queue = MessageQueue(TOPIC, "broker-a", 0)
        await consumer.pull(queue, 0)
        for request, ask in (
            (RequestCode.PULL_MESSAGE, lambda: consumer.pull(queue, 0)),
            (RequestCode.GET_MAX_OFFSET, lambda: consumer.max_offset(queue)),
            (RequestCode.GET_TOPIC_STATS_INFO, lambda: admin.topic_stats(TOPIC)),
            (RequestCode.GET_ROUTEINFO_BY_TOPIC, lambda: admin.topic_route(TOPIC)),
        ):
            server.fail_next(1500, 1, request=request)
            before = server.requests[request]
            await ask()
            assert server.requests[request] == before + 2, request
        assert sum("is shutting down (GO_AWAY); " in record.getMessage() for record in caplog.records) == 4
        server.fail_next(1500, 2, request=RequestCode.PULL_MESSAGE)
        with pytest.raises(GoAwayError) as caught:
            await consumer.pull(queue, 0)
        assert caught.value.broker == "broker-a"
        assert (await consumer.pull(queue, 0)).next_offset == 0
