"""Hooks of a producer that gathers its sends."""

from __future__ import annotations

import asyncio
from typing import Any

from rmq_async import Hook
from rmq_async.errors import ForbiddenError
from rmq_protocol.command import RemotingCommand

from ...support.fakes import TOPIC, Cluster
from ..support import messages, outcomes, producer
from .support import BATCH, at_rest, requests


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


async def test_a_hook_that_raises_loses_no_call(cluster: Cluster, loop_errors: list[dict[str, Any]]) -> None:
    async with producer(cluster, batching=True, hooks=[Raising()], topics=[TOPIC]) as sender:
        results = await outcomes(
            *[sender.send(item) for item in messages(5)], *[sender.send(item, key=1) for item in messages(5)]
        )
        assert len(results) == 10
        assert at_rest(sender)
    loop_errors.clear()
