"""The clients of one process of Spark: an event loop in a thread, and one client for each way to reach a cluster.

Python workers are forked, reused for many tasks, and killed without a word when a task or a query is over. So nothing is made
before it is needed, what is made is kept for the process that made it (by its pid), and nothing on a broker has to be taken
back: readers are in no consumer group. A task that is tried again gets new connections (``fresh``): the old ones may be why.
Whoever only reads does not load what writes: each query begins with new processes, and waits for their imports.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from ..client import ClientInstance
from ..consumer import PullConsumer
from ..errors import RocketMQError
from .connection import Access, client_config
from .options import WriteOptions

if TYPE_CHECKING:
    from .units import SinkProducer

__all__ = ["SparkReader", "Worker", "worker"]

logger = logging.getLogger("rmq_async")

T = TypeVar("T")

CALL_LIMIT = 24 * 3600.0
"""Seconds; every call has a budget of its own that is far shorter."""


class SparkReader(PullConsumer):
    """Pulls by offset without being a member of its group: a worker that is killed leaves nothing behind."""

    def _join(self, instance: ClientInstance) -> None:
        """Brokers are not told."""

    async def _leave(self, instance: ClientInstance, timeout: float) -> None:
        """Nor now; ``read``, which would have to be ended here, is not used."""

    @property
    def instance(self) -> ClientInstance:
        """Raises ClientStateError where it is not started."""
        return self._client()


class Worker:
    """One loop in one thread. Its methods are called from Spark's thread, and wait."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._loop = _new_loop()
        self._made = 0
        self._clients: dict[object, PullConsumer | SinkProducer] = {}
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rmq_async spark", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of ``work``, done on the loop."""
        return self.start(work).result(CALL_LIMIT)

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def reader(self, access: Access, group: str, *, fresh: bool = False) -> SparkReader:
        client = self._client(("read", access, group), lambda: SparkReader(group, client=client_config(access)), fresh)
        assert isinstance(client, SparkReader)
        return client

    async def topics(self, access: Access) -> tuple[str, ...]:
        """All topics that the name servers know. On the loop, unlike the others."""
        from ..admin import Admin

        async with Admin(client=client_config(access)) as admin:
            return await admin.topics()

    def producer(self, options: WriteOptions, *, fresh: bool = False) -> SinkProducer:
        """One for each group and cluster, on connections of its own; timeouts go with each send."""
        from .units import SinkProducer

        self._made += 1
        name = f"spark-{self.pid}-{self._made}"  # two producers of one group on shared connections would be an error
        client = self._client(
            ("write", options.access, options.group, options.retries),
            lambda: SinkProducer(
                options.group,
                client=replace(client_config(options.access), instance_name=name),
                retries=options.retries,
                async_retries=options.retries,
                retry_same_queue=True,
            ),
            fresh,
        )
        assert isinstance(client, SinkProducer)
        return client

    def close(self) -> None:
        """Ends the clients and the thread; for the end of a process that is not a task's."""
        with self._lock:
            clients = list(self._clients.values())
            self._clients.clear()
        for client in clients:
            with suppress(RocketMQError, TimeoutError):
                self.start(client.stop(1.0)).result(2.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(2.0)

    def _client(self, key: object, make: Any, fresh: bool) -> PullConsumer | SinkProducer:
        with self._lock:
            client = self._clients.pop(key, None) if fresh else self._clients.get(key)
            if fresh and client is not None:
                with suppress(RocketMQError):
                    self.run(client.stop(0.0))
                client = None
            if client is None:
                client = self.run(_started(make))
                self._clients[key] = client
            return client


async def _started(make: Any) -> PullConsumer | SinkProducer:
    client: PullConsumer | SinkProducer = make()
    await client.start()
    return client


_worker: Worker | None = None
_making = threading.Lock()


def worker() -> Worker:
    """This process's own, made at the first call."""
    global _worker
    with _making:
        if _worker is None or _worker.pid != os.getpid():
            if logger.level == logging.NOTSET:
                logger.setLevel(logging.WARNING)
            _worker = Worker()
            atexit.register(_worker.close)
        return _worker


def _forget() -> None:
    """In a child: the thread of the parent is not here, and its lock may be held for ever."""
    global _worker, _making
    _worker, _making = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
