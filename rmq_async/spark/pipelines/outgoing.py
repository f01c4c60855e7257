"""Writes rows to topics and counts them: the common part of pipelines that write.

Spark does not report how many rows a batch write wrote. A successful write has sent every row, and the rows are counted in the
same pass. If the topics grow by less than that number, rows are missing. A larger growth proves nothing, because other
producers may also write to the topics, and a task that runs again sends rows twice.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Final

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from rmq_async._text import printable
from rmq_async._threads import NoThreadError, start_thread
from rmq_async.admin import Admin
from rmq_async.errors import BrokerNotFoundError, NoPermissionError, RocketMQError, TopicNotFoundError
from rmq_async.spark.connection import Access
from rmq_async.spark.options import write_options
from rmq_async.spark.pipelines.arguments import ask_at, check_masters
from rmq_async.spark.pipelines.job import Progress
from rmq_async.spark.pipelines.session import activate
from rmq_async.spark.writing import warn_of_speculation
from rmq_protocol.message import MessageQueue
from rmq_protocol.route import publish_queues

logger = logging.getLogger(__name__)

INTERVAL: Final = 2.0
"""Seconds between two checks of how many messages have arrived."""
PATIENCE: Final = 5.0
"""Maximum seconds to wait until acknowledged messages are readable."""
TASK_RATE: Final = 5000
"""Maximum number of messages per second for one task. A higher rate is divided among more tasks."""


@dataclass(frozen=True)
class Written:
    """The result of a write.

    Attributes:
        messages: Number of messages that were sent and acknowledged.
        bytes: Size of their bodies.
        arrived: Growth of the topics. None if it could not be read.
    """

    messages: int
    bytes: int
    arrived: int | None


def access_for(options: Mapping[str, str]) -> Access:
    """Check the options of a batch write, and return the connection options among them.

    Raises:
        ConfigError: For invalid options.
    """
    return write_options(options, streaming=False).access


def shared_rate(rate: int, tasks: int) -> tuple[int, int]:
    """Return the number of tasks (at most ``tasks``) that share a rate, and the share of each task in messages per second.

    The sum of the shares is at most ``rate``.
    """
    count = max(1, min(tasks, -(-rate // TASK_RATE)))
    return count, rate // count


def target_queues(access: Access, topics: Iterable[str]) -> dict[str, tuple[MessageQueue, ...]]:
    """Return the writable queues of each topic.

    Raises:
        TopicNotFoundError: For a topic without a route. The other errors of requests are raised, too.
    """

    async def queues(admin: Admin) -> dict[str, tuple[MessageQueue, ...]]:
        return {topic: publish_queues(topic, await admin.topic_route(topic)) for topic in sorted(set(topics))}

    return ask_at(access, queues)


class Arrivals:
    """Counts the messages that were added to topics since this object was created. It uses the offsets of masters, because a
    replica may lack acknowledged messages.
    """

    def __init__(self, access: Access, topics: Iterable[str]) -> None:
        self._access = access
        self._topics = tuple(sorted(set(topics)))
        self._before: int | None = None
        try:
            self._before = ask_at(access, self._ends)
        except BrokerNotFoundError as error:  # messages can be written to the other brokers
            logger.warning("the growth of the topics cannot be reported: %s", printable(error))

    def count(self) -> int | None:
        """Return the growth of the topics. Return None if the user may not read offsets, or if the first offsets are unknown.

        Raises:
            RocketMQError: If a request fails for another reason.
        """
        if self._before is None:
            return None
        now = ask_at(self._access, self._ends)
        return None if now is None else now - self._before

    def settled(self, expected: int) -> int | None:
        """Return the growth as soon as it is at least ``expected``, and after ``PATIENCE`` seconds in any case. Return None if
        it cannot be read.

        The wait is necessary because a stored message becomes readable a moment later. Errors of the cluster are only logged,
        because the write has already ended.
        """
        until = monotonic() + PATIENCE
        while True:
            try:
                found = self.count()
                if found is None or found >= expected or monotonic() >= until:
                    return found
            except RocketMQError as error:
                if monotonic() >= until:
                    logger.warning("the growth of the topics is not known: %s", printable(error))
                    return None
            sleep(0.05)

    async def _ends(self, admin: Admin) -> int | None:
        total = 0
        for topic in self._topics:
            try:
                await check_masters(admin, topic)
                stats = await admin.topic_stats(topic)
            except TopicNotFoundError:
                continue
            except NoPermissionError:
                return None
            total += sum(queue.max_offset for queue in stats.queues.values())
        return total


def write(
    frame: DataFrame, options: Mapping[str, str], topics: Iterable[str], progress: Progress, expected: int | None = None
) -> Written:
    """Write a DataFrame that has the sink's columns.

    Args:
        expected: Number of rows of the DataFrame, for the progress.
    """
    warn_of_speculation(frame.sparkSession)
    activate(frame.sparkSession)
    arrivals = Arrivals(access_for(options), topics)
    seen = Observation()
    observed = frame.observe(seen, F.count(F.lit(1)).alias("rows"), F.sum(F.octet_length("body")).alias("bytes"))
    started = False

    def report(arrived: int) -> None:
        """Report a growth other than 0. If there is no growth, the first call reports that tasks are starting."""
        nonlocal started
        if arrived or not started:
            progress({"arrived": arrived, "of": expected} if arrived else {"step": "starting"})
        started = True

    with watched(arrivals, report):
        observed.write.format("rocketmq").mode("append").options(**options).save()
    rows, size = seen.get["rows"], seen.get["bytes"] or 0
    return Written(rows, size, arrivals.settled(rows))


@contextmanager
def watched(arrivals: Arrivals, report: Callable[[int], None]) -> Iterator[None]:
    """Call ``report`` with the growth at intervals, in a separate thread, while the body runs.

    Do not call it if the growth cannot be read or if no thread can be started.
    """
    over = threading.Event()

    def watch() -> None:
        while not over.wait(INTERVAL):
            try:
                arrived = arrivals.count()
            except RocketMQError as error:
                logger.info("the growth of the topics is not known now: %s", printable(error))
                continue
            if arrived is None:
                return
            report(arrived)

    try:
        thread = start_thread(watch, "rmq_async spark arrivals")
    except NoThreadError as error:
        logger.info("the growth of the topics is not shown: %s", error)
        yield
        return
    try:
        yield
    finally:
        over.set()
        thread.join()
