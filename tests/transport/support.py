"""The client's end in these tests: connections with settings of their own, and short ways to send."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from time import monotonic
from typing import Any, cast

from rmq_async.config import ClientConfig
from rmq_async.testing.simulation import SimulatedLoop
from rmq_async.transport import CloseReason, Connection, ConnectionPool, ConnectionSettings, Pending, Threads, client_context
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode
from rmq_protocol.send_codec import FIRST_OPAQUE, ID_LENGTH, SendReply, SendTemplate

from ..support.fakes import Peer
from ..support.waiting import spin as spin
from ..support.waiting import until as until

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
"""Any frame without an answer."""


def bytes_frame(size: int) -> list[bytes]:
    parts = template(oneway=True).parts(1_000_000_000, b"1700000000000", "", bytes(size))
    assert isinstance(parts, list)
    return parts


class Sender:
    """Sends as a producer does: typed, from a template, under a window.

    ``plain``: the way that messages without properties go (``enter_single``), else that of all others (``start_send``).
    """

    plain = False

    def __init__(self, connection: Connection, *, window: int = 8192, timeout: float = 60.0) -> None:
        self.connection = connection
        self.window = window
        self.timeout = timeout
        self.template = template()
        self.opaques: list[int] = []

    def submit(self, body: bytes, *, timeout: float | None = None) -> asyncio.Future[SendReply]:
        future: asyncio.Future[SendReply] = asyncio.get_running_loop().create_future()
        deadline = monotonic() + (self.timeout if timeout is None else timeout)
        pending = Pending(future, deadline, deadline, int(RequestCode.SEND_MESSAGE_V2), self)
        if self.plain:
            requests = self.connection.requests
            requests.require_open()
            opaque = requests.next_opaque()
            parts = self.template.plain(opaque, BORN, "0" * ID_LENGTH, body)
            pending = requests.enter_single(opaque, parts, future, deadline, deadline, self, self.window)
        else:
            opaque = self.connection.requests.next_opaque()
            parts = self.template.parts(opaque, BORN, "", body)
            self.connection.requests.start_send(opaque, parts, pending, self.window)
        self.opaques.append(pending.opaque)
        return future

    async def send(self, body: bytes) -> SendReply:
        future = self.submit(body)
        opaque = self.opaques[-1]
        try:
            return await future
        except BaseException:
            self.connection.requests.forget(opaque)
            raise


class Notes:
    """A receiver that keeps every outcome and never is done: the transport's half of a send with several attempts."""

    def __init__(self) -> None:
        self.outcomes: list[Any] = []
        self.times: list[float] = []

    def done(self) -> bool:
        return False

    def set_result(self, result: Any) -> None:
        self.outcomes.append(result)
        self.times.append(monotonic())

    def set_exception(self, exception: Any) -> None:
        self.outcomes.append(exception)
        self.times.append(monotonic())


class Recorder:
    """Stands between a connection and its transport, and writes down what the transport is given."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.writes: list[bytes | list[bytes]] = []

    def write(self, data: bytes) -> None:
        self.writes.append(data)
        self.transport.write(data)

    def writelines(self, parts: list[bytes]) -> None:
        self.writes.append(list(parts))
        self.transport.writelines(parts)

    @property
    def sizes(self) -> list[int]:
        return [len(item) if isinstance(item, bytes) else sum(map(len, item)) for item in self.writes]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)


class RecordedConnection(Connection):
    def __init__(self, recorder: Recorder, address: str, settings: ConnectionSettings, **options: Any) -> None:
        super().__init__(address, settings, **options)
        self.recorder = recorder

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.recorder.transport = cast(asyncio.Transport, transport)
        super().connection_made(cast(asyncio.Transport, self.recorder))


@asynccontextmanager
async def connect(peer: Peer, *, recorder: Recorder | None = None, **options: Any) -> AsyncIterator[Connection]:
    """A connection without a pool, so that each of its settings can be chosen."""
    chosen = {name: options.pop(name) for name in ConnectionSettings._fields if name in options}
    settings = ConnectionSettings(**({"max_frame_size": 16 * 1024 * 1024} | chosen))
    if recorder is None:
        connection = Connection(peer.address, settings, **options)
    else:
        connection = RecordedConnection(recorder, peer.address, settings, **options)
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


def rss() -> int:
    """Resident bytes of this process, after a collection."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


ALLOWED = 0.05
"""Seconds that the end of a call may be late."""


def is_exact(elapsed: float, wanted: float) -> bool:
    """Whether something that took ``elapsed`` seconds of virtual time ended neither before ``wanted`` nor later than is allowed."""
    return wanted - 1e-6 <= elapsed <= wanted + ALLOWED


@contextmanager
def takes(seconds: float) -> Iterator[None]:
    """Fails unless the block takes these seconds of virtual time."""
    assert isinstance(asyncio.get_running_loop(), SimulatedLoop), (
        "seconds of a real loop say nothing; mark the test virtual_time"
    )
    began = monotonic()
    yield
    assert is_exact(monotonic() - began, seconds), f"{monotonic() - began:.3f} s, not {seconds}"


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
