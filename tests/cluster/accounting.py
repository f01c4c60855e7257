"""What became of messages: attempted, acknowledged, read. The checker is apart from what drives the sends.

Two rules, as in the set checkers of Jepsen and OpenChaos: every acknowledged message is read, and nothing is read that was
never attempted. A message read more than once is a duplicate; one read though its send failed was "maybe stored".
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from time import monotonic

from rmq_async import Admin, MessageExt, PullConsumer

from ..support.waiting import limit


@dataclass(frozen=True)
class Verdict:
    attempted: int
    acknowledged: int
    read: int
    lost: tuple[str, ...]
    unacknowledged: int
    duplicated: int
    strange: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"attempted {self.attempted}, acknowledged {self.acknowledged}, read {self.read}, lost {len(self.lost)}, "
            f"found but unacknowledged {self.unacknowledged}, duplicated {self.duplicated}"
        )


def judge(attempted: Collection[str], acknowledged: Collection[str], read: Collection[str]) -> Verdict:
    """All three hold the messages' names; ``read`` holds one entry for each time a message was read."""
    tried, acked, seen = set(attempted), set(acknowledged), Counter(read)
    return Verdict(
        attempted=len(tried),
        acknowledged=len(acked),
        read=len(seen),
        lost=tuple(sorted(acked - seen.keys())),
        unacknowledged=len(seen.keys() - acked),
        duplicated=sum(times - 1 for times in seen.values()),
        strange=tuple(sorted(seen.keys() - tried)),
    )


async def read_all(namesrv: str, topic: str) -> list[MessageExt]:
    """Every message of the topic, all queues from the first offset to the last; beside others that read."""
    async with PullConsumer("reader", namesrv=namesrv, instance_name=uuid.uuid4().hex) as consumer:
        return [message async for message in consumer.read(topic)]


async def stored_count(namesrv: str, topic: str, expected: int = 0) -> int:
    """Messages in the topic by the broker's own offsets. Waits for as many as are ``expected``: a broker counts a message a moment
    after it has acknowledged it."""
    async with (
        Admin(namesrv=namesrv, request_timeout=30.0) as admin,
        PullConsumer("counter", namesrv=namesrv, instance_name=uuid.uuid4().hex) as consumer,
    ):
        queues = await consumer.queues(topic)
        deadline = monotonic() + limit(0.0)
        while True:
            found = sum([await admin.max_offset(queue) - await admin.min_offset(queue) for queue in queues])
            if found >= expected or monotonic() > deadline:
                return found
            await asyncio.sleep(0.05)
