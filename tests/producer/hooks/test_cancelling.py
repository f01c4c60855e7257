"""A hook may cancel the call that it watches; the other calls of the connection go on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmq_async import ConnectionLostError, Hook, SendContext

from ...support.fakes import Answer, Cluster, reset, silence, stored
from ..support import awaited, core_of, message, outcomes, producer, until
from .support import WAYS

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("answer", [stored, reset], ids=["stored", "reset"])
async def test_hook_that_cancels_the_call_it_watches(cluster: Cluster, name: str, answer: Answer) -> None:
    """The other calls on the connection go on: each has its result, or the error of a lost connection."""

    class Canceller(Hook):
        call: asyncio.Task[Any] | None = None

        def after_send(self, context: SendContext) -> None:
            if self.call is not None:
                self.call.cancel()

    hook = Canceller()
    async with producer(cluster, hooks=[hook], retries=0, async_retries=0) as sender:
        await sender.send(message())
        cluster.a.answer = silence
        call = hook.call = asyncio.create_task(WAYS[name](sender))
        await until(lambda: len(cluster.sends) == 2)
        others = [asyncio.create_task(awaited(sender)) for _ in range(3)]
        await until(lambda: len(cluster.sends) == 5)
        link = cluster.a.open_links[0]
        for sent in cluster.sends[1:]:
            answer(link, sent)
        ends = await asyncio.wait_for(outcomes(call, *others), 1.0)
        assert isinstance(ends[0], asyncio.CancelledError)
        if answer is stored:
            assert not [end for end in ends[1:] if isinstance(end, BaseException)]
        else:
            assert [type(end) for end in ends[1:]] == [ConnectionLostError] * 3
        assert core_of(sender).credits.taken == 0
