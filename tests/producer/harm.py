"""Random faults of embedded brokers, while a test sends."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.constants import RequestCode

KINDS = ("drop", "stall", "delay", "code", "code")
LONGEST_DELAY = 0.05


@asynccontextmanager
async def harm(
    servers: EmbeddedRocketMQ,
    source: random.Random,
    *,
    codes: Sequence[int],
    requests: Sequence[RequestCode],
    longest_stall: float,
    longest_pause: float,
) -> AsyncIterator[Counter[str]]:
    """Drops connections of, stalls, delays and fails brokers until the block ends, which then serve as before.

    Yields how often each kind of fault has come. ``codes``: of failures; ``requests``: those that fail. Seconds.
    """
    over = False
    names = list(servers.brokers)
    counts: Counter[str] = Counter()

    async def harming() -> None:
        while not over:
            name, kind = source.choice(names), source.choice(KINDS)
            counts[kind] += 1
            if kind == "drop":
                servers.drop_connections(name)
            elif kind == "stall":
                servers.stall(name)
                await asyncio.sleep(source.random() * longest_stall)
                servers.resume(name)
            elif kind == "delay":
                servers.delay(source.random() * LONGEST_DELAY, broker=name)
                await asyncio.sleep(LONGEST_DELAY)
                servers.delay(0, broker=name)
            else:
                servers.fail_next(source.choice(codes), source.randrange(1, 5), request=source.choice(requests))
            await asyncio.sleep(source.random() * longest_pause)

    task = asyncio.ensure_future(harming())
    try:
        yield counts
    finally:
        over = True
        await task
        for request in requests:
            servers.fail_next(1, 0, request=request)
