"""What the choice of a queue costs while a broker is suspected: the same with a handful of topics as with hundreds."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rmq_async import FaultTable
from rmq_async import producer as room

from ..support.calls import lines_counted
from ..support.fakes import TOPIC, Cluster, each, refuse, silence
from .support import message, outcomes, producer

pytestmark = pytest.mark.virtual_time

ROOM = str(Path(room.__file__).parent)
SHORT = FaultTable((0.02, 0.1), (0.0, 0.15), isolation=0.2)
"""A broker is left alone for 0.15 s."""


async def lines_of_a_send(cluster: Cluster, topics: int) -> float:
    """While one broker of its topic is on trial, with an attempt under way. ``topics`` others live on another broker."""
    elsewhere, good, suspect = cluster.brokers
    suspect.answer = each(refuse(14), silence)
    async with producer(cluster, f"with-{topics}-topics", latency_fault=True, fault_table=SHORT, timeout=6.0) as sender:
        for number in range(topics):
            cluster.name_server.routes[f"T{number}"] = cluster.route(elsewhere)
            await sender.fetch_publish_queues(f"T{number}")
        cluster.name_server.routes[TOPIC] = cluster.route(good, suspect)
        before = len(suspect.sends)
        trial: asyncio.Task[object] | None = None
        while len(suspect.sends) < before + 2:  # one is refused, and one tried when the suspect's time is over
            trial = asyncio.ensure_future(sender.send(message()))
            await asyncio.wait([trial], timeout=0.05)
        with lines_counted(ROOM) as lines:
            for _ in range(20):
                assert (await sender.send(message())).queue.broker_name == good.name
        assert trial is not None
        trial.cancel()
        await outcomes(trial)
    return lines.count / 20


async def test_choice_with_many_topics(trio: Cluster) -> None:
    few = await lines_of_a_send(trio, 5)
    many = await lines_of_a_send(trio, 305)
    print(f"{few:.0f} lines of a send with 5 other topics, {many:.0f} with 305")
    assert many < 1.2 * few
