"""Messages that fail although their broker has lost them, or stores another one in their place since its store was replaced."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmq_async import Consumer, DeadLetter, MessageExt, Retry
from rmq_async.testing.simulation import Simulation
from rmq_protocol.constants import ResponseCode

from .support import create, member, until
from .test_give_backs import A, send_to
from .test_lost_messages import lose

pytestmark = pytest.mark.virtual_time


class Handler:
    """A handler that counts calls by body, and gives up "old" when ``goes_on`` is set."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error or DeadLetter("as its body says")
        self.ids: dict[bytes, str] = {}
        self.calls: list[bytes] = []
        self.goes_on = asyncio.Event()

    async def __call__(self, message: MessageExt) -> None:
        self.ids.setdefault(message.body, message.msg_id)
        self.calls.append(message.body)
        if message.body == b"old" and not message.reconsume_times:
            await self.goes_on.wait()
            raise self.error


@pytest.mark.parametrize("how", ["read on", "paused", "pop"])
def test_message_in_place_of_a_failed_one_is_not_dead_lettered_for_it(how: str) -> None:
    """Brokers find what they are to give back by its place in the commit log: there is the next message of the same size."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        (machine,) = s.brokers
        handler = Handler()
        options: dict[str, Any] = {"mode": "pop"} if how == "pop" else {}
        async with member("g", s.namesrv, "one", handler, start_from="earliest", **options) as consumer:
            await send_to(s.namesrv, A, b"000", b"old")
            await until(lambda: len(handler.calls) == 2)
            if how == "paused":
                consumer.pause()
            lose(s, 1)
            await send_to(s.namesrv, A, b"new")
            if how == "read on":
                await until(lambda: b"new" in handler.calls, 30.0)
            handler.goes_on.set()
            await until(lambda: consumer.stats().dead_lettered, 60.0)
            dead = [each.unique_id for each in machine.stored() if each.topic == "%DLQ%g"]
            assert dead == [handler.ids[b"old"]]
            consumer.resume()
            if how != "pop":  # brokers pop no offset twice
                await until(lambda: b"new" in handler.calls, 60.0)

    Simulation(1, brokers=1, faults=None).run(main)


def test_failed_message_of_a_lost_place_has_its_next_attempt() -> None:
    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        handler = Handler(ValueError("fails"))
        consumer = member("g", s.namesrv, "one", handler, start_from="earliest", retry=Retry(delays=(1,)))
        async with consumer:
            await send_to(s.namesrv, A, b"000", b"old")
            await until(lambda: len(handler.calls) == 2)
            lose(s, 1)
            await send_to(s.namesrv, A, b"new")
            handler.goes_on.set()
            await until(lambda: handler.calls.count(b"old") == 2, 30.0)
            await consumer.wait_idle(timeout=30.0)
        assert handler.calls.count(b"new") == 1

    Simulation(1, brokers=1, faults=None).run(main)


def test_message_that_waits_to_be_handled_again_settles_no_other_one_at_its_offset() -> None:
    """No broker takes it, so that it would be handled here again; meanwhile its offset has become that of a message in a call."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        (machine,) = s.brokers
        machine.broker.refuse_give_backs(ResponseCode.SERVICE_NOT_AVAILABLE)
        ends = asyncio.Event()
        calls: list[bytes] = []

        async def handler(message: MessageExt) -> None:
            calls.append(message.body)
            if message.body == b"new":
                await ends.wait()
            elif message.body == b"old" and not message.reconsume_times:
                raise ValueError("fails")

        consumer: Consumer = member("g", s.namesrv, "one", handler, start_from="earliest", retry=Retry(delays=(20,)))
        async with consumer:
            await send_to(s.namesrv, A, b"0", b"old")
            await until(lambda: len(calls) == 2)
            await asyncio.sleep(5)
            lose(s, 1)
            await send_to(s.namesrv, A, b"new")
            await until(lambda: b"new" in calls, 30.0)
            await asyncio.sleep(40)
            assert consumer.position(A) == 1
            machine.broker.refuse_give_backs(None)
            await until(lambda: calls.count(b"old") == 2, 60.0)
            assert consumer.position(A) == 1
            ends.set()
            await consumer.wait_idle(timeout=30.0)
            assert consumer.position(A) == 2

    Simulation(1, brokers=1, faults=None).run(main)


def test_message_that_is_read_again_while_it_is_given_back_is_handled_once_more_only() -> None:
    """The queue goes back further than the loss, and finds the message where it was."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        (machine,) = s.brokers
        machine.broker.refuse_give_backs(ResponseCode.SERVICE_NOT_AVAILABLE)
        handler = Handler(ValueError("fails"))
        handler.goes_on.set()
        consumer = member("g", s.namesrv, "one", handler, start_from="earliest", retry=Retry(delays=(30,)))
        async with consumer:
            await send_to(s.namesrv, A, b"old", *[b"%d" % number for number in range(3)])
            await until(lambda: len(handler.calls) == 4)
            lose(s, 3)
            await send_to(s.namesrv, A, b"new")
            await until(lambda: b"new" in handler.calls, 25.0)
            assert consumer.position(A) == 0
            await until(lambda: handler.calls.count(b"old") == 2, 60.0)
            await until(lambda: consumer.position(A) == 2)
            assert handler.calls.count(b"old") == 2

    Simulation(1, brokers=1, faults=None).run(main)
