"""What the tests of batching share: requests as the brokers received them, and the producer's accounts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from rmq_async import Batching, Producer

from ...support.fakes import Answer, Cluster, Link, Sent, refuse, stored
from ..support import core_of, gathers_nothing

BATCH = 320
ONE_LANE = Batching(lanes_per_broker=1)


def later(call: Any) -> asyncio.Future[Any]:
    return asyncio.ensure_future(call)


def bodies_of(sent: Sent) -> list[bytes]:
    return [record.body for record in sent.batch] if sent.code == BATCH else [sent.body]


def requests(cluster: Cluster) -> list[list[bytes]]:
    """Bodies of each request, in order of arrival."""
    return [bodies_of(sent) for sent in cluster.sends]


def numbers(cluster: Cluster) -> list[int]:
    return [len(request) for request in requests(cluster)]


def at_rest(sender: Producer) -> bool:
    """Every account of the producer is back to where it began."""
    credits = core_of(sender).credits
    return credits.taken == credits.taken_bytes == 0 and gathers_nothing(core_of(sender).batcher)


def refuse_bodies(code: int, bad: Callable[[bytes], bool]) -> Answer:
    def answer(link: Link, sent: Sent) -> None:
        (refuse(code) if any(map(bad, bodies_of(sent))) else stored)(link, sent)

    return answer
