"""A server that does what its script says: the test's end of a connection.

``Peer(answer)`` listens on a free port; ``answer(link, request)`` is called for each request and says what to do by calling the
link: reply now, later, twice, under another opaque, with raw bytes, byte by byte, or cut the stream by FIN or RST. Without a
script the peer echoes the body.

``ThreadedPeer`` is the same in a thread with a loop of its own: it goes on while the client's loop is blocked.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Self

from rmq_protocol.command import RemotingCommand, decode_command, encode_command
from rmq_protocol.constants import RESPONSE_FLAG, SerializeType
from rmq_protocol.frame import FrameDecoder

Answer = Callable[["Link", RemotingCommand], None]


def silence(_link: Link, _request: RemotingCommand) -> None:
    """Never answers."""


def echo(link: Link, request: RemotingCommand) -> None:
    """Success, with the request's body."""
    link.reply(request)


def stored(link: Link, request: RemotingCommand) -> None:
    """The answer to a send; its msgId is the request's body, so that an answer shows which send it belongs to."""
    link.reply(request, body=b"", ext_fields={"msgId": request.body.decode(), "queueId": "1", "queueOffset": "7"})


def frame(command: RemotingCommand, form: SerializeType = SerializeType.JSON) -> bytes:
    return b"".join(encode_command(command, form))


def response(request: RemotingCommand, **changes: Any) -> RemotingCommand:
    fields: dict[str, Any] = {"code": 0, "opaque": request.opaque, "flag": RESPONSE_FLAG, "body": request.body}
    return RemotingCommand(**(fields | changes))


class ServerLink(asyncio.Protocol, ABC):
    """One accepted connection. Replies made while one read is handled leave in one write, as a broker's do."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.decoder = FrameDecoder()
        self.replies: list[bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.replies = []
        for received in self.decoder.feed(data):
            self.take(decode_command(received))
        replies, self.replies = self.replies, None
        if replies:
            self.write(b"".join(replies))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(exc)

    @abstractmethod
    def take(self, command: RemotingCommand) -> None:
        """Handles one command that was received."""

    def write(self, data: bytes) -> None:
        if self.replies is not None:
            self.replies.append(data)
        elif not self.transport.is_closing():
            self.transport.write(data)


class Link(ServerLink):
    def __init__(self, peer: Peer) -> None:
        super().__init__()
        self.peer = peer
        self.requests: list[RemotingCommand] = []
        """Everything received, responses to this end's own requests too."""
        self.reads = 0
        self.tasks: set[asyncio.Task[None]] = set()

    # -- asyncio's side

    def _pause_again(self) -> None:
        """uvloop, and asyncio of Python 3.11.2, start to read after ``connection_made``, paused or not."""
        self.transport.resume_reading()
        self.transport.pause_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.peer.links.append(self)
        if not self.peer.reading:
            self.transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._pause_again)
        for waiter in self.peer.waiters:
            if not waiter.done():
                waiter.set_result(self)
        self.peer.waiters.clear()
        if self.peer.greet is not None:
            self.peer.greet(self)

    def data_received(self, data: bytes) -> None:
        self.reads += 1
        self.peer.read_sizes.append(len(data))
        super().data_received(data)

    def take(self, command: RemotingCommand) -> None:
        if self.peer.keep:
            self.requests.append(command)
        self.peer.received += 1
        if command.is_response:
            if self.peer.on_response is not None:
                self.peer.on_response(self, command)
        elif not command.is_oneway:
            self.peer.answer(self, command)

    def connection_lost(self, exc: Exception | None) -> None:
        for task in self.tasks:
            task.cancel()
        super().connection_lost(exc)

    # -- the script's side

    def reply(self, request: RemotingCommand, **changes: Any) -> None:
        self.write(frame(response(request, **changes), self.peer.form))

    def reply_later(self, delay: float, request: RemotingCommand, **changes: Any) -> None:
        asyncio.get_running_loop().call_later(delay, lambda: self.reply(request, **changes))

    def ask(self, command: RemotingCommand) -> None:
        """Sends a request of this end's own."""
        self.write(frame(command, self.peer.form))

    def dribble(self, data: bytes, interval: float) -> None:
        async def run() -> None:
            for at in range(len(data)):
                self.write(data[at : at + 1])
                await asyncio.sleep(interval)

        task = asyncio.get_running_loop().create_task(run())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def fin(self, first: bytes = b"") -> None:
        """Ends the stream in order, after ``first``."""
        if first:
            self.transport.write(first)
        self.transport.close()

    def rst(self, first: bytes = b"") -> None:
        """Breaks the connection with a reset, after ``first`` has left."""
        if first:
            self.transport.write(first)
        asyncio.get_running_loop().call_later(0.002 if first else 0, self.reset)

    def reset(self) -> None:
        if not self.transport.is_closing():
            sock = self.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()


class Peer:
    """``reading=False``: accepts and never reads. ``greet`` is called with each new link, ``on_response`` with answers."""

    def __init__(
        self,
        answer: Answer = echo,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        reading: bool = True,
        keep: bool = True,
        form: SerializeType = SerializeType.JSON,
        greet: Callable[[Link], None] | None = None,
        on_response: Answer | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.answer = answer
        self.tls = tls
        self.host = host
        self.port = port
        self.reading = reading
        self.keep = keep
        self.form = form
        self.greet = greet
        self.on_response = on_response
        self.links: list[Link] = []
        self.waiters: list[asyncio.Future[Link]] = []
        self.read_sizes: list[int] = []
        self.received = 0
        self.server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def link(self) -> Link:
        """The newest connection."""
        return self.links[-1]

    @property
    def requests(self) -> list[RemotingCommand]:
        """Everything received on any connection, in order within each."""
        return [request for link in self.links for request in link.requests]

    async def accepted(self) -> Link:
        """The next connection (the first one, if it is there already)."""
        if self.links:
            return self.links[-1]
        waiter: asyncio.Future[Link] = asyncio.get_running_loop().create_future()
        self.waiters.append(waiter)
        return await waiter

    async def start(self) -> None:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if not self.reading:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listener.bind((self.host, self.port))
        self.port = listener.getsockname()[1]
        self.server = await asyncio.get_running_loop().create_server(
            lambda: Link(self), sock=listener, backlog=1024, ssl=self.tls
        )

    async def stop(self) -> None:
        """Stops listening and breaks every connection."""
        if self.server is not None:
            self.server.close()
            self.server = None
        for link in self.links:
            link.transport.abort()
        if self.links:
            await asyncio.wait([link.lost for link in self.links])

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


class ThreadedPeer:
    """A ``Peer`` in a thread of its own; ``peer.answer`` runs there."""

    def __init__(self, answer: Answer = echo, **options: Any) -> None:
        self.peer = Peer(answer, **options)
        self.ready = threading.Event()
        self.loop: asyncio.AbstractEventLoop = None  # type: ignore[assignment]
        self.stop: asyncio.Event = None  # type: ignore[assignment]
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self) -> None:
        async def main() -> None:
            self.loop = asyncio.get_running_loop()
            self.stop = asyncio.Event()
            async with self.peer:
                self.ready.set()
                await self.stop.wait()

        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            runner.run(main())

    def __enter__(self) -> Peer:
        self.thread.start()
        assert self.ready.wait(5)
        return self.peer

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self.stop.set)
        self.thread.join(5)
        assert not self.thread.is_alive()
