"""Which objects are hooks, how long they are called, and what their calls keep alive."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from rmq_async import ConfigError, Hook, Producer, SendContext
from rmq_async.errors import ForbiddenError
from rmq_async.producer.watching.watch import Watch, WatchedAttempt

from ...support.fakes import Cluster, each, refuse, silence, stored
from ...support.instances import client_of
from ..support import core_of, deferred, message, messages, outcomes, producer, spin
from .support import SEND, Requests, Seen

pytestmark = pytest.mark.virtual_time


async def test_hooks_leave_with_their_producer(cluster: Cluster) -> None:
    first, second = Seen(), Seen()
    early, late_ = Requests(), Requests()
    one = producer(cluster, group="one", hooks=[first, early])
    two = producer(cluster, group="two", hooks=[second, late_])
    await one.start()
    await two.start()
    await one.send(message())
    await two.send(message())
    assert (len(first.ended), len(second.ended)) == (1, 1)
    assert len(early.of(*SEND)) == len(late_.of(*SEND)) == 2  # requests belong to the client they share
    await one.stop()
    await two.send(message())
    assert (len(first.ended), len(second.ended)) == (1, 2)
    assert (len(early.of(*SEND)), len(late_.of(*SEND))) == (2, 3)
    hooks = (await client_of(two)).pool.hooks
    await two.stop()
    assert not hooks.active
    assert not hooks.on_change


async def test_a_second_producer_takes_the_short_way_again_when_the_hooked_one_is_gone(cluster: Cluster) -> None:
    async with producer(cluster, group="plain") as plain:
        await plain.send(message())
        usual = core_of(plain).plain_below
        assert usual > 0
        async with producer(cluster, group="hooked", hooks=[Requests()]) as hooked:
            assert core_of(plain).plain_below == 0
            await plain.send(message())
            await hooked.send(message())
        assert core_of(plain).plain_below == usual
        await plain.send(message())
    assert len(cluster.sends) == 4


async def test_objects_of_any_class_will_do(cluster: Cluster) -> None:
    class Any_:
        def __init__(self) -> None:
            self.seen: list[str] = []

        def after_send(self, context: SendContext) -> None:
            self.seen.append(context.msg_id)

    hook = Any_()
    async with producer(cluster, hooks=[hook]) as sender:
        result = await sender.send(message())
    assert hook.seen == [result.msg_id]


def test_what_is_no_hook_is_refused() -> None:
    class Coroutine:
        async def after_send(self, context: SendContext) -> None: ...

    class Nothing: ...

    for hooks in (Coroutine(), [Coroutine()], [Nothing()], [Seen], Seen(), 7, [None]):
        with pytest.raises(ConfigError, match=r"ook|plain function"):
            Producer("g", hooks=hooks)


def watched_things() -> list[object]:
    """Those there are, of all tests: an error that pytest keeps keeps some."""
    return [thing for thing in gc.get_objects() if isinstance(thing, Watch | WatchedAttempt | SendContext)]


@pytest.mark.parametrize("how", ["stored", "retried", "refused", "forbidden", "timed out", "cancelled", "one-way", "batch"])
async def test_watched_calls_are_freed(pair: Cluster, how: str, tracked: list[Any]) -> None:
    """``Outgoing`` is invisible to the collector: a cycle through it would stay for ever, and with it the contexts of hooks."""

    class Keeps(Hook):
        """Keeps the last context, and with it the error and its traceback, whose frames know the call."""

        def before_send(self, context: SendContext) -> None:
            context.state[self] = context

        def check_forbidden(self, context: SendContext) -> None:
            if how == "forbidden":
                raise ForbiddenError("no")

        def after_send(self, context: SendContext) -> None:
            self.last = context

    before = [id(thing) for thing in watched_things()]
    answers = {"retried": each(refuse(1), stored), "refused": refuse(13), "timed out": silence, "cancelled": silence}
    answer = answers.get(how, stored)
    pair.answer(lambda link, sent: answer(link, sent))
    async with producer(pair, hooks=[Keeps(), Requests()], retries=1) as sender:
        for _ in range(3):
            if how == "batch":
                await sender.send_batch(messages(2))
            elif how == "one-way":
                await sender.send_oneway(message())
            elif how == "cancelled":
                call = asyncio.ensure_future(sender.send(message()))
                await asyncio.sleep(0.01)
                call.cancel()
                await outcomes(call)
                del call
            else:
                await outcomes(sender.send(message(), timeout=0.1), deferred(sender, timeout=0.1))
    del sender
    tracked.clear()
    await spin(3)
    for _ in range(3):  # a collection that finds something with a finalizer leaves the rest to the next one
        gc.collect()
    assert not [thing for thing in watched_things() if id(thing) not in before]
