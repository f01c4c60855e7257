"""Brokers that take no messages back: handlers, pulls and other brokers go on, and nothing is lost."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from typing import Any

import pytest

from rmq_async import (
    Admin,
    Batch,
    Consumer,
    DeadLetter,
    Message,
    MessageExt,
    MessageQueue,
    Outcome,
    Producer,
    Retry,
    current_delivery,
)
from rmq_async.consumer.handling import give_backs
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.testing.simulation import Simulation
from rmq_protocol.constants import RequestCode, ResponseCode

from .support import create, member, send, until

pytestmark = pytest.mark.virtual_time

A, B = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-b", 0)
REFUSED = ResponseCode.NO_PERMISSION


async def send_to(namesrv: str, queue: MessageQueue, *bodies: bytes, **options: Any) -> None:
    async with Producer("senders", namesrv=namesrv) as producer:
        for body in bodies:
            await producer.send(Message(queue.topic, body, **options), queue=queue)


def codes(consumer: Consumer) -> list[tuple[str, str | None]]:
    return [(problem.code, problem.broker) for problem in consumer.health().problems]


class Once:
    """A handler that fails with each message that begins with "bad" until attempt number ``good_at``."""

    def __init__(self, good_at: int = 2) -> None:
        self.good_at = good_at
        self.calls: list[tuple[bytes, int, str]] = []
        self.done: Counter[bytes] = Counter()

    async def __call__(self, message: MessageExt) -> None:
        assert current_delivery().attempt == message.reconsume_times + 1
        self.calls.append((message.body, message.reconsume_times + 1, message.queue.broker_name))
        if message.body.startswith(b"bad") and message.reconsume_times + 1 < self.good_at:
            raise ValueError("as its body says")
        self.done[message.body] += 1

    @property
    def attempts(self) -> list[int]:
        return [attempt for _, attempt, _ in self.calls]


@pytest.mark.parametrize("code", [REFUSED, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR])
async def test_message_whose_broker_refuses_it_goes_to_another_one(code: int) -> None:
    """With the same id, the next attempt, and what Java's client writes into its copy."""
    async with EmbeddedRocketMQ(brokers=2) as server:
        await create(server.namesrv, queues=1)
        server.refuse_give_backs(code, broker="broker-a")
        handler = Once(3)
        consumer = member("g", server.namesrv, "one", handler, retry=Retry(limit=5, delays=(1,)), start_from="earliest")
        async with consumer:
            await send_to(server.namesrv, A, b"bad", keys=["k"])
            settled = await consumer.wait_settled(3, timeout=10.0)
            await consumer.wait_idle()
            assert codes(consumer) == [("not_taken_back", "broker-a")]
            assert consumer.position(A) == 1
        assert [each.outcome for each in settled] == [Outcome.RETRIED, Outcome.RETRIED, Outcome.DONE]
        assert handler.calls == [(b"bad", 1, "broker-a"), (b"bad", 2, "broker-b"), (b"bad", 3, "broker-b")]
        assert len({each.message.msg_id for each in settled}) == 1
        (origin,), (copy, _) = server.messages("T"), server.retries("g")
        assert (copy.reconsume_times, copy.keys, copy.born_time_ms) == (1, ("k",), origin.born_time_ms)
        wanted = {
            "RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": origin.offset_msg_id, "RECONSUME_TIME": "1", "MAX_RECONSUME_TIMES": "5",
            "DELAY": "1",
        }  # fmt: skip
        assert {name: copy.properties[name] for name in wanted} == wanted


@pytest.mark.parametrize("how", ["limit", "raises"])
async def test_dead_letter_whose_broker_refuses_it_goes_to_another_one(how: str) -> None:
    async with EmbeddedRocketMQ(brokers=2) as server:
        await create(server.namesrv, queues=1)
        server.refuse_give_backs(REFUSED, broker="broker-a")

        async def handler(message: MessageExt) -> None:
            raise DeadLetter("no") if how == "raises" else ValueError("fails")

        consumer = member("g", server.namesrv, "one", handler, retry=Retry(limit=0), start_from="earliest")
        async with consumer:
            await send_to(server.namesrv, A, b"x")
            (settled,) = await consumer.wait_settled(1)
            await consumer.wait_idle()
        assert settled.outcome is Outcome.DEAD_LETTERED
        (dead,) = server.dead_letters("g")
        assert (dead.body, dead.msg_id, dead.queue.broker_name) == (b"x", settled.message.msg_id, "broker-b")


@pytest.mark.parametrize("shape", ["coroutine", "plain", "batch", "hooks", "queue", "key"])
def test_refused_messages_hold_no_slots(shape: str) -> None:
    """All of one broker's fail, and no broker takes any of them; those of the other broker and topic go on at once."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        await create(s.namesrv, "Other", queues=1)
        for machine in s.brokers:
            machine.broker.refuse_give_backs(ResponseCode.SERVICE_NOT_AVAILABLE)
        good: Counter[bytes] = Counter()
        ended: list[Outcome | None] = []

        def count(*messages: MessageExt) -> None:
            for message in messages:
                if message.body.startswith(b"bad"):
                    raise DeadLetter("as its body says")
                good[message.body] += 1

        async def coroutine(message: MessageExt) -> None:
            count(message)

        async def batch(messages: Batch) -> None:
            count(*messages)

        class Hook:
            def after_consume(self, delivery: Any) -> None:
                ended.append(delivery.outcome)

        hooks = [Hook()] if shape == "hooks" else []
        consumer = Consumer("g", namesrv=s.namesrv, start_from="earliest", concurrency=2, hooks=hooks)
        options: dict[str, Any] = {"batch_size": 4} if shape == "batch" else {}
        if shape in ("queue", "key"):
            options = {"order": shape}
        handler: Any = {"plain": count, "batch": batch}.get(shape, coroutine)
        consumer.subscribe("T", handler, **options)
        consumer.subscribe("Other", coroutine)
        async with Producer("p", namesrv=s.namesrv) as producer:
            for number in range(12):
                await producer.send(Message("T", b"bad%d" % number, sharding_key=str(number)), queue=A)
            for number in range(40):
                await producer.send(Message("T", b"good%d" % number, sharding_key=str(number)), queue=B)
                await producer.send(Message("Other", b"other%d" % number), queue=MessageQueue("Other", "broker-a", 0))
        async with consumer:
            await until(lambda: len(good) == 80, 5.0)
            await until(lambda: not consumer.stats().running, 1.0)
            assert ("not_taken_back", "broker-a") in codes(consumer)
            assert consumer.stats().dead_lettered == 0
            assert not [outcome for outcome in ended if outcome is not Outcome.DONE]
            assert consumer.position(A) == 0
            await asyncio.sleep(60)
            for machine in s.brokers:
                machine.broker.refuse_give_backs(None)
            await until(lambda: consumer.stats().dead_lettered == 12, 40.0)
            await consumer.wait_idle()
            assert consumer.position(A) == 12
            assert not consumer.health().problems
            if hooks:
                assert Counter(ended)[Outcome.DEAD_LETTERED] == 12
        assert set(good.values()) == {1}

    Simulation(1, brokers=2, faults=None).run(main)


def test_broker_that_is_known_to_be_silent_is_not_asked() -> None:
    """A copy goes to the other broker at once, and no request times out before."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        goes_on = asyncio.Event()

        async def handler(message: MessageExt) -> None:
            await goes_on.wait()
            raise ValueError("fails")

        consumer = member("g", s.namesrv, "one", handler, start_from="earliest", retry=Retry(delays=(600,)))
        async with consumer:
            await send_to(s.namesrv, A, b"bad")
            await until(lambda: consumer.stats().running)
            s.brokers[0].pause()
            await asyncio.sleep(40)  # heartbeats and commits have no answer
            goes_on.set()
            await until(lambda: consumer.stats().retried, 0.5)
            assert consumer.stats().unsure == 0
            s.brokers[0].resume()
            await consumer.wait_idle()

    Simulation(1, brokers=2, faults=None).run(main)


@pytest.mark.parametrize("what", ["queue", "topic", "all"])
def test_paused_queue_begins_no_attempt_here_and_stops_at_once(what: str) -> None:
    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        s.brokers[0].broker.refuse_give_backs(ResponseCode.SERVICE_NOT_AVAILABLE)
        handler = Once(10)
        paused: list[Any] = {"queue": [A], "topic": ["T"], "all": []}[what]
        consumer = member("g", s.namesrv, "one", handler, start_from="earliest", retry=Retry(delays=(20,)))
        await consumer.start()
        await send_to(s.namesrv, A, b"bad")
        await until(lambda: handler.attempts == [1])
        await asyncio.sleep(5)
        consumer.pause(*paused)
        await asyncio.sleep(40)
        assert handler.attempts == [1]
        consumer.resume(*paused)
        await until(lambda: handler.attempts == [1, 2])
        await asyncio.sleep(5)
        consumer.pause(*paused)
        await asyncio.sleep(40)
        began = s.now
        await consumer.stop()
        assert s.now - began < 0.05
        assert handler.attempts == [1, 2]

    Simulation(1, brokers=1, faults=None).run(main)


def test_message_that_brokers_refuse_because_of_what_it_is_is_not_asked_for_without_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        (machine,) = s.brokers
        machine.broker.refuse_give_backs(ResponseCode.MESSAGE_ILLEGAL)
        ends = {b"retried": ValueError("fails"), b"given up": DeadLetter("fails")}

        async def handler(message: MessageExt) -> None:
            raise ends[message.body]

        consumer = member("g", s.namesrv, "one", handler, start_from="earliest", retry=Retry(delays=(3600,)))
        async with consumer:
            await send_to(s.namesrv, A, *ends)
            await asyncio.sleep(600)
            assert machine.broker.requests[RequestCode.CONSUMER_SEND_MSG_BACK] < 50
            assert sum("cannot be given back" in record.message for record in caplog.records) == 2
            (problem,) = consumer.health().problems
            assert problem.code == "not_taken_back"
            assert "2 messages cannot be given back" in problem.text

    Simulation(1, brokers=1, faults=None).run(main)


def test_broker_that_takes_no_copies_is_asked_to_take_its_own_messages_back() -> None:
    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        a, b = s.brokers
        await send_to(s.namesrv, A, *[b"bad%d" % number for number in range(20)])
        await send_to(s.namesrv, B, *[b"bad-b%d" % number for number in range(20)])
        a.broker.refuse_give_backs(REFUSED)
        b.broker.failures.add(REFUSED, 10**6, RequestCode.SEND_MESSAGE_V2)
        consumer = member("g", s.namesrv, "one", Once(), start_from="earliest", retry=Retry(delays=(600,)))
        async with consumer:
            await asyncio.sleep(30)
            assert codes(consumer) == [("not_taken_back", "broker-a")]
            assert sum(each.topic == "SCHEDULE_TOPIC_XXXX" for each in b.stored()) == 20

    Simulation(1, brokers=2, faults=None).run(main)


def test_copy_of_a_compressed_message_is_compressed() -> None:
    """Its body alone is larger than what brokers take."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        s.brokers[0].broker.refuse_give_backs(REFUSED)
        handler = Once()
        consumer = member("g", s.namesrv, "one", handler, start_from="earliest", retry=Retry(delays=(1,)))
        async with consumer, Producer("p", namesrv=s.namesrv, max_message_size=8_000_000) as producer:
            await producer.send(Message("T", b"bad".ljust(6_000_000)), queue=A)
            await until(lambda: handler.done, 30.0)
        assert [broker for _, _, broker in handler.calls] == ["broker-a", "broker-b"]

    Simulation(1, brokers=2, faults=None).run(main)


@pytest.mark.parametrize("retry", [Retry(delays=(5,)), Retry(limit=4, delays=(5,))], ids=["the group's", "its own"])
def test_attempts_here_and_of_copies_count_together(retry: Retry) -> None:
    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        async with Admin(namesrv=s.namesrv) as admin:
            await admin.create_group("g", retry_max_times=4)
        for machine in s.brokers:
            machine.broker.refuse_give_backs(REFUSED)
        handler = Once(100)
        async with member("g", s.namesrv, "one", handler, start_from="earliest", retry=retry) as consumer:
            await send_to(s.namesrv, A, b"bad")
            await until(lambda: len(handler.calls) == 3, 60.0)
            s.brokers[1].broker.refuse_give_backs(None)
            await until(lambda: consumer.stats().dead_lettered, 200.0)
        assert handler.attempts == [1, 2, 3, 4, 5]

    Simulation(1, brokers=2, faults=None).run(main)


@pytest.mark.parametrize("mode", ["pull", "pop"])
def test_stop_beside_a_broker_that_is_frozen_takes_its_time_only(mode: Any) -> None:
    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        (machine,) = s.brokers
        calls: list[bytes] = []

        async def handler(message: MessageExt) -> None:
            calls.append(message.body)
            raise DeadLetter("fails")

        consumer = member("g", s.namesrv, "one", handler, start_from="earliest", stop_timeout=5.0, mode=mode)
        await consumer.start()
        machine.broker.refuse_give_backs(ResponseCode.SERVICE_NOT_AVAILABLE)
        await send_to(s.namesrv, A, *[b"%d" % number for number in range(100)])
        await until(lambda: len(calls) == 100, 60.0)
        machine.pause()
        await asyncio.sleep(20)
        began = s.now
        await consumer.stop()
        assert 4.9 < s.now - began < 5.1
        assert [task.get_name() for task in asyncio.all_tasks()] == [asyncio.current_task().get_name()]  # type: ignore[union-attr]
        machine.resume()

    Simulation(1, brokers=1, faults=None).run(main)


def test_message_that_no_broker_takes_is_handled_here_again_with_the_same_delays() -> None:
    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        (machine,) = s.brokers
        machine.broker.refuse_give_backs(ResponseCode.SERVICE_NOT_AVAILABLE)
        handler, times = Once(4), list[float]()

        async def timed(message: MessageExt) -> None:
            times.append(s.now)
            await handler(message)

        async with member("g", s.namesrv, "one", timed, start_from="earliest", retry=Retry(delays=(20, 40, 60))) as consumer:
            await send(s.namesrv, b"bad")
            settled = await consumer.wait_settled(4, timeout=200.0)
            await consumer.wait_idle()
            assert consumer.stats().retried == 3
        assert handler.attempts == [1, 2, 3, 4]
        assert [round(after - before) for before, after in itertools.pairwise(times)] == [20, 40, 60]
        assert [each.outcome for each in settled] == [*[Outcome.RETRIED] * 3, Outcome.DONE]

    Simulation(1, brokers=1, faults=None).run(main)


def test_message_that_was_handled_here_again_keeps_its_attempts_when_its_broker_takes_it() -> None:
    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        (machine,) = s.brokers
        machine.broker.refuse_give_backs(ResponseCode.SERVICE_NOT_AVAILABLE)
        handler = Once(100)
        consumer = member("g", s.namesrv, "one", handler, start_from="earliest", retry=Retry(limit=4, delays=(10,)))
        async with consumer:
            await send(s.namesrv, b"bad")
            await until(lambda: len(handler.calls) == 3, 60.0)
            machine.broker.refuse_give_backs(None)
            await until(lambda: consumer.stats().dead_lettered, 120.0)
            await consumer.wait_idle()
            assert not consumer.health().problems
        assert handler.attempts == [1, 2, 3, 4, 5]

    Simulation(2, brokers=1, faults=None).run(main)


def test_messages_that_rest_here_go_back_when_their_broker_takes_them() -> None:
    """Else a line that is full would keep its queues paused until the delays are over."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        (machine,) = s.brokers
        machine.broker.refuse_give_backs(ResponseCode.SERVICE_NOT_AVAILABLE)
        handler = Once()
        async with member("g", s.namesrv, "one", handler, start_from="earliest", retry=Retry(delays=(600,))) as consumer:
            await send(s.namesrv, *[b"bad%d" % number for number in range(20)])
            await asyncio.sleep(30)
            assert consumer.position(A) == 0
            began = s.now
            machine.broker.refuse_give_backs(None)
            await consumer.wait_idle(timeout=60.0)
            assert not consumer.health().problems
            await asyncio.sleep(began + 600.0 - s.now)
            assert not handler.done, "the delay is the one that was asked for"
            await until(lambda: len(handler.done) == 20, 40.0)

    Simulation(3, brokers=1, faults=None).run(main)


def test_message_that_is_lost_while_it_rests_here_is_a_dead_letter_that_is_seen(caplog: pytest.LogCaptureFixture) -> None:
    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        (machine,) = s.brokers
        machine.broker.refuse_give_backs(ResponseCode.SERVICE_NOT_AVAILABLE)
        handler = Once()
        async with member("g", s.namesrv, "one", handler, start_from="earliest", retry=Retry(delays=(600,))) as consumer:
            await send(s.namesrv, b"bad")
            await asyncio.sleep(30)
            machine.broker.expire(A, 1)
            machine.broker.refuse_give_backs(None)
            await until(lambda: consumer.stats().dead_lettered, 60.0)

    Simulation(3, brokers=1, faults=None).run(main)
    (line,) = [text for record in caplog.records if (text := record.getMessage()).startswith("dead-lettered: ")]
    assert line.endswith("ValueError('as its body says')")


async def test_queues_of_a_broker_with_too_many_refused_messages_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(give_backs, "MOST_WAITING", 8)
    async with EmbeddedRocketMQ(brokers=2) as server:
        await create(server.namesrv, queues=1)
        server.refuse_give_backs(REFUSED)
        handled: Counter[str] = Counter()

        async def handler(message: MessageExt) -> None:
            handled[message.queue.broker_name] += 1
            if message.queue.broker_name == "broker-a":
                raise DeadLetter("fails")

        consumer = member("g", server.namesrv, "one", handler, start_from="earliest", pull_size=4, concurrency=2)
        async with consumer:
            await send_to(server.namesrv, A, *[b"bad"] * 200)
            await send_to(server.namesrv, B, *[b"good"] * 200)
            await until(lambda: handled["broker-b"] == 200)
            assert handled["broker-a"] < 40
            assert "its queues are paused" in consumer.health().problems[0].text
            server.refuse_give_backs(None)
            await until(lambda: handled["broker-a"] == 200)
            await consumer.wait_idle()
        assert len(server.dead_letters("g")) == 200


def test_answer_that_never_came_is_counted() -> None:
    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        s.brokers[0].broker.failures.lose(1, RequestCode.CONSUMER_SEND_MSG_BACK)
        handler = Once()
        async with member("g", s.namesrv, "one", handler, start_from="earliest", retry=Retry(delays=(1,))) as consumer:
            await send_to(s.namesrv, A, b"bad")
            await until(lambda: handler.done[b"bad"] == 2, 30.0)
            assert consumer.stats().unsure == 1

    Simulation(4, brokers=2, faults=None).run(main)


def test_stop_leaves_what_no_broker_takes_to_the_next_member() -> None:
    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        (machine,) = s.brokers
        machine.broker.refuse_give_backs(ResponseCode.SERVICE_NOT_AVAILABLE)
        first, second = Once(), Once(1)
        consumer = member("g", s.namesrv, "one", first, start_from="earliest", stop_timeout=5.0)
        await consumer.start()
        await send(s.namesrv, b"bad", b"good")
        await until(lambda: len(first.calls) == 2)
        began = s.now
        await consumer.stop()
        assert s.now - began < 7
        async with member("g", s.namesrv, "two", second):
            await until(lambda: second.done[b"bad"], 60.0)

    Simulation(5, brokers=1, faults=None).run(main)


@pytest.mark.parametrize("way", ["retry", "dead_letter"])
async def test_by_hand_no_call_waits_for_a_broker_that_takes_nothing_back(way: str) -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        server.refuse_give_backs(REFUSED)
        loop = asyncio.get_running_loop()
        async with Consumer("g", namesrv=server.namesrv, topics="T", start_from="earliest") as consumer:
            await send(server.namesrv, b"0", b"1")
            first, second = await consumer.receive(2)
            began = loop.time()
            taken = await (consumer.retry(first, 30) if way == "retry" else consumer.dead_letter(first))
            assert loop.time() - began < 3.01
            assert taken is (way == "retry"), "it is handed out again here after its delay"
            assert consumer.done(second)
            assert codes(consumer) == [("not_taken_back", "broker-a")]
            server.refuse_give_backs(None)
            await consumer.wait_idle(timeout=10.0)


async def test_iteration_goes_on_beside_marked_messages_that_no_broker_takes() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        server.refuse_give_backs(REFUSED)
        async with Consumer("g", namesrv=server.namesrv, topics="T", start_from="earliest") as consumer:
            await send(server.namesrv, *[b"%d" % number for number in range(6)])
            seen: list[bytes] = []
            async with asyncio.timeout(2.0):
                async for batch in consumer.batches(1):
                    seen.append(batch[0].body)
                    batch.mark_dead_letter(batch[0])
                    if len(seen) == 6:
                        break
            server.refuse_give_backs(None)


@pytest.mark.parametrize("order", ["key", "queue"])
def test_key_waits_for_its_dead_letter(order: str) -> None:
    """Else a member that takes the queue over would handle the message after those behind it."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        (machine,) = s.brokers
        machine.broker.refuse_give_backs(REFUSED)
        handled: list[bytes] = []

        async def handler(message: MessageExt) -> None:
            handled.append(message.body)
            if message.body == b"k0":
                raise DeadLetter("fails")

        def ordered(name: str) -> Consumer:
            consumer = Consumer("g", namesrv=s.namesrv, instance_name=name, start_from="earliest", concurrency=1)
            consumer.subscribe("T", handler, order=order)  # type: ignore[arg-type]
            return consumer

        async with Producer("p", namesrv=s.namesrv) as producer:
            for body in (b"k0", b"k1", b"l0", b"l1"):
                await producer.send(Message("T", body, sharding_key=body[:1].decode()), queue=A)
        one = ordered("one")
        await one.start()
        await asyncio.sleep(20)
        assert handled == ([b"k0", b"l0", b"l1"] if order == "key" else [b"k0"])
        await one.stop()
        handled.clear()
        async with ordered("two") as two:
            await asyncio.sleep(5)
            assert b"k1" not in handled
            machine.broker.refuse_give_backs(None)
            await until(lambda: b"k1" in handled, 60.0)
            await two.wait_idle(timeout=30.0)

    Simulation(6, brokers=1, faults=None).run(main)


async def test_group_with_an_ordered_topic_sends_no_copy_for_another_attempt() -> None:
    """Brokers from 5.1.4 on would dead-letter it, because of the locks of the group: the message is handled here again."""
    async with EmbeddedRocketMQ(brokers=2) as server:
        await create(server.namesrv, queues=1)
        await create(server.namesrv, "Other", queues=1)
        server.refuse_give_backs(REFUSED, broker="broker-a")
        handler = Once()
        consumer = Consumer("g", namesrv=server.namesrv, start_from="earliest", retry=Retry(delays=(1,)))
        consumer.subscribe("T", handler)
        consumer.subscribe("Other", handler, order="queue")
        async with consumer:
            await send_to(server.namesrv, A, b"bad")
            await until(lambda: handler.done[b"bad"], 10.0)
        assert handler.calls == [(b"bad", 1, "broker-a"), (b"bad", 2, "broker-a")]
        assert not server.dead_letters("g")


async def test_pop_whose_broker_takes_no_dead_letter_holds_no_slot() -> None:
    async with EmbeddedRocketMQ(brokers=2) as server:
        await create(server.namesrv, queues=1)
        async with Admin(namesrv=server.namesrv) as admin:
            await admin.create_group("g")
        server.refuse_give_backs(REFUSED)
        good: Counter[bytes] = Counter()

        async def handler(message: MessageExt) -> None:
            if message.body == b"bad":
                raise DeadLetter("fails")
            good[message.body] += 1

        consumer = member("g", server.namesrv, "one", handler, mode="pop", concurrency=2, start_from="earliest")
        async with consumer:
            await send_to(server.namesrv, A, *[b"bad"] * 20)
            await send_to(server.namesrv, B, *[b"%d" % number for number in range(40)])
            await until(lambda: len(good) == 40)
            await until(lambda: ("not_taken_back", "broker-a") in codes(consumer))
            assert consumer.stats().running == 0
            server.refuse_give_backs(None, broker="broker-b")
            await until(lambda: len(server.dead_letters("g")) == 20)
            await until(lambda: consumer.stats().buffered == 0)
        assert {dead.queue.broker_name for dead in server.dead_letters("g")} == {"broker-b"}
