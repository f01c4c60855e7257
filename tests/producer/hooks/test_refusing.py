"""A hook may refuse a message before it is sent; a check that fails refuses it, too."""

from __future__ import annotations

import asyncio

import pytest

from rmq_async import Hook, SendContext, SendError
from rmq_async.errors import ForbiddenError

from ...support.fakes import Cluster, refuse
from ..support import Calls, message, producer
from .support import WAYS, Seen


@pytest.mark.parametrize("name", [*WAYS, "oneway"])
async def test_a_hook_may_refuse_a_message(pair: Cluster, name: str) -> None:
    class Refuses(Seen):
        def check_forbidden(self, context: SendContext) -> None:
            super().check_forbidden(context)
            raise ForbiddenError(f"{context.queue.topic} is closed")

    refuses, behind = Refuses(), Seen()
    async with producer(pair, hooks=[refuses, behind]) as sender:
        with pytest.raises(ForbiddenError, match="T is closed") as caught:
            await (sender.send_oneway(message()) if name == "oneway" else WAYS[name](sender))
        assert not caught.value.maybe_stored
        calls = Calls()
        future = await sender.send_async(message(), **calls.both)
        with pytest.raises(ForbiddenError):
            await future
        assert [type(error) for error in calls.errors] == [ForbiddenError]
    assert refuses.order == ["check"] * 2
    assert not behind.order
    assert not pair.sends


@pytest.mark.parametrize("name", [*WAYS, "oneway"])
async def test_a_check_that_fails_refuses_too(cluster: Cluster, name: str) -> None:
    error: BaseException

    class Broken(Hook):
        def check_forbidden(self, context: SendContext) -> None:
            raise error

    async with producer(cluster, hooks=[Broken()]) as sender:
        for each in (KeyError("no such user"), asyncio.CancelledError("no such user")):
            error = each
            with pytest.raises(ForbiddenError, match="no such user"):
                await (sender.send_oneway(message()) if name == "oneway" else WAYS[name](sender))
        assert sender.health().unanswered == 0
    assert not cluster.sends


@pytest.mark.parametrize("name", [*WAYS, "oneway"])
async def test_a_check_that_ends_the_program_costs_no_credit(cluster: Cluster, name: str) -> None:
    class End(BaseException): ...

    class Ends(Hook):
        def check_forbidden(self, context: SendContext) -> None:
            raise End

    async with producer(cluster, hooks=[Ends()]) as sender:
        with pytest.raises(End):
            await (sender.send_oneway(message()) if name == "oneway" else WAYS[name](sender))
        assert sender.health().unanswered == 0


async def test_a_retry_may_be_refused(pair: Cluster) -> None:
    class Once(Seen):
        def check_forbidden(self, context: SendContext) -> None:
            if context.attempt == 2:
                raise ForbiddenError("once is enough")

    seen = Once()
    pair.answer(refuse(1))
    async with producer(pair, hooks=[seen]) as sender:
        with pytest.raises(SendError) as caught:
            await sender.send(message())
    assert isinstance(caught.value.__cause__, ForbiddenError)
    assert seen.ended == [(1, "BrokerSystemError")]
    assert len(pair.sends) == 1
