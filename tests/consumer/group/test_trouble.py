"""Starts that are cancelled, and errors that handlers and brokers rarely give."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import suppress
from itertools import pairwise

import pytest

from rmq_async import ClientStateError, Consumer, Message, MessageExt, Outcome, Producer, Retry, RocketMQError
from rmq_async.consumer.group import rebalance as missing
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.testing.simulation import Simulation
from rmq_protocol.constants import RequestCode, ResponseCode
from rmq_protocol.message import MessageQueue

from .support import Seen, create, member, send, until

pytestmark = pytest.mark.interpreters


@pytest.mark.parametrize("how", ["cancelled", "stopped"])
def test_start_ended_while_it_waits_for_queues(how: str) -> None:
    """The other member drains its queues then. The group can be joined again at once, and no task is left."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv)
        other = member("g", s.namesrv, "other", Seen(lambda message: asyncio.sleep(8)), start_from="earliest")
        await other.start()
        await send(s.namesrv, *[b"%d" % number for number in range(40)])
        seen = Seen()
        consumer = member("g", s.namesrv, "one", seen)
        starting = asyncio.create_task(consumer.start())
        await asyncio.sleep(2)
        if how == "cancelled":
            starting.cancel()
        else:
            await consumer.stop()
        with pytest.raises(asyncio.CancelledError if how == "cancelled" else ClientStateError):
            await starting
        assert not [task.get_name() for task in asyncio.all_tasks() if "takeover" in task.get_name()][1:]
        async with consumer:
            assert consumer.health().live
        await other.stop()

    Simulation(1, faults=None).run(main)


@pytest.mark.virtual_time
async def test_message_that_its_broker_cannot_write_now_is_given_back_later() -> None:
    """Code 1 is also the answer of a broker whose page cache is busy; that is no reason for a dead letter."""
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        failing = True

        async def handler(message: MessageExt) -> None:
            nonlocal failing
            if failing:
                failing = False
                server.fail_next(1, request=RequestCode.CONSUMER_SEND_MSG_BACK)
                raise ValueError("fails")

        consumer = Consumer("g", namesrv=server.namesrv, retry=Retry(delays=(1,)))
        consumer.subscribe("T", handler)
        async with consumer:
            await send(server.namesrv, b"x")
            first, second = await consumer.wait_settled(2, timeout=20.0)
        assert (first.outcome, second.outcome) == (Outcome.RETRIED, Outcome.DONE)


def test_stop_while_the_broker_is_down_ends() -> None:
    """A message with settled ones behind it cannot be given back then; it stays uncommitted."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        seen = Seen()

        async def handler(message: MessageExt) -> None:
            if message.body == b"hangs" and message.body not in hung:
                hung.append(message.body)
                await asyncio.Event().wait()
            await seen(message)

        hung: list[bytes] = []
        consumer = member("g", s.namesrv, "one", handler)
        await consumer.start()
        await send(s.namesrv, b"hangs", b"settled")
        await until(lambda: seen.bodies)
        await asyncio.sleep(10)  # the broker writes offsets every 5 s
        s.machine("broker-a").crash()
        began = s.now
        await consumer.stop()
        assert 24.9 < s.now - began < 25.1
        s.machine("broker-a").restart()
        await asyncio.sleep(30)
        async with member("g", s.namesrv, "two", handler):
            await until(lambda: b"hangs" in seen.bodies, 100.0)

    Simulation(2, brokers=1, faults=None).run(main)


class Odd(BaseException):
    """As pytest's ``fail`` and ``skip`` raise."""


class Unprintable(Exception):
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


@pytest.mark.parametrize("error", [Odd("odd"), GeneratorExit(), Unprintable(), StopIteration(3)])
@pytest.mark.parametrize("plain", [False, True])
async def test_handler_that_raises_an_unusual_error_gets_its_message_again(error: BaseException, plain: bool) -> None:
    async with EmbeddedRocketMQ(delay_levels=[0.01]) as server:
        await create(server.namesrv)
        attempts: list[int] = []

        def handler(message: MessageExt) -> None:
            attempts.append(message.reconsume_times)
            if len(attempts) == 1:
                raise error

        async def coroutine(message: MessageExt) -> None:
            handler(message)

        consumer = Consumer("g", namesrv=server.namesrv, retry=Retry(delays=(1,)))
        consumer.subscribe("T", handler if plain else coroutine)
        async with consumer:
            await send(server.namesrv, b"x")
            first, second = await consumer.wait_settled(2, timeout=60.0)
        assert (first.outcome, second.outcome) == (Outcome.RETRIED, Outcome.DONE)


def test_message_that_is_not_given_back_is_a_problem_only_while_its_queue_is_held() -> None:
    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        s.brokers[0].broker.failures.add(ResponseCode.SYSTEM_BUSY, 1000, RequestCode.CONSUMER_SEND_MSG_BACK)

        async def fail(message: MessageExt) -> None:
            raise ValueError("fails")

        async with member("g", s.namesrv, "two", fail, start_from="earliest", handover_timeout=3.0) as consumer:
            await send(s.namesrv, b"x")
            await asyncio.sleep(5)
            assert "not_taken_back" in {problem.code for problem in consumer.health().problems}
            async with member("g", s.namesrv, "one", Seen()):  # the first of the list, so the only queue goes to it
                await asyncio.sleep(60)
                assert not consumer.health().problems

    Simulation(3, brokers=1, faults=None).run(main)


def test_broker_that_did_not_unlock_a_queue_is_a_problem_only_while_queues_are_there() -> None:
    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        async with member("g", s.namesrv, "two", Seen(), handover_timeout=3.0) as consumer:
            s.brokers[0].broker.failures.add(ResponseCode.SYSTEM_BUSY, 2, RequestCode.UNLOCK_BATCH_MQ)
            async with member("g", s.namesrv, "one", Seen()):  # the first of the list, so the only queue goes to it
                await until(lambda: not consumer.assignment, 30.0)
                await asyncio.sleep(60)
                assert not consumer.health().problems

    Simulation(7, brokers=1, faults=None).run(main)


def test_queues_of_a_broker_that_left_the_route_are_a_problem_until_they_are_back_or_for_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For an hour; here for 300 s: an hour in simulation takes four seconds of the processor."""
    assert missing.NAMED_FOR == 3600.0
    monkeypatch.setattr(missing, "NAMED_FOR", 300.0)

    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=2)
        known = s.name_servers[0].registrations
        async with member("g", s.namesrv, "one", Seen(), start_from="earliest") as consumer:
            await asyncio.sleep(1)
            assert not consumer.health().problems
            known.forgotten["broker-b"] = None
            await asyncio.sleep(150)  # routes are asked for each 30 s
            problems = [problem for problem in consumer.health().problems if problem.code == "queue_missing"]
            assert {problem.broker for problem in problems} == {"broker-b"}
            text = next(problem.text for problem in problems if "topic T " in problem.text)
            assert text.startswith("queues 0, 1 of topic T on broker-b left the topic's route 12")
            del known.forgotten["broker-b"]
            await asyncio.sleep(90)
            assert not consumer.health().problems
            known.forgotten["broker-b"] = None
            await asyncio.sleep(290)
            assert consumer.health().problems
            await asyncio.sleep(80)
            assert not consumer.health().problems

    Simulation(5, brokers=2, faults=None).run(main)


def test_queues_taken_away_are_a_problem_only_where_messages_in_them_were_not_read() -> None:
    async def main(s: Simulation) -> None:
        await create(s.namesrv, "Read", queues=2)
        await create(s.namesrv, "Unread", queues=2)
        await send(s.namesrv, *[b"x"] * 4, topic="Read")
        await send(s.namesrv, *[b"x"] * 4, topic="Unread")

        async def hang(message: MessageExt) -> None:
            await asyncio.sleep(600)

        consumer = Consumer("g", namesrv=s.namesrv, start_from="earliest", handover_timeout=2.0)
        consumer.subscribe("Read", seen := Seen())
        consumer.subscribe("Unread", hang)
        async with consumer:
            await until(lambda: seen.bodies[b"x"] == 4)
            s.brokers[0].resize("Read", 1)
            s.brokers[0].resize("Unread", 1)
            await asyncio.sleep(150)
            (problem,) = [problem for problem in consumer.health().problems if problem.code == "queue_missing"]
            assert problem.queue == MessageQueue("Unread", "broker-a", 1)
            assert "queues 1 of topic Unread on broker-a left the topic's route" in problem.text
            assert "no member reads their 2 messages" in problem.text

    Simulation(6, brokers=1, faults=None).run(main)


def test_topic_that_name_servers_have_forgotten_is_read_soon_after_they_know_it() -> None:
    """The other members leave a new member its share, also where it does not know the topic yet."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv)
        known = s.name_servers[0].registrations
        known.forgotten["broker-a"] = None
        async with member("g", s.namesrv, "one", seen := Seen(), start_from="earliest") as consumer:
            await asyncio.sleep(35)
            assert [problem.code for problem in consumer.health().problems] == ["group_unknown"]
            del known.forgotten["broker-a"]
            await send(s.namesrv, b"x")
            await until(lambda: seen.bodies, 5.0)
            await asyncio.sleep(5)
            assert not consumer.health().problems

    Simulation(4, brokers=1, faults=None).run(main)


def test_queues_of_a_broker_that_restarts_are_shared_anew_within_seconds() -> None:
    """The members learn at different times that it is back, and what one gives up then is read when the other knows it."""
    gaps: dict[MessageQueue, float] = {}

    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=2)
        handled: defaultdict[MessageQueue, list[float]] = defaultdict(list)

        async def handler(message: MessageExt) -> None:
            handled[message.queue].append(s.now)

        async def send_to(broker: str) -> None:
            async with Producer(f"to-{broker}", namesrv=s.namesrv, instance_name=broker, retries=0) as producer:
                while s.now < 60:
                    for queue_id in range(2):
                        with suppress(RocketMQError):
                            await producer.send(Message("T", b"x"), queue=MessageQueue("T", broker, queue_id), timeout=0.5)
                    await asyncio.sleep(0.2)

        async with (
            member("g", s.namesrv, "one", handler, start_from="earliest"),
            member("g", s.namesrv, "two", handler, start_from="earliest"),
            asyncio.TaskGroup() as sending,
        ):
            for broker in ("broker-a", "broker-b"):
                sending.create_task(send_to(broker))
            await asyncio.sleep(20)
            s.machine("broker-a").crash()
            await asyncio.sleep(20)
            s.machine("broker-a").restart()
            restarted = s.now
        for queue, times in handled.items():
            if queue.broker_name == "broker-a":
                gaps[queue] = min(at for at in times if at > restarted) - restarted
            else:
                gaps[queue] = max(later - earlier for earlier, later in pairwise(times))

    Simulation(7, faults=None).run(main)
    print(gaps)
    assert len(gaps) == 4
    assert max(gaps.values()) < 5


@pytest.mark.parametrize("servers", [1, 2])
def test_name_servers_that_crash_are_named_within_seconds_and_no_longer_when_they_are_back(servers: int) -> None:
    """Between two polls of routes, which come each 30 s. One name server of two that crashes is no problem."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv)
        async with member("g", s.namesrv, "one", Seen()) as consumer:

            def is_named() -> bool:
                return "no_name_server" in [problem.code for problem in consumer.health().problems]

            async def seconds_until(named: bool) -> float:
                since = s.now
                while is_named() != named:
                    await asyncio.sleep(0.1)
                return s.now - since

            machines = [s.machine(f"namesrv-{number}") for number in range(servers)]
            for machine in machines[1:]:
                machine.crash()
                await asyncio.sleep(10)
                assert not is_named()
            machines[0].crash()
            assert await seconds_until(True) < 6
            await asyncio.sleep(22)
            assert is_named()
            for machine in machines:
                machine.restart()
            assert await seconds_until(False) < 12

    Simulation(1, brokers=1, name_servers=servers, faults=None).run(main)


@pytest.mark.virtual_time
async def test_broker_that_stops_is_one_line_in_the_log_for_all_its_queues(caplog: pytest.LogCaptureFixture) -> None:
    async with EmbeddedRocketMQ(brokers=2) as server:
        await create(server.namesrv, queues=8)
        seen = Seen()
        async with member("g", server.namesrv, "one", seen) as consumer:
            assert len(consumer.assignment) == 18  # two of the retry topic
            await server.stop()
            await until(lambda: unreadable(consumer) >= consumer.assignment)
            said = failing_pulls(caplog)
            assert [text.partition(", ")[0] for text in sorted(said)] == ["pulls from broker-a", "pulls from broker-b"]
            assert all(f"broker_name='{text[11:19]}'" in text and "connection lost" in text for text in said)
            await server.start()
            await send(server.namesrv, b"x")
            await until(lambda: seen.bodies[b"x"], timeout=20.0)
        assert failing_pulls(caplog) == said


@pytest.mark.virtual_time
async def test_pulls_that_a_broker_refuses_are_a_line_for_each_queue(caplog: pytest.LogCaptureFixture) -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=8)
        server.fail_next(ResponseCode.NO_PERMISSION, 8, request=RequestCode.PULL_MESSAGE)
        async with member("g", server.namesrv, "one", Seen()):
            await until(lambda: len(failing_pulls(caplog)) == 8)
        assert {text.partition("(")[0] for text in failing_pulls(caplog)} == {"pulls of MessageQueue"}


def unreadable(consumer: Consumer) -> set[MessageQueue]:
    found = (problem.queue for problem in consumer.health().problems if problem.code == "queue_unreadable")
    return {queue for queue in found if queue is not None}


def failing_pulls(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for record in caplog.records if "fail and are repeated" in (text := record.getMessage())]
