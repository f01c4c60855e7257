"""Plain handlers on machines that refuse threads: no call begins, no attempt counts, and the messages stay.

Threads, and processes that end with them, take real time.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from typing import Any

import pytest

from rmq_async import Admin, Consumer, Message, MessageExt, Outcome, Producer, Retry
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.testing.simulation import Simulation

from .support import create, member, send, until

KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "pulling": ({}, {}),
    "popping": ({"mode": "pop", "invisible_time": 10.0}, {}),
    "broadcast": ({"broadcast": True}, {}),
    "by key": ({}, {"order": "key", "key": lambda message: message.body[:1]}),
    "by queue": ({}, {"order": "queue"}),
    "batches": ({}, {"batch_size": 4, "batch_wait": 0.1}),
    "with a rate": ({}, {"rate": 50.0}),
}
"""Options of the consumer, and of its subscription."""


def reports(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [
        (each.levelname, each.getMessage()) for each in caplog.records if each.name == "rmq_async.consumer.handling.threads"
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_messages_wait_while_threads_are_refused(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rmq_async.consumer.handling.threads")
    options, subscribing = KINDS[kind]
    attempts: dict[bytes, list[int]] = {}

    def handler(given: Any) -> None:
        for message in [given] if isinstance(given, MessageExt) else given:
            attempts.setdefault(message.body, []).append(message.reconsume_times + 1)

    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=2)
        consumer = Consumer("g", namesrv=s.namesrv, retry=Retry(limit=2, delays=(1, 1)), start_from="earliest", **options)
        consumer.subscribe("T", handler, **subscribing)
        async with consumer, Producer("p", namesrv=s.namesrv) as producer:
            s.machine("main").refuse_threads()
            for number in range(12):
                await producer.send(Message("T", b"%d" % number))
            await asyncio.sleep(40)
            health = consumer.health()
            assert [problem.code for problem in health.problems] == ["no_threads"]
            assert "raise the limit" in health.problems[0].text
            assert (attempts, health.ready, consumer.stats().failed) == ({}, False, 0)
            s.machine("main").refuse_threads(False)
            await consumer.wait_idle(timeout=20)
            assert attempts == {b"%d" % number: [1] for number in range(12)}
            health = consumer.health()
            assert (health.ready, health.problems) == (True, ())
        [warning, end] = reports(caplog)
        assert warning[0] == "WARNING"
        assert "plain handlers cannot be called, and their messages wait" in warning[1]
        assert end[0] == "INFO"

    Simulation(1, brokers=1, faults=None).run(main)


def test_popped_messages_that_outlast_their_leases_count_no_attempt(caplog: pytest.LogCaptureFixture) -> None:
    """Each of them became a dead letter without a call."""
    caplog.set_level(logging.WARNING, "rmq_async.consumer.pop")
    called: list[tuple[bytes, int]] = []

    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=2)
        options: dict[str, Any] = {"mode": "pop", "invisible_time": 10.0, "max_lease": 20.0, "retry": Retry(limit=0)}
        consumer = Consumer("g", namesrv=s.namesrv, start_from="earliest", **options)
        consumer.subscribe("T", lambda message: called.append((message.body, message.reconsume_times)))
        async with consumer, Producer("p", namesrv=s.namesrv) as producer:
            s.machine("main").refuse_threads()
            for number in range(4):
                await producer.send(Message("T", b"%d" % number))
            await asyncio.sleep(300)
            assert (consumer.stats().buffered, consumer.health().problems[0].code) == (0, "no_threads")
            s.machine("main").refuse_threads(False)
            await asyncio.sleep(10)
            assert (sorted(called), consumer.stats().dead_lettered) == ([(b"%d" % number, 0) for number in range(4)], 0)

    Simulation(1, brokers=1, faults=None).run(main)
    assert " messages have waited for a call for max_lease=20 s and are given back" in caplog.text


def test_coroutine_functions_go_on_while_threads_are_refused() -> None:
    """The messages of the plain handler take none of the slots."""
    called: list[bytes] = []

    def plain(_: MessageExt) -> None:
        raise AssertionError("no thread runs it")

    async def handler(message: MessageExt) -> None:
        await asyncio.sleep(0.01)
        called.append(message.body)

    async def main(s: Simulation) -> None:
        await create(s.namesrv, "Plain", queues=1)
        await create(s.namesrv, queues=1)
        consumer = member("g", s.namesrv, "one", handler, concurrency=2)
        consumer.subscribe("Plain", plain)
        async with consumer, Producer("p", namesrv=s.namesrv) as producer:
            s.machine("main").refuse_threads()
            for number in range(20):
                await producer.send(Message("Plain", b"x"))
                await producer.send(Message("T", b"%d" % number))
            await consumer.wait_settled(20, timeout=10)
            assert (len(called), consumer.stats().running, consumer.stats().buffered) == (20, 0, 20)

    Simulation(1, brokers=1, faults=None).run(main)


def test_stop_does_not_wait_for_threads() -> None:
    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        called: list[bytes] = []
        consumer = member("g", s.namesrv, "one", lambda message: called.append(message.body))
        await consumer.start()
        async with Producer("p", namesrv=s.namesrv) as producer:
            s.machine("main").refuse_threads()
            await producer.send(Message("T", b"x"))
            await asyncio.sleep(1)
            began = s.now
            await consumer.stop()
            assert s.now - began < 0.05
            s.machine("main").refuse_threads(False)
            async with member("g", s.namesrv, "two", lambda message: called.append(message.body)) as other:
                await other.wait_idle(timeout=10)
        assert called == [b"x"]

    Simulation(1, brokers=1, faults=None).run(main)


async def test_one_thread_calls_the_handler_once_for_each_message(refusing: list[bool]) -> None:
    """``ThreadPoolExecutor.submit`` raises for work that it has queued, so that work which counts as failed runs all the same."""
    called: list[tuple[bytes, int]] = []

    def handler(message: MessageExt) -> None:
        called.append((message.body, message.reconsume_times))

    async with EmbeddedRocketMQ() as server, Producer("p", namesrv=server.namesrv) as producer:
        await create(server.namesrv, queues=4)
        async with member("g", server.namesrv, "one", handler, concurrency=20) as consumer:
            await producer.send(Message("T", b"first"))
            (first,) = await consumer.wait_settled(1)
            refusing[0] = True
            await asyncio.gather(*[producer.send(Message("T", b"%d" % number)) for number in range(12)])
            others = await consumer.wait_settled(12)
            assert {each.outcome for each in (first, *others)} == {Outcome.DONE}
            assert sorted(called) == sorted([(b"first", 0), *[(b"%d" % number, 0) for number in range(12)]])
            health = consumer.health()
            assert [problem.code for problem in health.problems] == ["no_threads"]
            assert "have 1 of 20 threads" in health.problems[0].text
            assert health.ready
            refusing[0] = False
            await until(lambda: not consumer.health().problems)


async def test_call_for_a_tool_says_that_threads_are_refused(refusing: list[bool]) -> None:
    async with EmbeddedRocketMQ() as server, Admin(namesrv=server.namesrv) as admin:
        await create(server.namesrv, queues=1)
        await send(server.namesrv, b"x")
        async with member("g", server.namesrv, "one", lambda message: None) as consumer:
            (online,) = await admin.group_members("g")
            refusing[0] = True
            result = await admin.consume_directly("g", online.client_id, server.messages("T")[0])
            refusing[0] = False
            assert result.consume_result == "CR_THROW_EXCEPTION"
            assert "no thread can be started (can't start new thread); raise the limit" in result.remark
            assert consumer.health().ready


PROGRAM = """
import asyncio, atexit, logging, threading
from rmq_async import Admin, Consumer, Message, Producer, Retry
from rmq_async.embedded import EmbeddedRocketMQ

async def go():
    async with EmbeddedRocketMQ() as server, Producer("p", namesrv=server.namesrv) as producer:
        while {waits}:
            await asyncio.sleep(0.01)
        await producer.send(Message("T", b"small"))
        called = []
        consumer = Consumer("g", namesrv=server.namesrv, start_from="earliest", retry=Retry(limit=1, delays=[0.0, 0.0]))
        consumer.subscribe("T", lambda message: called.append(message.body))
        async with consumer:
            await producer.send(Message("T", b"large" * 30_000))
            async with asyncio.timeout(60):
                while len(called) < 2 and not consumer.health().problems:
                    await asyncio.sleep(0.01)
            print(len(called), len(server.dead_letters("g")), [str(each.code) for each in consumer.health().problems])

{start}
"""


@pytest.mark.parametrize("ending", ["in a thread", "in atexit"])
def test_plain_handlers_when_the_main_thread_has_ended(ending: str) -> None:
    """They are called, or their messages wait: CPython 3.12.0 and 3.12.1 refuse all threads then."""
    waits = "threading.main_thread().is_alive()" if ending == "in a thread" else "False"
    start = "threading.Thread(target=lambda: asyncio.run(go())).start()"
    if ending == "in atexit":
        start = "atexit.register(lambda: asyncio.run(go()))"
    program = PROGRAM.format(waits=waits, start=start)
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    refuses = (3, 12, 0) <= sys.version_info[:3] <= (3, 12, 1)
    assert run.stdout == ("0 0 ['no_threads']\n" if refuses else "2 0 []\n"), run.stderr


def test_process_exits_after_a_plain_handler_has_returned() -> None:
    program = """
import asyncio, threading, time
from rmq_async import Admin, Consumer, Message, Producer
from rmq_async.embedded import EmbeddedRocketMQ

begun, stopped = threading.Event(), threading.Event()

def handler(message):
    begun.set()
    stopped.wait()
    time.sleep(0.2)  # until the main thread is at its end
    print("returned")

async def main():
    async with EmbeddedRocketMQ() as server, Producer("p", namesrv=server.namesrv) as producer:
        async with Admin(namesrv=server.namesrv) as admin:
            await admin.create_topic("T", queues=1)
        consumer = Consumer("g", namesrv=server.namesrv, start_from="earliest", stop_timeout=0.0)
        consumer.subscribe("T", handler)
        async with consumer:
            await producer.send(Message("T", b"x"))
            while not begun.is_set():
                await asyncio.sleep(0.001)

asyncio.run(main())
stopped.set()
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (run.stdout, run.returncode) == ("returned\n", 0), run.stderr
