"""Two processes with one client id, as containers with one IP address and one ``instance_name`` are."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from rmq_async.admin import Admin
from rmq_async.consumer import Consumer
from rmq_async.errors import RocketMQError

from ..cluster import Cluster
from .services import AGAIN, CALM

__all__ = ["twice"]

SEEN_WITHIN: Final = 60.0
"""Seconds after ``CALM`` within which each of the two names the other: members look at their group each 60 s."""


async def twice(cluster: Cluster, until: float) -> None:
    """Runs two members of a group with one client id. Reports a member that does not name the other one."""

    async def member() -> None:
        while True:
            consumer = Consumer("twins", namesrv=cluster.namesrv, instance_name="worker", client_ip="172.17.0.2")
            consumer.subscribe("Twins", _ignore)
            try:
                async with consumer:
                    await asyncio.sleep(max(until - cluster.now, 0.0))
                    await cluster.calm(CALM + SEEN_WITHIN)
                    if "duplicate_client_id" not in [problem.code for problem in consumer.health().problems]:
                        cluster.violation("unseen: another process has the same client id, and health() does not name it")
                    await asyncio.sleep(1.0)  # the other one looks at the same time
                    return
            except (RocketMQError, TimeoutError):
                await asyncio.sleep(AGAIN)

    while not cluster.holders("Twins"):
        with suppress(RocketMQError):
            async with Admin(namesrv=cluster.namesrv) as admin:
                await admin.create_topic("Twins", queues=2)
        await asyncio.sleep(AGAIN)
    other = cluster.machine("twice-2").run(member)
    await member()
    await other


async def _ignore(_: object) -> None:
    """Handles a message."""
