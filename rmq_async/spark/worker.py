"""Keeps the clients of one process of Spark: an event loop in a thread, and one client for each cluster and its options.

Python workers are forked, reused for many tasks, and killed without notice when a task or a query is over. Therefore, clients
are created at first use and belong to the process that created them (identified by its pid), and readers do not join a consumer
group. The next attempt of a failed task gets new connections (``fresh``), because the old connections may be the cause. A
worker outlives tasks and their credentials, so each task closes clients that were unused for ``IDLE`` seconds and, if there are
more than ``MOST``, the clients that were unused the longest. A process that only reads does not import the producer, because
each query begins with new processes and waits for their imports.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, cast

from .._text import printable
from .._threads import NoThreadError, start_thread
from ..client import ClientInstance
from ..consumer import PullConsumer
from ..errors import ClientStateError, RocketMQError
from .connection import Access, client_config
from .options import WriteOptions
from .renewal import current, forget

if TYPE_CHECKING:
    from ..producer import Producer

logger = logging.getLogger("rmq_async")

T = TypeVar("T")
C = TypeVar("C", bound="SparkReader | Producer")

LOOK_EVERY: Final = 10.0
"""Seconds between two checks whether the loop of a call is still running."""
IDLE: Final = 300.0
MOST: Final = 16


class SparkReader(PullConsumer):
    """Pulls by offset without being a member of its group, so that a killed worker leaves no member behind."""

    def _join(self, instance: ClientInstance) -> None:
        """Do nothing: brokers do not know this reader."""

    async def _leave(self, instance: ClientInstance, timeout: float) -> None:
        """Do nothing: this reader has not joined its group."""

    @property
    def instance(self) -> ClientInstance:
        """The client instance of a started reader."""
        return self._client()


Client: TypeAlias = "SparkReader | Producer"


@dataclass(eq=False)
class _Kept:
    """A client of this process, and its use by tasks.

    Attributes:
        users: Number of tasks that are using the client.
        used: Time of the client's last use.
    """

    client: Client
    users: int = 0
    used: float = field(default_factory=monotonic)


class Worker:
    """One loop in one thread, and the clients on it. Spark's thread calls its methods."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._loop = _new_loop()
        self._made = 0
        self._clients: dict[object, _Kept] = {}
        self._lock = threading.Lock()
        self._counting = threading.Lock()
        try:
            self._thread = start_thread(self._serve, "rmq_async spark")
        except NoThreadError:
            self._loop.close()
            raise

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` on the loop and return its result. Raise its error, or ClientStateError if the worker is closed."""
        future = self.start(work)
        while True:
            try:
                return future.result(LOOK_EVERY)
            except TimeoutError:
                if future.done():  # the call has ended just now, or its own error is a TimeoutError
                    return future.result()
                if not self._thread.is_alive():
                    raise ClientStateError(
                        "the worker of this process was closed before the call ended; make calls before the process ends"
                    ) from None

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def reader(self, access: Access, group: str, *, fresh: bool = False) -> SparkReader:
        if fresh:
            forget(access)
        access = current(access)
        return self._client(("read", access, group), lambda: SparkReader(group, client=client_config(access)), fresh)

    def producer(self, options: WriteOptions, *, fresh: bool = False) -> Producer:
        """Return the producer for the group and the cluster of ``options``.

        It shares its connections with no other producer. Timeouts are arguments of each send.
        """
        from ..producer import Producer

        if fresh:
            forget(options.access)
        access = current(options.access)
        self._made += 1
        name = f"spark-{self.pid}-{self._made}"  # two producers of one group must not share connections
        return self._client(
            ("write", access, options.group, options.retries),
            lambda: Producer(
                options.group,
                client=replace(client_config(access), instance_name=name),
                retries=options.retries,
                async_retries=options.retries,
                retry_same_queue=True,
            ),
            fresh,
        )

    @contextmanager
    def using(self, client: Client) -> Iterator[None]:
        """Mark ``client`` as used inside the block, so that it is not closed as unused."""
        kept = next((kept for kept in list(self._clients.values()) if kept.client is client), None)
        if kept is None:  # another task has replaced the client
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
        """Stop the clients and the thread."""
        with self._lock:
            clients = [kept.client for kept in self._clients.values()]
            self._clients.clear()
        for client in clients:
            with suppress(RocketMQError, TimeoutError):
                self.start(client.stop(1.0)).result(2.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(2.0)

    def _serve(self) -> None:
        """Run the loop in the thread.

        ``run_forever`` raises a BaseException of a call, which the caller gets too. Other calls continue.
        """
        while True:
            try:
                self._loop.run_forever()
                return
            except BaseException:
                logger.exception("the loop of Spark's worker was interrupted and continues")

    def _client(self, key: object, make: Callable[[], C], fresh: bool) -> C:
        """Return the client for ``key``, which determines its type. If there is none, return a new one from ``make``."""
        with self._lock:
            if fresh and (old := self._clients.pop(key, None)) is not None:
                with suppress(RocketMQError):
                    self.run(old.client.stop(0.0))
            self._close_unused(key)
            kept = self._clients.get(key)
            if kept is None:
                kept = self._clients[key] = _Kept(self.run(_started(make)))
            kept.used = monotonic()
            return cast("C", kept.client)

    def _close_unused(self, wanted: object) -> None:
        """Close, on the loop, the clients that were unused for ``IDLE`` seconds and, if there are more than ``MOST``, the
        clients that were unused the longest.

        No call waits for these clients to close.
        """
        now = monotonic()
        unused = [(kept.used, key) for key, kept in self._clients.items() if not kept.users and key != wanted]
        unused.sort(key=lambda pair: pair[0])
        spare = len(self._clients.keys() | {wanted}) - MOST
        for number, (used, key) in enumerate(unused):
            if number < spare or now - used > IDLE:
                self.start(_stopped(self._clients.pop(key).client))


async def _started(make: Callable[[], C]) -> C:
    client = make()
    await client.start()
    return client


async def _stopped(client: Client) -> None:
    try:
        await client.stop(1.0)
    except (RocketMQError, OSError, TimeoutError) as error:
        logger.warning("an unused client was dropped, because its stop failed: %s", printable(error))


_worker: Worker | None = None
_making = threading.Lock()


def worker() -> Worker:
    """Return the worker of this process, which the first call creates."""
    global _worker
    with _making:
        if _worker is None or _worker.pid != os.getpid():
            if logger.level == logging.NOTSET:
                logger.setLevel(logging.WARNING)
            _worker = Worker()
            atexit.register(_worker.close)
        return _worker


def _forget() -> None:
    """Remove the parent's worker in a forked child, because its thread does not exist here and its lock may be held
    for ever.
    """
    global _worker, _making
    _worker, _making = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
