"""Deletes messages on a real broker of its own, and waits for what can be seen of it: files of the commit log that are gone, pulls
that pass over offsets, minimum offsets that have been corrected.

A broker looks for files to delete from 60 s after its start on, and keeps the order to delete until then. It keeps the last file.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from rmq_async import Admin, MessageQueue, PullConsumer
from rmq_async.spark.positions import key_of
from rmq_async.testing._probe import ask, commit_log_end
from rmq_async.testing.cluster import RealCluster
from rmq_protocol.constants import RequestCode

SIZE = "mappedFileSizeCommitLog"
SOON_CORRECTED = {SIZE: str(1024 * 1024), "cleanResourceInterval": "500"}
"""For a broker whose files go, and whose queues' minimum offsets are corrected, soon after the order."""
SLOW_TO_CORRECT = {SIZE: str(2 * 1024 * 1024), "cleanResourceInterval": "3000"}
"""For one that corrects the minimum offsets up to 3 s after its files are gone."""
LIMIT = 240.0
"""Seconds that each wait lasts at most: the 60 s after the start, and what a busy machine adds."""


@dataclass(frozen=True)
class Deletion:
    """On the only broker of ``cluster``, of the messages in ``queues``. ``file_size``: bytes of a file of its commit log."""

    cluster: RealCluster
    queues: Sequence[MessageQueue]
    file_size: int

    async def first_left(self) -> dict[str, int]:
        """Deletes; returns the first offsets that pulls show when all files but the last are gone and no more will go."""
        await self._order(RequestCode.UPDATE_BROKER_CONFIG, b"fileReservedTime=0\n")
        await self._order(RequestCode.DELETE_EXPIRED_COMMITLOG)
        async for _ in until("files of the commit log are still there"):
            end = await commit_log_end(self.cluster.brokers[0].address)
            if end is not None and all(start + self.file_size >= end for start in self.files()):
                break
        await self._order(RequestCode.UPDATE_BROKER_CONFIG, b"fileReservedTime=72\n")
        async with PullConsumer("deletes", namesrv=self.cluster.namesrv) as consumer:
            least = {key_of(queue): await _first(consumer, queue) for queue in self.queues}
        if not all(least.values()):
            raise TimeoutError(f"nothing of a queue was in the files that are gone: {least}")
        return least

    async def corrected(self, least: dict[str, int]) -> None:
        """Returns when the broker's minimum offsets are ``least``."""
        async for _ in until("minimum offsets are not corrected"):
            if await self.minimums() == least:
                return

    async def minimums(self) -> dict[str, int]:
        """The minimum offsets that the broker gives."""
        async with Admin(namesrv=self.cluster.namesrv) as admin:
            return {key_of(queue): await admin.min_offset(queue) for queue in self.queues}

    def files(self) -> list[int]:
        """First offsets of the files of the commit log; the broker makes files ahead, which begin behind its end."""
        names = [path.name for path in (self.cluster.brokers[0].directory / "store" / "commitlog").iterdir()]
        return [int(name) for name in names if name.isdigit()]

    async def _order(self, code: RequestCode, body: bytes = b"") -> None:
        answer = await ask(self.cluster.brokers[0].address, code, {}, body)
        if answer is None or answer.code != 0:
            raise RuntimeError(f"{code.name} was not served: {answer}")


async def _first(consumer: PullConsumer, queue: MessageQueue) -> int:
    """The offset of the first message that a pull shows."""
    at = 0
    async for _ in until(f"no pull shows a message of {key_of(queue)}"):
        result = await consumer.pull(queue, at)
        if result.messages:
            return result.messages[0].queue_offset
        if result.next_offset >= result.max_offset:
            return result.max_offset
        at = max(at, result.next_offset)
    raise AssertionError("until raises at its end")


async def until(failure: str, limit: float = LIMIT) -> AsyncIterator[None]:
    """Steps of 20 ms; after ``limit`` seconds TimeoutError."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        yield
        await asyncio.sleep(0.02)
    raise TimeoutError(f"{failure} after {limit:.3g} s")
