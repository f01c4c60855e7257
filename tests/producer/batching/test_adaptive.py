"""Adaptive batching: each sentence of what it promises."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from rmq_async import (
    Batching,
    ConfigError,
    Hook,
    Message,
    MessageQueue,
    Producer,
    TransactionProducer,
    TransactionStatus,
    errors,
)
from rmq_async.errors import ForbiddenError
from rmq_protocol.command import RemotingCommand

from ..peers import TOPIC, Answer, Cluster, Link, MostUnderWay, Sent, each, fields, late, refuse, silent, status, stored
from ..support import Calls, message, messages, outcomes, producer, spin, timed, until

BATCH = 320
ONE_LANE = Batching(lanes_per_broker=1)


def later(call: Any) -> asyncio.Future[Any]:
    return asyncio.ensure_future(call)


def bodies_of(sent: Sent) -> list[bytes]:
    return [record.body for record in sent.batch] if sent.code == BATCH else [sent.body]


def requests(cluster: Cluster) -> list[list[bytes]]:
    """Bodies of each request, in order of arrival."""
    return [bodies_of(sent) for sent in cluster.sends]


def numbers(cluster: Cluster) -> list[int]:
    return [len(request) for request in requests(cluster)]


def at_rest(sender: Producer) -> bool:
    """Every account of the producer is back to where it began."""
    inner, batcher = sender._sender, sender._sender.batcher
    assert batcher is not None
    return (
        inner.credits.taken == inner.credits.taken_bytes == 0
        and not batcher.requests
        and not batcher._in_order
        and not any(members for gathering in batcher._gatherings() for members in gathering.waiting())
        and not any(count for gathering in batcher._in_turn.values() for count in gathering._under_way.values())
    )


def refuse_bodies(code: int, bad: Callable[[bytes], bool]) -> Answer:
    def answer(link: Link, sent: Sent) -> None:
        (refuse(code) if any(map(bad, bodies_of(sent))) else stored)(link, sent)

    return answer


# -- when messages leave


async def test_a_send_goes_out_at_once_when_its_lane_is_idle(cluster: Cluster) -> None:
    async with producer(cluster, batching=True) as sender:
        for item in messages(3):
            await sender.send(item)
            await sender.send(item, key="k")
    assert [sent.code for sent in cluster.sends] == [310] * 6, "alone it is an ordinary send"


async def test_while_a_request_is_under_way_messages_gather_and_leave_together_when_it_is_answered(cluster: Cluster) -> None:
    cluster.a.answer = late(0.05)
    async with producer(cluster, batching=ONE_LANE, topics=[TOPIC]) as sender:
        calls = [later(sender.send(message(b"first")))]
        for item in messages(10):
            await spin(3)
            calls.append(later(sender.send(item)))
        await asyncio.gather(*calls)
    assert requests(cluster) == [[b"first"], [item.body for item in messages(10)]]
    assert [sent.code for sent in cluster.sends] == [310, BATCH]


async def test_the_sends_of_one_iteration_of_the_loop_count_as_together(cluster: Cluster) -> None:
    async with producer(cluster, batching=True, topics=[TOPIC]) as sender:
        await asyncio.gather(*[sender.send(item) for item in messages(20)])
        await asyncio.gather(*[sender.send(item, key="k") for item in messages(20)])
    assert numbers(cluster) == [20, 20]


async def test_many_of_one_iteration_are_shared_out_over_the_free_lanes(cluster: Cluster) -> None:
    async with producer(cluster, batching=Batching(lanes_per_broker=3), topics=[TOPIC]) as sender:
        await asyncio.gather(*[sender.send(item) for item in messages(300)])
        await asyncio.gather(*[sender.send(item, key="k") for item in messages(300)])
    assert numbers(cluster) == [100, 100, 100, 300]


@pytest.mark.parametrize("bound", [{"max_messages": 10}, {"max_bytes": 850}], ids=["messages", "bytes"])
async def test_a_batch_that_reaches_a_bound_leaves_without_waiting_for_an_answer(
    cluster: Cluster, bound: dict[str, int]
) -> None:
    cluster.a.answer = silent
    async with producer(cluster, batching=Batching(lanes_per_broker=1, **bound), topics=[TOPIC], stop_timeout=0) as sender:
        calls = [later(sender.send(message(b"first")))]
        await until(lambda: cluster.sends)
        calls += [later(sender.send(item)) for item in messages(25)]
        await until(lambda: len(cluster.sends) == 3)
        await asyncio.sleep(0.02)
        assert numbers(cluster) == [1, 10, 10]
    await outcomes(*calls)


async def test_a_batch_takes_at_most_max_bytes_as_it_is_on_the_wire(cluster: Cluster) -> None:
    items = [message(b"x" * (7 * number % 400 + 1), tags="ü" * (number % 7)) for number in range(300)]
    async with producer(cluster, batching=Batching(max_bytes=2000), topics=[TOPIC]) as sender:
        await asyncio.gather(*[sender.send(item) for item in items], *[sender.send(item, key=1) for item in items])
    batches = [sent for sent in cluster.sends if sent.code == BATCH]
    assert 1500 < max(len(sent.body) for sent in batches) <= 2000
    assert sum(numbers(cluster)) == 600


async def test_a_message_that_alone_takes_more_than_max_bytes_goes_singly(cluster: Cluster) -> None:
    async with producer(cluster, batching=Batching(max_bytes=300), topics=[TOPIC]) as sender:
        items = [message(b"x" * 300)] * 3
        await asyncio.gather(*[sender.send(item) for item in items], *[sender.send(item, key=1) for item in items])
    assert numbers(cluster) == [1] * 6


@pytest.mark.parametrize("options", [{"max_messages": 1}, {"max_bytes": 1}], ids=str)
async def test_bounds_of_one_leave_ordinary_sends(cluster: Cluster, options: dict[str, int]) -> None:
    async with producer(cluster, batching=Batching(**options)) as sender:
        results = await asyncio.gather(*[sender.send(item) for item in messages(50)], sender.send(message(), key="k"))
        assert at_rest(sender)
    assert sorted(result.queue_offset for result in results) == list(range(51))
    assert numbers(cluster) == [1] * 51


async def test_linger_lets_the_first_wait_for_others(cluster: Cluster) -> None:
    async with producer(cluster, batching=Batching(linger=0.1), topics=[TOPIC]) as sender:
        with timed(0.1, 0.15):
            calls = []
            for item in messages(5):
                calls.append(later(sender.send(item)))
                await asyncio.sleep(0.01)
            await asyncio.gather(*calls)
    assert numbers(cluster) == [5]


async def test_a_flush_does_not_linger(cluster: Cluster) -> None:
    async with producer(cluster, batching=Batching(linger=5.0), topics=[TOPIC]) as sender:
        futures = [await sender.send_async(item) for item in messages(5)]
        with timed(most=0.1):
            await sender.flush()
        assert all(future.done() for future in futures)


async def test_a_stop_sends_what_has_gathered(cluster: Cluster) -> None:
    cluster.a.answer = late(0.1)
    async with producer(cluster, batching=ONE_LANE, topics=[TOPIC]) as sender:
        calls = [later(sender.send(message()))]
        await until(lambda: cluster.sends)
        calls += [later(sender.send(item)) for item in messages(5)]
        await spin(3)
    assert {type(result).__name__ for result in await outcomes(*calls)} == {"SendResult"}


async def test_a_stop_that_has_no_time_tells_everybody(cluster: Cluster) -> None:
    cluster.a.answer = silent
    calls = Calls()
    async with producer(cluster, batching=ONE_LANE, topics=[TOPIC], stop_timeout=0.0) as sender:
        waits = [later(sender.send(message())), later(sender.send(message(), key="k"))]
        await until(lambda: len(cluster.sends) == 2)
        waits += [later(sender.send(item)) for item in messages(5)]
        waits += [later(sender.send(item, key="k")) for item in messages(5)]
        futures = [await sender.send_async(item, **calls.both) for item in messages(5)]
        await spin(5)
    failures = await outcomes(*waits, *futures)
    assert {type(error) for error in failures} == {errors.ClientStateError}
    assert [error.maybe_stored for error in failures] == [True, True, *[False] * 15]
    assert len(calls.errors) == 5


# -- lanes


async def test_without_key_or_selector_the_next_batch_takes_the_next_queue(pair: Cluster) -> None:
    async with producer(pair, batching=True, topics=[TOPIC]) as sender:
        queues = []
        for _ in range(8):
            results = await asyncio.gather(*[sender.send(item) for item in messages(10)])
            (queue,) = {result.queue for result in results}
            queues.append(queue)
    assert len(set(queues[:4])) == 4
    assert queues[4:] == queues[:4]


async def test_evenness_is_judged_per_batch(trio: Cluster) -> None:
    """Under load: as many batches for each queue, within the odd one."""
    trio.answer(late(0.002))
    async with producer(trio, batching=ONE_LANE, topics=[TOPIC]) as sender:

        async def worker() -> None:
            for item in messages(40):
                await sender.send(item)

        await asyncio.gather(*[worker() for _ in range(100)])
    counts = Counter(sent.queue for sent in trio.sends)
    assert len(counts) == 6
    brokers = Counter(sent.broker.name for sent in trio.sends)
    assert max(brokers.values()) - min(brokers.values()) <= len(trio.sends) / 4, brokers
    assert max(counts.values()) <= 2 * min(counts.values()), counts


@pytest.mark.parametrize("lanes", [1, 3])
async def test_a_few_batches_per_broker_may_be_under_way(pair: Cluster, lanes: int) -> None:
    pair.answer(silent)
    async with producer(pair, batching=Batching(lanes_per_broker=lanes), topics=[TOPIC], stop_timeout=0) as sender:
        calls = []
        for item in messages(20):
            calls.append(later(sender.send(item)))
            await spin(3)
        await until(lambda: len(pair.sends) == 2 * lanes)
        await asyncio.sleep(0.02)
        assert [len(broker.sends) for broker in pair.brokers] == [lanes, lanes]
    await outcomes(*calls)


async def test_messages_that_wait_for_less_have_batches_of_their_own(cluster: Cluster) -> None:
    items = [message(b"%d" % number, wait_store=number % 2 == 0) for number in range(10)]
    async with producer(cluster, batching=True, topics=[TOPIC]) as sender:
        await asyncio.gather(*[sender.send(item) for item in items])
        await asyncio.gather(*[sender.send(item, queue=cluster.queue()) for item in items])
    even, odd = [b"0", b"2", b"4", b"6", b"8"], [b"1", b"3", b"5", b"7", b"9"]
    assert sorted(requests(cluster)[:2]) == [even, odd]
    assert requests(cluster)[2:] == [[b"%d" % number] for number in range(10)], "in a lane of order nothing passes"
    for sent in cluster.sends[:2]:
        wait = "true" if sent.batch[0].body == b"0" else "false"
        assert f"WAIT\x01{wait}".encode() in sent.batch[0].properties
        assert sent.properties["WAIT"] == wait


WISHES: dict[str, Callable[[Cluster], dict[str, Any]]] = {
    "queue": lambda cluster: {"queue": cluster.queue(cluster.a, 1)},
    "selector": lambda cluster: {"selector": lambda queues, _message, _key: queues[0]},
    "key": lambda cluster: {"key": "order 7"},
}


@pytest.mark.parametrize("wish", WISHES)
async def test_a_lane_that_carries_order_has_exactly_one_request_under_way(pair: Cluster, wish: str) -> None:
    under_way = MostUnderWay()
    pair.answer(under_way)
    items = messages(200)
    async with producer(pair, batching=Batching(max_messages=16)) as sender:
        options = WISHES[wish](pair)
        calls = []
        for item in items:
            large = item.body.endswith(b"7")
            sent = Message(TOPIC, item.body + b"x" * 5000) if large else item
            calls.append(later(sender.send(sent, **options) if item.body[-1] % 2 else _result(sender, sent, options)))
            if item.body.endswith(b"0"):
                await asyncio.sleep(0.001)
        results = await asyncio.gather(*calls)
    assert list(under_way.most.values()) == [1]
    offsets = [result.queue_offset for result in results]
    assert offsets == sorted(offsets)
    assert max(numbers(pair)) > 5


async def _result(sender: Producer, item: Message, options: dict[str, Any]) -> Any:
    return await (await sender.send_async(item, **options))


async def test_order_by_key_holds_over_a_split(cluster: Cluster) -> None:
    cluster.a.answer = refuse_bodies(13, lambda body: body == b"000005")
    async with producer(cluster, batching=True, topics=[TOPIC]) as sender:
        calls = [later(sender.send(item, key="k")) for item in messages(10)]
        await spin(4)
        calls += [later(sender.send(item, key="k")) for item in messages(3)]
        results = await outcomes(*calls)
    assert isinstance(results.pop(5), errors.MessageIllegalError)
    offsets = [result.queue_offset for result in results]
    assert offsets == list(range(12))


async def test_explicit_batches_for_a_queue_keep_their_place(cluster: Cluster) -> None:
    async with producer(cluster, batching=True, topics=[TOPIC]) as sender:
        queue = cluster.queue()
        first, batch, last = await asyncio.gather(
            sender.send(message(b"1"), queue=queue),
            sender.send_batch(messages(3), queue=queue),
            sender.send(message(b"2"), queue=queue),
        )
        future = await sender.send_batch_async(messages(2), queue=queue)
        assert len((await future).msg_ids) == 2
    assert (first.queue_offset, batch.queue_offset, last.queue_offset) == (0, 1, 4)


# -- whose result is whose


async def test_each_caller_gets_its_own_result(cluster: Cluster) -> None:
    async with producer(cluster, batching=True, topics=[TOPIC]) as sender:
        items = [message(b"%d" % number, unique_id="mine" if number == 3 else None) for number in range(10)]
        results = await asyncio.gather(*[sender.send(item) for item in items])
    (sent,) = cluster.sends
    for item, result, record in zip(items, results, sent.batch, strict=True):
        assert record.body == item.body
        assert f"UNIQ_KEY\x01{result.msg_id}\x02".encode() in record.properties
    assert results[3].msg_id == "mine"
    assert len({result.msg_id for result in results}) == len({result.offset_msg_id for result in results}) == 10
    assert [result.queue_offset for result in results] == list(range(10))
    assert {(result.queue, result.attempts, result.region_id) for result in results} == {(sent.queue, 1, "DefaultRegion")}


async def test_results_where_the_broker_stores_the_batch_as_one_record(cluster: Cluster) -> None:
    cluster.a.answer = fields(msgId="00FF")
    async with producer(cluster, batching=True, topics=[TOPIC]) as sender:
        results = await asyncio.gather(*[sender.send(item) for item in messages(5)])
    assert [(result.offset_msg_id, result.queue_offset) for result in results] == [("00FF", number) for number in range(5)]


async def test_results_that_are_stored_and_not_confirmed(cluster: Cluster) -> None:
    cluster.a.answer = status(10)
    async with producer(cluster, batching=True, topics=[TOPIC]) as sender:
        results = await asyncio.gather(*[sender.send(item) for item in messages(5)])
    assert {result.status.name for result in results} == {"FLUSH_DISK_TIMEOUT"}


async def test_unconfirmed_batches_go_to_another_broker_on_demand(pair: Cluster) -> None:
    pair.a.answer = pair.b.answer = each(status(10), stored)
    options = {"retry_another_broker_when_not_store_ok": True, "topics": [TOPIC]}
    async with producer(pair, batching=True, **options) as sender:
        results = await asyncio.gather(*[sender.send(item) for item in messages(5)])
    assert numbers(pair) == [5, 5]
    assert {result.attempts for result in results} == {2}


async def test_messages_keep_all_that_they_say(cluster: Cluster) -> None:
    class Own(Message, frozen=True):
        pass

    item = Own(TOPIC, b"\x00\xff", tags="täg", keys=["k1", "k2"], flag=-5, properties={"colour": "grün"})
    async with producer(cluster, batching=True, topics=[TOPIC]) as sender:
        await asyncio.gather(*[sender.send(item) for _ in range(3)], *[sender.send(message()) for _ in range(3)])
    (sent,) = cluster.sends
    for record in sent.batch[:3]:
        assert (record.body, record.flag) == (item.body, -5)
        for part in ("TAGS\x01täg\x02", "KEYS\x01k1 k2\x02", "colour\x01grün\x02"):
            assert part.encode() in record.properties


async def test_callbacks_are_called_exactly_once(cluster: Cluster) -> None:
    cluster.a.answer = refuse_bodies(13, lambda body: body == b"000002")
    calls = [Calls() for _ in range(5)]
    async with producer(cluster, batching=True, topics=[TOPIC]) as sender:
        futures = [await sender.send_async(item, **one.both) for item, one in zip(messages(5), calls, strict=True)]
        await outcomes(*futures)
        await sender.flush()
        assert at_rest(sender)
    assert [(len(one.results), len(one.errors)) for one in calls] == [(1, 0), (1, 0), (0, 1), (1, 0), (1, 0)]


# -- deadlines and cancellation


async def test_a_deadline_fails_that_caller_alone(cluster: Cluster) -> None:
    cluster.a.answer = late(0.3)
    async with producer(cluster, batching=True, topics=[TOPIC]) as sender:
        calls = [later(sender.send(item, timeout=0.1 if number == 2 else None)) for number, item in enumerate(messages(5))]
        with timed(0.1, 0.1), pytest.raises(errors.RequestTimeoutError) as caught:
            await calls.pop(2)
        assert caught.value.maybe_stored
        assert len(await asyncio.gather(*calls)) == 4
        assert at_rest(sender)
    assert numbers(cluster) == [5]


async def test_a_deadline_while_it_gathers_fails_that_caller_alone(cluster: Cluster) -> None:
    cluster.a.answer = late(0.3)
    async with producer(cluster, batching=ONE_LANE, topics=[TOPIC]) as sender:
        for options in ({}, {"key": "k"}):
            cluster.a.sends.clear()
            first = later(sender.send(message(), **options))
            await until(lambda: cluster.sends)
            calls = [
                later(sender.send(item, timeout=0.1 if item.body[-1:] == b"2" else None, **options)) for item in messages(5)
            ]
            with timed(0.1, 0.1), pytest.raises(errors.RequestTimeoutError) as caught:
                await calls.pop(2)
            assert not caught.value.maybe_stored
            await asyncio.gather(first, *calls)
            assert [body for request in requests(cluster)[1:] for body in request] == [
                b"000000",
                b"000001",
                b"000003",
                b"000004",
            ]


async def test_a_cancellation_fails_that_caller_alone(cluster: Cluster) -> None:
    """While it gathers, and while its request is under way; awaited and deferred."""
    cluster.a.answer = late(0.1)
    async with producer(cluster, batching=ONE_LANE, topics=[TOPIC]) as sender:
        calls = [later(sender.send(item)) for item in messages(3)]
        await until(lambda: cluster.sends)
        calls += [later(sender.send(item)) for item in messages(3)]
        told = Calls()
        futures = [await sender.send_async(item, **told.both) for item in messages(3)]
        await spin(3)
        for each_one in (calls[1], calls[4], futures[1]):
            each_one.cancel()
        results = await outcomes(*calls, *futures)
        assert at_rest(sender)
    assert [isinstance(result, BaseException) for result in results] == [False, True, False] * 3
    assert numbers(cluster) == [3, 4], "who was cancelled while it gathered is not sent"
    assert (len(told.results), [type(error) for error in told.errors]) == (2, [asyncio.CancelledError])


# -- refusals


@pytest.mark.parametrize("code", [13, 29])
@pytest.mark.parametrize("options", [{}, {"key": "k"}], ids=["in turn", "in order"])
async def test_a_batch_refused_as_illegal_is_split_so_that_one_bad_message_fails_alone(
    cluster: Cluster, code: int, options: dict[str, Any]
) -> None:
    cluster.a.answer = refuse_bodies(code, lambda body: body in (b"000017", b"000018"))
    async with producer(cluster, batching=True, topics=[TOPIC]) as sender:
        results = await outcomes(*[sender.send(item, **options) for item in messages(50)])
        assert at_rest(sender)
    failed = [number for number, result in enumerate(results) if isinstance(result, BaseException)]
    assert failed == [17, 18]
    assert {results[number].code for number in failed} == {code}
    ids: dict[bytes, set[str]] = {}
    for sent in cluster.sends:
        for record in sent.batch if sent.code == BATCH else ():
            ids.setdefault(record.body, set()).add(record.properties.split(b"\x02")[0].decode())
    assert {len(each_one) for each_one in ids.values()} == {1}, "a message has the same id in every part"


async def test_time_outs_are_never_split(cluster: Cluster) -> None:
    cluster.a.answer = silent
    async with producer(cluster, batching=True, topics=[TOPIC], timeout=0.2) as sender:
        results = await outcomes(*[sender.send(item) for item in messages(5)])
        assert {type(error) for error in results} == {errors.RequestTimeoutError}
        assert all(error.maybe_stored for error in results)
        assert len({id(error) for error in results}) == 5, "each has an error of its own"
        assert at_rest(sender)
    assert numbers(cluster) == [5]


async def test_other_refusals_are_told_to_all(cluster: Cluster) -> None:
    cluster.a.answer = refuse(3)
    async with producer(cluster, batching=True, topics=[TOPIC]) as sender:
        results = await outcomes(*[sender.send(item) for item in messages(5)])
    assert {error.code for error in results} == {3}
    assert numbers(cluster) == [5]


async def test_a_batch_is_retried_on_another_broker_under_the_same_ids(pair: Cluster) -> None:
    pair.a.answer = pair.b.answer = each(refuse(2), stored)
    async with producer(pair, batching=True, topics=[TOPIC]) as sender:
        results = await asyncio.gather(*[sender.send(item) for item in messages(5)])
    assert {result.attempts for result in results} == {2}
    first, second = pair.sends
    assert first.body == second.body
    assert first.broker is not second.broker


async def test_the_send_of_a_dead_broker_goes_to_another_one(pair: Cluster) -> None:
    async with producer(pair, batching=True, topics=[TOPIC], timeout=2.0) as sender:
        await asyncio.gather(*[sender.send(item) for item in messages(200)])
        await pair.a.stop()
        for _ in range(5):
            results = await asyncio.gather(*[sender.send(item) for item in messages(200)])
            assert {result.queue.broker_name for result in results} == {"b"}
        assert at_rest(sender)


async def test_a_broker_that_sends_its_clients_away_costs_no_send(pair: Cluster) -> None:
    async with producer(pair, batching=True, topics=[TOPIC]) as sender:
        await asyncio.gather(*[sender.send(item) for item in messages(200)])
        for options in ({}, {"queue": pair.queue(pair.a)}):
            pair.answer(each(refuse(1500), stored))
            results = await asyncio.gather(*[sender.send(item, **options) for item in messages(5)])
            assert {result.attempts for result in results} == {2}
        assert at_rest(sender)


async def test_slow_brokers_are_left_alone(pair: Cluster) -> None:
    pair.a.answer = refuse(1)
    async with producer(pair, batching=True, topics=[TOPIC], latency_fault=True) as sender:
        for _ in range(20):
            await asyncio.gather(*[sender.send(item) for item in messages(10)])
        assert at_rest(sender)
    assert len(pair.a.sends) <= 2


async def test_the_route_is_found_once_for_all_who_wait(cluster: Cluster) -> None:
    cluster.name_server.delay = 0.05
    async with producer(cluster, batching=True) as sender:
        calls = [sender.send(item) for item in messages(100)] + [sender.send(item, key="k") for item in messages(100)]
        await asyncio.gather(*calls)
    assert len(cluster.name_server.asked) == 1


async def test_a_route_without_a_queue_while_messages_gather_is_told_to_those(cluster: Cluster) -> None:
    cluster.a.answer = late(0.1)
    async with producer(cluster, batching=ONE_LANE, topics=[TOPIC], timeout=1.0) as sender:
        first = later(sender.send(message()))
        await until(lambda: cluster.sends)
        calls = [later(sender.send(item)) for item in messages(3)]
        await spin(3)
        cluster.name_server.routes[TOPIC] = cluster.route(perm=4)
        await sender._sender.instance.routes.refresh(TOPIC, 1.0)
        results = await outcomes(first, *calls)
        assert [type(result).__name__ for result in results] == ["SendResult", *["BrokerNotFoundError"] * 3]
        cluster.name_server.routes[TOPIC] = cluster.route()
        await sender._sender.instance.routes.refresh(TOPIC, 1.0)
        await sender.send(message())
        assert at_rest(sender)


# -- what goes singly


SINGLE: dict[str, Callable[[], Message]] = {
    "a body over the compression threshold": lambda: message(b"x" * 4096),
    "a delay level": lambda: message(delay_level=3),
    "a delay": lambda: message(delay=5.0),
    "a time": lambda: message(deliver_at=2e9),
    "a retry topic": lambda: message(topic="%RETRY%group"),
}


@pytest.mark.parametrize("kind", SINGLE)
async def test_goes_singly(cluster: Cluster, kind: str) -> None:
    item = SINGLE[kind]()
    cluster.name_server.routes[item.topic] = cluster.route()
    async with producer(cluster, batching=True) as sender:
        await sender.fetch_publish_queues(TOPIC)
        await outcomes(*[sender.send(item) for _ in range(3)], *[sender.send(item, queue=cluster.queue()) for _ in range(3)])
        await outcomes(*[await sender.send_async(item) for _ in range(3)] if item.topic == TOPIC else ())
        assert at_rest(sender)
    assert BATCH not in {sent.code for sent in cluster.sends}
    assert len(cluster.sends) >= 6 or item.topic != TOPIC


async def test_transactional_messages_go_singly(cluster: Cluster) -> None:
    async def commit(*_: Any) -> TransactionStatus:
        return TransactionStatus.COMMIT

    whole = TransactionProducer("group", execute=commit, check=commit, namesrv=cluster.namesrv, batching=True)
    async with whole as sender:
        await outcomes(*[sender.send_in_transaction(item) for item in messages(5)])
    assert numbers(cluster) == [1] * 5


async def test_oneway_sends_do_not_gather(cluster: Cluster) -> None:
    async with producer(cluster, batching=True) as sender:
        await asyncio.gather(*[sender.send_oneway(item) for item in messages(5)])
        await sender.flush()
        await until(lambda: len(cluster.sends) == 5)
    assert numbers(cluster) == [1] * 5


# -- bounds


async def test_bytes_are_bounded_and_callers_wait(cluster: Cluster) -> None:
    cluster.a.answer = late(0.02)
    async with producer(cluster, batching=Batching(max_pending_bytes=100), topics=[TOPIC]) as sender:
        calls = [later(sender.send(item)) for item in messages(100)]
        await spin(5)
        credit = sender._sender.credits
        assert credit.taken_bytes == 96
        assert credit.waiting == 84
        await asyncio.gather(*calls)
        assert at_rest(sender)
    assert max(numbers(cluster)) == 16


async def test_the_smaller_byte_limit_holds(cluster: Cluster) -> None:
    async with producer(cluster, batching=Batching(max_pending_bytes=100), pending_bytes_limit=50) as sender:
        assert sender._sender.credits.free_bytes == 50
    async with producer(cluster, batching=Batching(max_pending_bytes=100)) as sender:
        assert sender._sender.credits.free_bytes == 100


async def test_one_message_in_flight_at_a_time(cluster: Cluster) -> None:
    async with producer(cluster, batching=True, async_limit=1) as sender:
        await asyncio.gather(*[sender.send(item) for item in messages(20)])
        assert at_rest(sender)
    assert numbers(cluster) == [1] * 20


async def test_a_caller_that_finds_no_room_in_time_is_told(cluster: Cluster) -> None:
    cluster.a.answer = late(0.3)
    async with producer(cluster, batching=Batching(max_pending_bytes=10), topics=[TOPIC]) as sender:
        first = later(sender.send(message(b"x" * 10)))
        await spin(3)
        with pytest.raises(errors.BackpressureError):
            await sender.send(message(b"x"), timeout=0.05)
        await first
        assert at_rest(sender)


# -- hooks, signatures, namespaces, settings


class Watching(Hook):
    def __init__(self, forbidden: bytes = b"") -> None:
        self.forbidden = forbidden
        self.before: list[Any] = []
        self.after: list[Any] = []

    def check_forbidden(self, context: Any) -> None:
        shown = context.message if isinstance(context.message, tuple) else (context.message,)
        if self.forbidden in [item.body for item in shown]:
            raise ForbiddenError("not this one")

    def before_send(self, context: Any) -> None:
        context.properties["added"] = "yes"
        self.before.append(context)

    def after_send(self, context: Any) -> None:
        self.after.append(context)


async def test_hooks_see_a_batch_as_an_explicit_one(cluster: Cluster) -> None:
    hook, items = Watching(), messages(5)
    async with producer(cluster, batching=True, hooks=[hook], topics=[TOPIC]) as sender:
        results = await asyncio.gather(*[sender.send(item) for item in items])
        await sender.send(items[0])
    assert hook.before == hook.after
    whole, single = hook.after
    assert whole.message == tuple(items)
    assert whole.msg_ids == tuple(result.msg_id for result in results)
    assert whole.result.queue_offset == 0
    assert single.message == items[0]
    assert all(b"added\x01yes" in record.properties for record in cluster.sends[0].batch)


async def test_what_a_hook_forbids_fails_alone(cluster: Cluster) -> None:
    async with producer(cluster, batching=True, hooks=[Watching(b"000003")], topics=[TOPIC]) as sender:
        for options in ({}, {"key": "k"}):
            results = await outcomes(*[sender.send(item, **options) for item in messages(8)])
            assert [isinstance(result, ForbiddenError) for result in results] == [number == 3 for number in range(8)]
        assert at_rest(sender)
    assert b"000003" not in [body for request in requests(cluster) for body in request]


class Raising(Hook):
    def before_request(self, address: str, command: RemotingCommand) -> None:
        if command.code in (310, BATCH):
            raise RuntimeError("a bug")


async def test_a_hook_that_raises_loses_nobody(cluster: Cluster, loop_errors: list[dict[str, Any]]) -> None:
    async with producer(cluster, batching=True, hooks=[Raising()], topics=[TOPIC]) as sender:
        results = await outcomes(
            *[sender.send(item) for item in messages(5)], *[sender.send(item, key=1) for item in messages(5)]
        )
        assert len(results) == 10
        assert at_rest(sender)
    loop_errors.clear()


async def test_batches_are_signed(cluster: Cluster) -> None:
    credentials = {"credentials": _credentials()}
    async with producer(cluster, batching=True, topics=[TOPIC], **credentials) as sender:
        await asyncio.gather(*[sender.send(item) for item in messages(5)])
        await sender.send(message())
    assert numbers(cluster) == [5, 1]
    assert all("Signature" in (sent.command.ext_fields or {}) for sent in cluster.sends)


def _credentials() -> Any:
    from rmq_async import Credentials

    return Credentials("access", "secret-of-the-batching-tests")


async def test_namespaces(cluster: Cluster) -> None:
    cluster.name_server.routes["ns%T"] = cluster.route()
    async with producer(cluster, batching=True, namespace="ns", topics=[TOPIC]) as sender:
        results = await asyncio.gather(*[sender.send(item) for item in messages(5)])
    assert numbers(cluster) == [5]
    assert cluster.sends[0].fields["b"] == "ns%T"
    assert {result.queue.topic for result in results} == {TOPIC}


async def test_a_selector_of_the_producer_is_asked_for_each_message(cluster: Cluster) -> None:
    asked: list[bytes] = []

    def choose(queues: Any, item: Message, key: Any) -> MessageQueue:
        asked.append(item.body)
        return queues[int(item.body) % len(queues)]

    async with producer(cluster, batching=True, queue_selector=choose, topics=[TOPIC]) as sender:
        results = await asyncio.gather(*[sender.send(item) for item in messages(10)])
        assert at_rest(sender)
    assert asked == [item.body for item in messages(10)]
    assert [result.queue.queue_id for result in results] == [0, 1] * 5
    assert numbers(cluster) == [5, 5]


def test_settings_are_checked() -> None:
    for wrong in (
        {"max_bytes": 0}, {"max_messages": 0}, {"linger": -1.0}, {"max_pending_bytes": 0}, {"lanes_per_broker": 0},
        {"max_bytes": True},
    ):  # fmt: skip
        with pytest.raises(ConfigError):
            Batching(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="batching"):
        Producer("group", namesrv="127.0.0.1:1", batching=1)
    assert Batching() == Batching(max_bytes=256 * 1024, max_messages=1024, linger=0.0, max_pending_bytes=32 * 1024 * 1024)


async def test_a_producer_gathers_nothing_unless_it_is_told_to(cluster: Cluster) -> None:
    async with producer(cluster, topics=[TOPIC]) as sender:
        await asyncio.gather(*[sender.send(item) for item in messages(10)])
    assert numbers(cluster) == [1] * 10
