"""The client's end in these tests: connections with settings of their own, and short ways to send."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any, Self

from rmq_async.config import ClientConfig
from rmq_async.transport import CloseReason, Connection, ConnectionPool, Threads, client_context
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode
from rmq_protocol.send_codec import FIRST_OPAQUE, ID_LENGTH, SendReply, SendTemplate

from .peer import Peer

BORN = b"1700000000000"
PULL = RemotingCommand(code=RequestCode.PULL_MESSAGE)


def ping(body: bytes = b"", code: int = RequestCode.HEART_BEAT) -> RemotingCommand:
    return RemotingCommand(code=code, body=body)


def template(**changes: Any) -> SendTemplate:
    fields: dict[str, Any] = {
        "group": "g", "topic": "t", "queue_id": 0, "broker_name": "b", "default_topic": "TBW102", "default_topic_queues": 4,
    }  # fmt: skip
    return SendTemplate(**(fields | changes))


FRAME = template().parts(FIRST_OPAQUE, BORN, "", b"0123456789")
"""Any frame that nobody answers."""


class Sender:
    """Sends as a producer does: typed, from a template, under a window.

    ``plain``: the way that messages without properties go (``start_plain``), else that of all others (``start_send``).
    """

    plain = False

    def __init__(self, connection: Connection, *, window: int = 8192, timeout: float = 3.0) -> None:
        self.connection = connection
        self.window = window
        self.timeout = timeout
        self.template = template()
        self.opaques: list[int] = []

    def submit(self, body: bytes, *, timeout: float | None = None) -> asyncio.Future[SendReply]:
        future: asyncio.Future[SendReply] = asyncio.get_running_loop().create_future()
        deadline = monotonic() + (self.timeout if timeout is None else timeout)
        code = int(RequestCode.SEND_MESSAGE_V2)
        if self.plain:
            pending = self.connection.start_plain(
                self.template, BORN, "0" * ID_LENGTH, body, future, deadline, deadline, self, self.window
            )
        else:
            opaque = self.connection.next_opaque()
            parts = self.template.parts(opaque, BORN, "", body)
            pending = self.connection.start_send(opaque, parts, future, deadline, deadline, code, self, self.window)
        self.opaques.append(pending.opaque)
        return future

    async def send(self, body: bytes) -> SendReply:
        future = self.submit(body)
        opaque = self.opaques[-1]
        try:
            return await future
        except BaseException:
            self.connection.forget(opaque)
            raise


class Notes:
    """A receiver that writes down what it is told and never is done: the transport's half of a send with several attempts."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.times: list[float] = []

    def done(self) -> bool:
        return False

    def set_result(self, result: Any) -> None:
        self.told.append(result)
        self.times.append(monotonic())

    def set_exception(self, exception: Any) -> None:
        self.told.append(exception)
        self.times.append(monotonic())


@asynccontextmanager
async def connect(peer: Peer, **options: Any) -> AsyncIterator[Connection]:
    """A connection without a pool, so that each of its settings can be chosen."""
    connection = Connection(peer.address, **({"max_frame_size": 16 * 1024 * 1024} | options))
    await asyncio.get_running_loop().create_connection(lambda: connection, peer.host, peer.port)
    try:
        yield connection
    finally:
        connection.close(CloseReason.LOCAL)
        await connection.closed


@asynccontextmanager
async def pool_of(*, callbacks: dict[str, Any] | None = None, **options: Any) -> AsyncIterator[ConnectionPool]:
    config, threads = ClientConfig(**({"namesrv": "127.0.0.1:1"} | options)), Threads()
    tls = await client_context(config, threads)
    threads.close()
    pool = ConnectionPool(config, tls=tls, **(callbacks or {}))
    try:
        yield pool
    finally:
        await pool.aclose()


async def until(condition: Callable[[], Any], timeout: float = 5.0) -> None:
    """Waits until the condition holds; fails when it does not come to hold."""
    deadline = monotonic() + timeout
    while not condition():
        assert monotonic() < deadline, "what the test waits for did not happen"
        await asyncio.sleep(0.001)


async def spin(steps: int = 1) -> None:
    """Lets the loop run that many iterations."""
    for _ in range(steps):
        await asyncio.sleep(0)


def rss() -> int:
    """Resident bytes of this process, after a collection."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


class Recorder:
    """Stands before a transport and writes down what it is given."""

    def __init__(self, connection: Connection) -> None:
        self._transport = connection._writer._transport
        self.writes: list[bytes | list[bytes]] = []
        connection._writer._transport = self  # type: ignore[assignment]

    def write(self, data: bytes) -> None:
        self.writes.append(data)
        self._transport.write(data)

    def writelines(self, parts: list[bytes]) -> None:
        self.writes.append(list(parts))
        self._transport.writelines(parts)

    @property
    def sizes(self) -> list[int]:
        return [len(item) if isinstance(item, bytes) else sum(map(len, item)) for item in self.writes]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Exact:
    """Judges how late something came: 50 ms are allowed, and what the machine itself was late while it was measured.

    On an idle machine the loop's own timers are late by a millisecond or two; with all cores taken by others, by more than
    50 ms at times, which says nothing about the code under test.
    """

    ALLOWED = 0.05
    EARLY = 0.002
    """Timers of uvloop count whole milliseconds."""
    STEP = 0.005

    def __enter__(self) -> Self:
        self.lag = 0.0
        self._loop = asyncio.get_running_loop()
        self._next()
        return self

    def __exit__(self, *_: object) -> None:
        self.lag = max(self.lag, monotonic() - self._due)  # the machine may have stood still since the last tick
        self._timer.cancel()

    def _next(self) -> None:
        self._due = monotonic() + self.STEP
        self._timer = self._loop.call_later(self.STEP, self._tick)

    def _tick(self) -> None:
        self.lag = max(self.lag, monotonic() - self._due)
        self._next()

    def check(self, elapsed: float, wanted: float) -> None:
        """``elapsed`` is not before ``wanted`` and at most 50 ms after it."""
        assert elapsed >= wanted - self.EARLY
        assert elapsed <= wanted + self.ALLOWED + 3 * self.lag, f"the loop's own timers were {self.lag:.3f} s late"
