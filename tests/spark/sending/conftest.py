"""Two brokers, and a task's sends to them. What needs Spark is imported late: without it the tests are skipped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from rmq_async.embedded import EmbeddedRocketMQ

from ..conftest import Loop, Topics

if TYPE_CHECKING:
    from rmq_async.spark.sending import Sending
    from rmq_async.spark.worker import Worker

    from .support import Write


@pytest.fixture(scope="module")
def servers(loop: Loop) -> Iterator[EmbeddedRocketMQ]:
    """Two brokers of this module's own, for what is done to them here."""
    own = EmbeddedRocketMQ(brokers=2, auto_create_topics=False)
    loop.run(own.start())
    yield own
    loop.run(own.stop())


@pytest.fixture(scope="module")
def topics(loop: Loop, servers: EmbeddedRocketMQ) -> Topics:
    return Topics(loop, servers.namesrv)


@pytest.fixture(scope="module")
def here() -> Iterator[Worker]:
    from rmq_async.spark.worker import Worker

    worker = Worker()
    yield worker
    worker.close()


@pytest.fixture
def write(here: Worker, servers: EmbeddedRocketMQ) -> Write:
    """``write(topic, batch, ...)`` as a task does it."""
    from rmq_async.spark.rows import blocks_of
    from rmq_async.spark.sending import Sending

    from .support import options_of

    def write(topic: str | None, *batches: Any, feed: Iterator[Any] | None = None, **given: object) -> Sending:
        options = options_of(servers.namesrv, topic, given)
        sending = Sending(here, here.producer(options), options)
        try:
            for block in blocks_of(feed or iter(batches), options, "job:0", 0):
                sending.send(block)
            sending.finish()
        finally:
            sending.close()
        return sending

    return write
