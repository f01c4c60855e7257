"""Attempts of one call: on which broker, within which cap, and what becomes of answers that come late."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from rmq_async import SendError, SendStatus, errors
from rmq_async.errors import Attempt, BrokerSystemError, RequestTimeoutError, SystemBusyError

from ..support.fakes import Cluster, cut, each, late, refuse, reset, silence, status, stored, twice
from ..support.instances import client_of
from .support import GRACE, Send, deferred, every_way, message, messages, outcomes, producer, spin, timed, until

pytestmark = pytest.mark.virtual_time


def broker_of(attempt: Attempt) -> str:
    return attempt.queue.broker_name


@every_way(2)
async def test_a_silent_broker_costs_its_share_and_another_one_stores(pair: Cluster, send: Send) -> None:
    silenced = pair.brokers[0]
    silenced.answer = silence
    async with producer(pair, timeout=0.9) as sender:
        while not silenced.sends:  # the first queue is a random one
            with timed(most=0.3) as taken:
                result = await send(sender)
            assert result.queue.broker_name == "b"
            assert result.attempts == (2 if silenced.sends else 1)
        assert taken.seconds > 0.28


@every_way(3)
async def test_all_attempts_of_a_call_carry_the_same_id(trio: Cluster, send: Send) -> None:
    trio.answer(each(refuse(1), refuse(1), stored))
    async with producer(trio, timeout=1.0) as sender:
        result = await send(sender)
    assert result.attempts == 3
    sends = trio.sends
    if sends[0].code == 320:
        assert len({tuple(record.properties for record in sent.batch) for sent in sends}) == 1
    else:
        assert {sent.unique_id for sent in sends} == {result.msg_id}


async def test_each_broker_is_tried_once_while_there_are_others(trio: Cluster) -> None:
    trio.answer(refuse(1))
    async with producer(trio) as sender:
        for _ in range(20):
            with pytest.raises(SendError) as caught:
                await sender.send(message())
            assert sorted(map(broker_of, caught.value.attempts)) == ["a", "b", "c"]


async def test_every_attempt_names_the_queue_it_was_sent_to(pair: Cluster) -> None:
    pair.answer(each(refuse(1), stored))
    pair.b.answer = stored
    pair.name_server.routes["T"] = pair.route(pair.a, queues=8)
    async with producer(pair) as sender:
        result = await sender.send(message())
        assert result.attempts == 2
        assert [sent.queue.broker_name for sent in pair.a.sends] == ["a", "a"]
        assert pair.a.sends[1].queue == result.queue


async def test_two_silent_brokers_of_three(trio: Cluster) -> None:
    trio.answer(silence)
    trio.brokers[2].answer = stored
    async with producer(trio, timeout=3.0, attempt_timeout=0.2, latency_fault=False) as sender:
        results = await asyncio.gather(*[sender.send(message()) for _ in range(12)])
    assert {result.queue.broker_name for result in results} == {"c"}
    assert {result.attempts for result in results} == {1, 2, 3}


async def test_the_own_cap_of_attempts(pair: Cluster) -> None:
    pair.a.answer = silence
    async with producer(pair, timeout=2.0, attempt_timeout=0.06) as sender:
        with timed(most=0.06):
            results = await asyncio.gather(*[sender.send(message()) for _ in range(4)])
    assert sorted(result.attempts for result in results) == [1, 1, 2, 2]


async def test_a_cap_is_never_below_200_ms(pair: Cluster) -> None:
    async with producer(pair, timeout=0.3) as sender:
        await asyncio.gather(*[sender.send(item, timeout=3.0) for item in messages(4)])
        pair.a.answer = late(0.12)
        results = await asyncio.gather(*[sender.send(message()) for _ in range(4)])
    assert [result.attempts for result in results] == [1] * 4


@every_way(1)
async def test_a_lone_broker_has_the_whole_budget(cluster: Cluster, send: Send) -> None:
    cluster.a.answer = late(0.3)
    async with producer(cluster, timeout=1.0, attempt_timeout=0.05) as sender:
        with timed(0.3, 0.6):
            result = await send(sender)
    assert result.attempts == 1
    assert len(cluster.sends) == 1


@every_way(1)
async def test_a_lone_broker_that_stays_silent_is_a_timeout(cluster: Cluster, send: Send) -> None:
    cluster.a.answer = silence
    async with producer(cluster, timeout=0.3) as sender:
        await sender.fetch_publish_queues("T")
        with timed(0.3, 0.3), pytest.raises(RequestTimeoutError) as caught:
            await send(sender)
    error = caught.value
    assert isinstance(error, TimeoutError)
    assert (error.maybe_stored, error.broker, error.address, error.code) == (True, "a", cluster.a.address, 10002)
    assert len(cluster.sends) == 1, "a broker whose answer may still come is not sent to again"


@every_way(1)
async def test_the_timeout_of_a_call_is_its_own(cluster: Cluster, send: Send) -> None:
    cluster.a.answer = silence
    async with producer(cluster, timeout=30.0) as sender:
        with timed(0.1, 0.1), pytest.raises(RequestTimeoutError):
            await send(sender, timeout=0.1)


@every_way(2)
async def test_both_silent_names_both(pair: Cluster, send: Send) -> None:
    pair.answer(silence)
    async with producer(pair, timeout=0.45) as sender:
        with timed(0.45, 0.45), pytest.raises(SendError) as caught:
            await send(sender)
    error = caught.value
    assert sorted(map(broker_of, error.attempts)) == ["a", "b"]
    assert error.maybe_stored
    assert error.__cause__ is error.attempts[-1].error
    for attempt in error.attempts:
        assert isinstance(attempt.error, RequestTimeoutError)
        assert attempt.maybe_stored
        assert attempt.address in {broker.address for broker in pair.brokers}
        assert attempt.address in str(error)
    assert error.attempts[0].elapsed == pytest.approx(0.2, abs=GRACE)
    assert error.attempts[1].elapsed == pytest.approx(0.25, abs=GRACE)


@every_way(2)
async def test_a_late_stored_resolves_the_call_while_another_attempt_is_under_way(pair: Cluster, send: Send) -> None:
    first = []

    def slow_then_silent(link: Any, sent: Any) -> None:
        first.append(sent)
        (late(0.6) if len(first) == 1 else silence)(link, sent)

    pair.answer(slow_then_silent)
    async with producer(pair, timeout=0.9) as sender:
        with timed(0.6, 0.6):
            result = await send(sender)
        assert result.queue == first[0].queue, "the first broker stored it"
        assert result.attempts == 2
        assert len(pair.sends) == 2


@every_way(2)
async def test_of_attempts_that_were_given_up_nothing_is_left_when_the_call_ends(pair: Cluster, send: Send) -> None:
    pair.answer(each(silence, stored))
    pair.b.answer = stored
    async with producer(pair, timeout=5.0, attempt_timeout=0.05) as sender:
        while not pair.a.sends:
            result = await send(sender)
        assert result.attempts == 2
        connection = (await client_of(sender)).pool.open[pair.a.address]
        assert connection.requests.sends_in_flight == 0


async def test_the_second_answer_of_two_is_dropped(pair: Cluster) -> None:
    async with producer(pair, timeout=0.9, attempt_timeout=0.2, latency_fault=False) as sender:
        await asyncio.gather(*[sender.send(item) for item in messages(4)])
        pair.answer(late(0.4))
        results = [await sender.send(message()) for _ in range(2)]
        await asyncio.sleep(0.25)
    assert [result.attempts for result in results] == [2, 2]
    assert len(pair.sends) == 8


@every_way(2)
async def test_a_late_error_only_fills_in_its_record(pair: Cluster, send: Send) -> None:
    answered = []

    def slow_error_then_silent(link: Any, sent: Any) -> None:
        answered.append(sent)
        (late(0.6, refuse(13, "too large")) if len(answered) == 1 else silence)(link, sent)

    pair.answer(slow_error_then_silent)
    async with producer(pair, timeout=0.9) as sender:
        with timed(0.9, 0.9), pytest.raises(SendError) as caught:
            await send(sender)
    first, second = caught.value.attempts
    assert isinstance(first.error, errors.MessageIllegalError)
    assert not first.maybe_stored
    assert isinstance(second.error, RequestTimeoutError)
    assert second.maybe_stored
    assert caught.value.maybe_stored


@every_way(2)
async def test_with_nothing_else_to_try_a_call_waits_for_the_answers_it_may_still_get(pair: Cluster, send: Send) -> None:
    sends = []
    pair.name_server.routes["T"] = pair.route(queues=1)  # in turn it would be the first broker's again

    def script(link: Any, sent: Any) -> None:
        sends.append(sent)
        (late(0.4), refuse(1), refuse(1))[len(sends) - 1](link, sent)

    pair.answer(script)
    async with producer(pair, timeout=0.6) as sender:
        with timed(0.4, 0.4):
            result = await send(sender)
    assert result.queue == sends[0].queue
    assert result.attempts == 3
    assert sends[1].queue.broker_name == sends[2].queue.broker_name != sends[0].queue.broker_name


@every_way(1)
async def test_one_attempt_raises_its_own_error(cluster: Cluster, send: Send) -> None:
    cluster.a.answer = refuse(1, "disk is broken")
    async with producer(cluster, retries=0, async_retries=0) as sender:
        with pytest.raises(BrokerSystemError, match="disk is broken") as caught:
            await send(sender)
    error = caught.value
    assert (error.code, error.remark, error.broker, error.address) == (1, "disk is broken", "a", cluster.a.address)
    assert not error.maybe_stored
    assert len(cluster.sends) == 1


@every_way(1)
async def test_several_attempts_raise_all_of_them(cluster: Cluster, send: Send) -> None:
    cluster.a.answer = each(refuse(1, "first"), refuse(14, "second"), refuse(13, "third"))
    async with producer(cluster) as sender:
        with pytest.raises(SendError) as caught:
            await send(sender)
    error = caught.value
    assert [getattr(attempt.error, "remark", None) for attempt in error.attempts] == ["first", "second", "third"]
    assert error.__cause__ is error.attempts[-1].error
    assert (error.code, error.maybe_stored, error.broker, error.address) == (13, False, "a", cluster.a.address)
    assert not any(attempt.maybe_stored for attempt in error.attempts)
    for text in ("first", "second", "third", cluster.a.address, "3 attempts"):
        assert text in str(error)


@every_way(1)
async def test_a_single_further_attempt_counts_as_several(cluster: Cluster, send: Send) -> None:
    """Also when the last reason is not one that is retried."""
    cluster.a.answer = each(refuse(1), refuse(13))
    async with producer(cluster) as sender:
        with pytest.raises(SendError) as caught:
            await send(sender)
    assert len(caught.value.attempts) == 2


@pytest.mark.parametrize("retries", [0, 1, 4])
async def test_the_number_of_retries(cluster: Cluster, retries: int) -> None:
    cluster.a.answer = refuse(1)
    async with producer(cluster, retries=retries, async_retries=retries + 1) as sender:
        await outcomes(sender.send(message(b"awaited")))
        await outcomes(deferred(sender))
    bodies = cluster.a.bodies
    assert bodies.count(b"awaited") == retries + 1
    assert bodies.count(b"body") == retries + 2


async def test_own_retry_codes_replace_the_usual_ones(cluster: Cluster) -> None:
    cluster.a.answer = refuse(215)
    async with producer(cluster, retry_codes={215}, timeout=2.0) as sender:
        with pytest.raises(SendError) as caught:
            await sender.send(message())
        assert len(caught.value.attempts) == 3
        cluster.a.answer = refuse(1)
        with pytest.raises(BrokerSystemError):
            await sender.send(message())


async def test_a_busy_broker_is_given_time(cluster: Cluster) -> None:
    cluster.a.answer = refuse(2, "[TIMEOUT_CLEAN_QUEUE]broker busy")
    async with producer(cluster) as sender:
        with timed(0.075, 0.15), pytest.raises(SendError) as caught:
            await sender.send(message())
    assert [type(attempt.error) for attempt in caught.value.attempts] == [SystemBusyError] * 3
    first, second = (later - earlier for earlier, later in zip(cluster.a.times, cluster.a.times[1:], strict=False))
    assert first >= 0.02
    assert second >= 0.045


async def test_a_busy_broker_recovers(cluster: Cluster) -> None:
    cluster.a.answer = each(refuse(2), refuse(2), stored)
    async with producer(cluster) as sender:
        assert (await sender.send(message())).attempts == 3


@every_way(2)
async def test_refused_credentials_end_the_call(pair: Cluster, send: Send) -> None:
    pair.answer(refuse(16, "check signature failed."))
    async with producer(pair) as sender:
        with pytest.raises(errors.AuthenticationError):
            await send(sender)
    assert len(pair.sends) == 1


async def test_a_connection_that_breaks_is_an_attempt_that_may_be_stored(pair: Cluster) -> None:
    for answer in (cut, reset):
        pair.a.answer = answer
        async with producer(pair) as sender:
            results = [await sender.send(message()) for _ in range(4)]
        assert {result.queue.broker_name for result in results} == {"b"}


async def test_a_lone_broker_whose_connection_breaks_each_time(cluster: Cluster) -> None:
    cluster.a.answer = cut
    async with producer(cluster, timeout=1.0) as sender:
        with timed(most=1.0), pytest.raises(SendError) as caught:
            await sender.send(message())
    assert len(caught.value.attempts) == 3
    assert all(attempt.maybe_stored for attempt in caught.value.attempts)
    assert all(isinstance(attempt.error, errors.ConnectionLostError) for attempt in caught.value.attempts)


@pytest.mark.usefixtures("wide_window")
async def test_a_thousand_in_flight_when_the_connection_breaks_are_all_sent_again(pair: Cluster) -> None:
    pair.a.answer = silence
    async with producer(pair, timeout=3.0) as sender:
        sends = asyncio.gather(*[sender.send(item) for item in messages(2000)])
        await until(lambda: len(pair.a.sends) == 1000)
        for link in list(pair.a.open_links):
            link.transport.abort()
        results = await sends
    assert {result.queue.broker_name for result in results} == {"b"}
    assert sorted(result.attempts for result in results) == [1] * 1000 + [2] * 1000
    ids = [sent.unique_id for sent in pair.b.sends]
    assert len(set(ids)) == 2000 == len(ids)


async def test_two_answers_to_one_send_count_once(cluster: Cluster) -> None:
    cluster.a.answer = twice()
    async with producer(cluster) as sender:
        results = [await sender.send(item) for item in messages(10)]
        futures = [await sender.send_async(item) for item in messages(10)]
        results += await asyncio.gather(*futures)
        await spin(5)
    offsets = [result.queue_offset for result in results]
    assert len(set(offsets)) == 20


async def test_an_answer_after_the_call_is_dropped(cluster: Cluster) -> None:
    """1,000 calls that time out, their answers in the middle of 1,000 that do not."""
    async with producer(cluster, timeout=0.1) as sender:
        await sender.send(message(), timeout=3.0)
        cluster.a.answer = late(1.0)
        failed = await outcomes(*[sender.send(item) for item in messages(1000)])
        assert {type(error) for error in failed} == {RequestTimeoutError}

        def own_body(link: Any, sent: Any) -> None:
            link.reply(sent, 0, None, sent.broker.stored_fields(sent) | {"msgId": sent.body.decode()})

        cluster.a.answer = own_body
        until_then = asyncio.get_running_loop().time() + 1.1
        while asyncio.get_running_loop().time() < until_then:
            items = [message(b"%d" % number) for number in range(50)]
            results = await asyncio.gather(*[sender.send(item, timeout=3.0) for item in items])
            assert [result.offset_msg_id.encode() for result in results] == [item.body for item in items]
            await asyncio.sleep(0.01)


@every_way(2)
async def test_a_slow_route_does_not_shorten_the_first_attempt(pair: Cluster, send: Send) -> None:
    """The cap is a share of what is left when the attempt begins."""
    async with producer(pair, timeout=1.5) as sender:
        await asyncio.gather(*[sender.send(item) for item in messages(4)])
        pair.name_server.delay = 0.6
        pair.name_server.routes["U"] = pair.route()
        pair.answer(late(0.1))
        assert (await send(sender, topic="U")).attempts == 1
    assert len(pair.sends) == 5


@every_way(2)
async def test_waiting_for_a_credit_does_not_shorten_the_first_attempt(pair: Cluster, send: Send) -> None:
    pair.answer(late(0.12))
    async with producer(pair, timeout=1.5, async_limit=1) as sender:
        results = await asyncio.gather(*[send(sender) for _ in range(5)])
    assert [result.attempts for result in results] == [1] * 5
    assert len(pair.sends) == 5


async def test_retries_are_logged_with_their_reason(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rmq_async.producer")
    cluster.a.answer = each(refuse(1, "disk is broken"), stored)
    async with producer(cluster) as sender:
        result = await sender.send(message())
    (record,) = [record for record in caplog.records if record.name == "rmq_async.producer"]
    text = record.getMessage()
    assert result.msg_id in text
    assert "disk is broken" in text


@every_way(2)
async def test_stored_but_not_flushed_is_not_tried_again(pair: Cluster, send: Send) -> None:
    expected = {
        0: SendStatus.SEND_OK,
        10: SendStatus.FLUSH_DISK_TIMEOUT,
        11: SendStatus.SLAVE_NOT_AVAILABLE,
        12: SendStatus.FLUSH_SLAVE_TIMEOUT,
    }
    async with producer(pair) as sender:
        for code, meaning in expected.items():
            pair.answer(status(code))
            result = await send(sender)
            assert (result.status, result.attempts) == (meaning, 1)
    assert len(pair.sends) == 4
