"""The clients of one process of Spark: an event loop in a thread, and one client for each way to reach a cluster.

Python workers are forked, reused for many tasks, and killed without a word when a task or a query is over. So nothing is made
before it is needed, what is made is kept for the process that made it (by its pid), and nothing on a broker has to be taken
back: readers are in no consumer group. A task that is tried again gets new connections (``fresh``): the old ones may be why.
A worker outlives tasks and their credentials, so at the next task clients go that none has used for ``IDLE`` seconds, and the
longest unused ones beyond ``MOST``.
A process that only reads does not load what writes: each query begins with new processes, and waits for their imports.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from ..client import ClientInstance
from ..client.text import printable
from ..consumer import PullConsumer
from ..errors import ClientStateError, RocketMQError
from .connection import Access, client_config
from .options import WriteOptions

if TYPE_CHECKING:
    from .units import SinkProducer

__all__ = ["SparkReader", "Worker", "worker"]

logger = logging.getLogger("rmq_async")

T = TypeVar("T")

LOOK_EVERY: Final = 10.0
"""Seconds between two looks whether the loop of a call still runs; every call has a budget of its own."""
IDLE: Final = 300.0
MOST: Final = 16


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


Client: TypeAlias = "SparkReader | SinkProducer"


@dataclass(eq=False)
class _Kept:
    """``users``: tasks that work with it now. ``used``: when the last one did."""

    client: Client
    users: int = 0
    used: float = field(default_factory=monotonic)


class Worker:
    """One loop in one thread. Its methods are called from Spark's thread, and wait."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._loop = _new_loop()
        self._made = 0
        self._clients: dict[object, _Kept] = {}
        self._lock = threading.Lock()
        self._counting = threading.Lock()
        self._thread = threading.Thread(target=self._serve, name="rmq_async spark", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of ``work``, done on the loop. Raises ClientStateError where the worker is closed."""
        future = self.start(work)
        while True:
            try:
                return future.result(LOOK_EVERY)
            except TimeoutError:
                if future.done():
                    raise
                if not self._thread.is_alive():
                    raise ClientStateError("the loop that this was to be done on has ended: the worker is closed") from None

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

    @contextmanager
    def using(self, client: Client) -> Iterator[None]:
        """Inside, ``client`` is not closed for being unused, however long it waits for Spark."""
        kept = next((kept for kept in list(self._clients.values()) if kept.client is client), None)
        if kept is None:  # another task has replaced it
            yield
            return
        with self._counting:
            kept.users += 1
        try:
            yield
        finally:
            with self._counting:
                kept.users -= 1
                kept.used = monotonic()

    def close(self) -> None:
        """Ends the clients and the thread; for the end of a process that is not a task's."""
        with self._lock:
            clients = [kept.client for kept in self._clients.values()]
            self._clients.clear()
        for client in clients:
            with suppress(RocketMQError, TimeoutError):
                self.start(client.stop(1.0)).result(2.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(2.0)

    def _serve(self) -> None:
        """In the thread. What is no Exception leaves ``run_forever``; the caller of it has it, and other calls go on."""
        while True:
            try:
                self._loop.run_forever()
                return
            except BaseException:
                logger.exception("the loop of Spark's worker was interrupted and goes on")

    def _client(self, key: object, make: Any, fresh: bool) -> Client:
        with self._lock:
            if fresh and (old := self._clients.pop(key, None)) is not None:
                with suppress(RocketMQError):
                    self.run(old.client.stop(0.0))
            self._close_unused(key)
            kept = self._clients.get(key)
            if kept is None:
                kept = self._clients[key] = _Kept(self.run(_started(make)))
            kept.used = monotonic()
            return kept.client

    def _close_unused(self, wanted: object) -> None:
        """Of the others; they end on the loop, and no call waits for that."""
        now = monotonic()
        unused = [(kept.used, key) for key, kept in self._clients.items() if not kept.users and key != wanted]
        unused.sort(key=lambda pair: pair[0])
        spare = len(self._clients.keys() | {wanted}) - MOST
        for number, (used, key) in enumerate(unused):
            if number < spare or now - used > IDLE:
                self.start(_stopped(self._clients.pop(key).client))


async def _started(make: Any) -> Client:
    client: Client = make()
    await client.start()
    return client


async def _stopped(client: Client) -> None:
    try:
        await client.stop(1.0)
    except (RocketMQError, OSError, TimeoutError) as error:
        logger.warning("an unused client did not end as it should: %s", printable(error))


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
