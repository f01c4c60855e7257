"""A server that does what its script says: the test's end of a connection.

``Peer(answer)`` listens on a free port; ``answer(link, request)`` is called for each request that wants an answer and says what to
do by calling the link: reply now, later, twice, under another opaque, with raw bytes, byte by byte, or cut the stream by FIN or
RST. Without a script the peer echoes the body. Ready-made answers are in ``answers``.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Any, Self, cast

from rmq_async._loops import close_servers
from rmq_async.testing.scripted import Link as ServerLink
from rmq_async.testing.simulation import SimulatedLoop
from rmq_protocol.command import RemotingCommand, encode_command
from rmq_protocol.constants import RESPONSE_FLAG, SerializeType

from .answers import Answer, echo


def frame(command: RemotingCommand, form: SerializeType = SerializeType.JSON) -> bytes:
    return b"".join(encode_command(command, form, 1 << 30))  # brokers limit what they receive, not what they send


def response(request: RemotingCommand, **changes: Any) -> RemotingCommand:
    fields: dict[str, Any] = {"code": 0, "opaque": request.opaque, "flag": RESPONSE_FLAG, "body": request.body}
    return RemotingCommand(**(fields | changes))


class Link(ServerLink):
    """One accepted connection."""

    def __init__(self, peer: Peer) -> None:
        super().__init__()
        self.peer = peer
        self.requests: list[RemotingCommand] = []
        """Everything received, responses to this end's own requests too."""
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

    def take(self, command: RemotingCommand) -> None:
        if self.peer.keep:
            self.requests.append(command)
        self.peer.received += 1
        if not command.is_response:
            self.peer.codes[command.code] += 1
            self.peer.serve(self, command)
        elif self.peer.on_response is not None:
            self.peer.on_response(self, command)

    def connection_lost(self, exc: Exception | None) -> None:
        for task in self.tasks:
            task.cancel()
        super().connection_lost(exc)

    # -- the script's side

    def reply(
        self,
        request: Any,
        code: int = 0,
        remark: str | None = None,
        ext_fields: dict[str, str | None] | None = None,
        body: bytes = b"",
        **changes: Any,
    ) -> None:
        """``request``: one that was received, or a broker's ``Sent``."""
        answer = response(request, code=code, remark=remark, ext_fields=ext_fields, body=body, **changes)
        self.write(frame(answer, self.peer.form))

    def reply_later(self, delay: float, request: Any, **changes: Any) -> None:
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
        self.write(first)
        self.close()

    def rst(self, first: bytes = b"") -> None:
        """Breaks the connection with a reset, after ``first`` has left."""
        self.write(first)
        asyncio.get_running_loop().call_later(0.002 if first else 0, self.reset)


class Peer:
    """``reading=False``: accepts and never reads. ``greet`` is called with each new link, ``on_response`` with answers.

    ``answers``: by request code, in place of ``answer``; they see one-way requests too. ``serve`` gets every request.
    It can be stopped and started again on its port.
    """

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
        self.answers: dict[int, Answer] = {}
        self.tls = tls
        self.host = host
        self.port = port
        self.reading = reading
        self.keep = keep
        self.form = form
        self.greet = greet
        self.on_response = on_response
        self.links: list[Link] = []
        """All connections ever made."""
        self.waiters: list[asyncio.Future[Link]] = []
        self.codes: Counter[int] = Counter()
        """How many requests of each code have come."""
        self.received = 0
        """How many commands have come, responses too."""
        self.server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def link(self) -> Link:
        """The newest connection."""
        return self.links[-1]

    @property
    def open_links(self) -> list[Link]:
        return [link for link in self.links if not link.lost.done()]

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

    def serve(self, link: Link, request: RemotingCommand) -> None:
        self.answers.get(request.code, self.serve_other)(link, request)

    def serve_other(self, link: Link, request: RemotingCommand) -> None:
        """A request whose code is not in ``answers``."""
        if not request.is_oneway:
            self.answer(link, request)

    def stored_fields(self, sent: Any) -> dict[str, str | None]:
        """extFields of the answer to a send; the msgId is its body, so that an answer shows which send it belongs to."""
        return {"msgId": sent.body.decode(), "queueId": "1", "queueOffset": "7"}

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        if isinstance(loop, SimulatedLoop):
            server = await loop.create_server(lambda: Link(self), self.host, self.port, ssl=self.tls)
            self.port = server.sockets[0].getsockname()[1]
            self.server = cast("asyncio.Server", server)
            return
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        listener = socket.socket(family, proto=socket.IPPROTO_TCP)  # without it asyncio leaves Nagle's algorithm on
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if not self.reading:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listener.bind((self.host, self.port))
        self.port = listener.getsockname()[1]
        self.server = await loop.create_server(lambda: Link(self), sock=listener, backlog=1024, ssl=self.tls)

    async def stop(self) -> None:
        """As a killed process: the port is closed and every connection breaks."""
        if self.server is not None:
            server, self.server = self.server, None
            await close_servers([server])
        links = self.open_links
        for link in links:
            link.transport.abort()
        if links:
            await asyncio.wait([link.lost for link in links])

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
