"""A server that plays a fixed transcript, for tests of the exact bytes sent and received.

    script = [Expect(RequestCode.SEND_MESSAGE_V2, body=b"paid"), Answer(ext_fields=STORED, pieces=2)]
    async with ScriptedPeer(*script) as broker, ScriptedPeer(aside=routes_to(broker.address)) as names:
        ...  # a producer at names.address

All connections share one sequence of steps. The next request may come from any connection, and a response goes to the
connection of its request. Requests that a client sends at its own times, such as heartbeats, are not part of a transcript;
``aside`` has the responses to these requests. The first request that differs from its ``Expect`` step ends the transcript. Every
connection is then reset, so that the client does not wait, and the end of the ``async with`` block raises an error that shows the
difference, even if the block itself raises an exception because of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import struct
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, NamedTuple, cast

from rmq_protocol.cluster import ClusterInfo, encode_cluster_info
from rmq_protocol.command import RemotingCommand, decode_command, encode_command
from rmq_protocol.constants import MASTER_ID, RESPONSE_FLAG, RequestCode, SerializeType
from rmq_protocol.errors import ProtocolError
from rmq_protocol.frame import FrameDecoder
from rmq_protocol.route import BrokerData, QueueData, TopicRouteData, encode_route

from .._asyncio import Startable
from .._loops import close_servers


class Link(asyncio.Protocol, ABC):
    """One accepted connection.

    Bytes that are written while one read is handled are sent in one write, before a close at the latest.

    Attributes:
        transport: The transport, which is set by ``connection_made``.
        lost: A future that is done when the connection has ended. Its result is the error that ended the connection, if any.
    """

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._decoder = FrameDecoder()
        self._gathered: list[bytes] | None = None

    @abstractmethod
    def take(self, command: RemotingCommand) -> None:
        """Handle one received command."""

    def broken(self, error: ProtocolError) -> None:
        """Handle bytes that are not a frame, or a frame that is not a command. Raise ``error``, unless a subclass overrides
        this method.
        """
        raise error

    @property
    def closing(self) -> bool:
        return self.transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._gathered = []
        try:
            for frame in self._decoder.feed(data):
                self.take(decode_command(frame))
            if self._decoder.error is not None:
                self.broken(self._decoder.error)
        except ProtocolError as error:
            self.broken(error)
        finally:
            self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(exc)

    def write(self, data: bytes) -> None:
        """Send ``data``. Drop it if the connection is closing."""
        if self._gathered is not None:
            self._gathered.append(data)
        elif not self.closing:
            self.transport.write(data)

    def close(self) -> None:
        """End the connection by FIN, after all bytes that were written before."""
        self._flush()
        self.transport.close()

    def reset(self) -> None:
        """End the connection by RST. Bytes that have not been sent yet are lost."""
        if not self.lost.done():
            with contextlib.suppress(OSError):
                linger = struct.pack("ii", 1, 0)
                self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.transport.abort()

    def _flush(self) -> None:
        gathered, self._gathered = self._gathered, None
        if gathered:
            self.write(b"".join(gathered))


# The steps of a scripted peer's transcript, and the comparison of received requests with expected requests.

_SHOWN: Final = 60
"""Number of bytes of a body that an error message shows."""


@dataclass(frozen=True)
class Expect:
    """A step that expects the next request, from any connection, to match. Only the given parts are compared, with ``==``.

    Attributes:
        code: The request code.
        ext_fields: Values of the named fields. None means that the field must be absent.
        exact: Whether all other fields must be absent.
        oneway: Whether the request is one-way. None accepts both.
        body: The body. None accepts any body.
    """

    code: int
    ext_fields: Mapping[str, object] = field(default_factory=dict)
    body: object = None
    oneway: bool | None = None
    exact: bool = False

    def __str__(self) -> str:
        return f"Expect {name_of(self.code)}"


@dataclass(frozen=True)
class Answer:
    """A step that sends a response to the last request, or to the received request with index ``to``.

    Attributes:
        opaque: None for the request's number, a different number, or a function that computes a number from the request's
            number.
        pieces: The number of parts, of about equal size, in which the frame is written, or the byte offsets at which the frame
            is split.
        pause: Seconds between two parts.
        form: The encoding of the header.

    Raises:
        ValueError: For pieces below 1.
    """

    code: int = 0
    remark: str | None = None
    ext_fields: Mapping[str, str | None] | None = None
    body: bytes = b""
    opaque: int | Callable[[int], int] | None = None
    pieces: int | Sequence[int] = 1
    pause: float = 0.01
    form: SerializeType = SerializeType.JSON
    to: int = -1

    def __post_init__(self) -> None:
        if min([self.pieces] if isinstance(self.pieces, int) else self.pieces, default=1) < 1:
            raise ValueError(f"pieces must be a positive number, or positive byte offsets, not {self.pieces}")

    def frame(self, request: RemotingCommand) -> bytes:
        """Return the frame of the response to ``request``."""
        opaque = self.opaque(request.opaque) if callable(self.opaque) else self.opaque
        response = RemotingCommand(
            code=self.code,
            opaque=request.opaque if opaque is None else opaque,
            flag=RESPONSE_FLAG,
            remark=self.remark,
            ext_fields=None if self.ext_fields is None else dict(self.ext_fields),
            body=self.body,
        )
        return b"".join(encode_command(response, self.form))

    def parts(self, frame: bytes) -> list[bytes]:
        """Return ``frame``, split as ``pieces`` specifies."""
        if isinstance(self.pieces, int):
            cuts = [len(frame) * number // self.pieces for number in range(1, self.pieces)]
        else:
            cuts = sorted(self.pieces)
        edges = [0, *cuts, len(frame)]
        return [part for start, stop in itertools.pairwise(edges) if (part := frame[start:stop])]

    def __str__(self) -> str:
        return f"Answer {self.code}"


@dataclass(frozen=True)
class Write:
    """A step that writes ``data`` unchanged, valid or not, to the connection of the last request. It waits for a connection if
    there is none.
    """

    data: bytes

    def __str__(self) -> str:
        return f"Write {len(self.data)} bytes"


@dataclass(frozen=True)
class Wait:
    """A step that pauses for ``seconds``. Requests that arrive during the pause are queued for the next steps."""

    seconds: float

    def __str__(self) -> str:
        return f"Wait {self.seconds:g} s"


class _Plain:
    """The base of steps without values."""

    def __str__(self) -> str:
        return type(self).__name__


@dataclass(frozen=True)
class Close(_Plain):
    """A step that closes the connection of the last request by FIN. The following steps apply to the next connection."""


@dataclass(frozen=True)
class Reset(_Plain):
    """A step that resets the connection of the last request (RST). The following steps apply to the next connection."""


@dataclass(frozen=True)
class ExpectClose(_Plain):
    """A step that expects the client to close the connection of the last request before the next request arrives."""


Step = Expect | Answer | Write | Wait | Close | Reset | ExpectClose


def name_of(code: int) -> str:
    try:
        return f"{RequestCode(code).name} ({code})"
    except ValueError:
        return str(code)


def differences(expected: Expect, came: RemotingCommand) -> list[str]:
    """Compare a request with the expected one. Return an empty list if the request matches.

    Otherwise, return lines that describe the difference. Lines of an equal part begin with "  ". Lines of a part that differs
    begin with "- " (expected) and "+ " (received). A line that shows where two bodies differ begins with "? ".
    """
    lines = [*_compared("code", name_of(expected.code), name_of(came.code))]
    if expected.oneway is not None:
        lines += _compared("oneway", expected.oneway, came.is_oneway)
    fields = came.ext_fields or {}
    for name, value in expected.ext_fields.items():
        lines += _compared(f"ext_fields[{name!r}]", value, fields.get(name))
    if expected.exact:
        lines += [f"+ ext_fields[{name!r}]: {value!r}" for name, value in fields.items() if name not in expected.ext_fields]
    if expected.body is not None:
        lines += _compared_bodies(expected.body, came.body)
    return lines if any(not line.startswith("  ") for line in lines) else []


def _compared(name: str, expected: object, came: object) -> Iterator[str]:
    if expected == came:
        yield f"  {name}: {came!r}" if not isinstance(came, str) or "[" in name else f"  {name}: {came}"
    else:
        yield f"- {name}: {_text(name, expected)}"
        yield f"+ {name}: {_text(name, came)}"


def _text(name: str, value: object) -> str:
    if value is None:
        return "(absent)"
    return value if isinstance(value, str) and name == "code" else repr(value)


def _compared_bodies(expected: object, came: bytes) -> Iterator[str]:
    if expected == came:
        yield f"  body: {len(came)} bytes"
    elif not isinstance(expected, bytes):
        yield f"- body: {expected!r}"
        yield f"+ body: {_window(came, 0)}"
    else:
        pairs = zip(expected, came, strict=False)
        at = next((index for index, (one, other) in enumerate(pairs) if one != other), min(len(expected), len(came)))
        yield f"- body: {_window(expected, at)}"
        yield f"+ body: {_window(came, at)}"
        yield f"? body: {len(expected)} bytes expected, {len(came)} came, first difference at byte {at}"


def _window(body: bytes, at: int) -> str:
    start = max(0, at - _SHOWN // 3)
    shown = repr(body[start : start + _SHOWN])
    return f"{'... ' if start else ''}{shown}{' ...' if start + _SHOWN < len(body) else ''}"


HEARTBEATS: Final[Mapping[int, Answer]] = {RequestCode.HEART_BEAT: Answer(), RequestCode.UNREGISTER_CLIENT: Answer()}
MAX_CONNECTIONS: Final = 64
MAX_WAITING: Final = 10_000
"""Maximum number of received requests that are queued for later steps."""


class TranscriptError(AssertionError):
    """Raised if the client has not followed the transcript (a request differs, is missing or was not expected, or a connection
    ended early), or if an ``Answer`` belongs to a request that has not arrived. The message shows the steps and the difference.
    """


class _Event(NamedTuple):
    """An event of one connection: opened ("made"), a request, or closed ("lost")."""

    link: _Link
    what: RemotingCommand | str


def routes_to(address: str, *, broker: str = "broker-a", queues: int = 1, cluster: str = "DefaultCluster") -> dict[int, Answer]:
    """Return the ``aside`` of a peer that acts as a name server. Every topic has ``queues`` queues on one broker at ``address``
    ("host:port").
    """
    data = BrokerData(broker, {MASTER_ID: address}, cluster)
    route = TopicRouteData((QueueData(broker, queues, queues, 6),), (data,))
    info = ClusterInfo({broker: data}, {cluster: (broker,)})
    return {
        RequestCode.GET_ROUTEINFO_BY_TOPIC: Answer(body=encode_route(route)),
        RequestCode.GET_BROKER_CLUSTER_INFO: Answer(body=encode_cluster_info(info)),
    }


class ScriptedPeer(Startable):
    """A server on a free port of 127.0.0.1 that plays ``steps`` once.

    Args:
        aside: The responses by request code, for any number of requests outside the transcript. By default, heartbeats and
            unregistrations succeed.
        patience: Seconds for which the end of an ``async with`` block waits for remaining steps if the block raised no error.
            It then raises TranscriptError.

    Attributes:
        requests: The requests that ``Expect`` steps have received.
        answered_aside: The number of requests to which ``aside`` has responded, by code.
    """

    def __init__(self, *steps: Step, aside: Mapping[int, Answer] = HEARTBEATS, patience: float = 1.0) -> None:
        self.requests: list[RemotingCommand] = []
        self.answered_aside: Counter[int] = Counter()
        self._steps = steps
        self._aside = aside
        self._patience = patience
        self._played = 0
        self._failure: TranscriptError | None = None
        self._end = asyncio.Event()
        self._events: asyncio.Queue[_Event] = asyncio.Queue()
        self._origins: list[_Link] = []
        self._link: _Link | None = None
        self._links: set[_Link] = set()
        self._made = 0
        self._port = 0
        self._server: asyncio.Server | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """The address for clients, "127.0.0.1:port".

        Raises:
            RuntimeError: Before the start.
        """
        if not self._port:
            raise RuntimeError("the peer has no address before its start; await start()")
        return f"127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Start to listen.

        Raises:
            RuntimeError: At a second start, because a transcript is played only once.
        """
        if self._port:
            raise RuntimeError("the peer was started already; make a new one to play a transcript again")
        self._server = await asyncio.get_running_loop().create_server(lambda: _Link(self), "127.0.0.1", 0)
        self._port = self._server.sockets[0].getsockname()[1]
        self._task = asyncio.create_task(self._play())

    async def done(self, timeout: float | None = None) -> None:
        """Return when every step has been played.

        A ``timeout`` of None means no time limit.

        Raises:
            TranscriptError: If the client deviates from the transcript, or if steps are left after ``timeout`` seconds.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._end.wait()
        if not self._end.is_set():
            self._fail([f"only {self._played} of {len(self._steps)} steps were played within {timeout:g} s"])
        if self._failure is not None:
            raise self._failure

    async def stop(self) -> None:
        """End the transcript and reset every connection. Remaining steps are not reported as an error."""
        if self._server is None or self._task is None:
            return
        server, self._server = self._server, None
        await close_servers([server])
        self._task.cancel()
        await asyncio.wait([self._task])
        gone = [link.lost for link in self._links]
        for link in list(self._links):
            link.reset()
        if gone:
            await asyncio.wait(gone)
        await server.wait_closed()
        if not self._task.cancelled():
            self._task.result()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                await self.done(self._patience)
        finally:
            await self.stop()
        if self._failure is not None and isinstance(error, Exception):
            raise self._failure from error

    # -- playing the steps

    async def _play(self) -> None:
        for step in self._steps:
            if not await self._perform(step):
                return
            self._played += 1
        self._end.set()
        while True:
            event = await self._events.get()
            if isinstance(event.what, RemotingCommand):
                self._fail([f"+ {name_of(event.what.code)} was received, but no further request was expected"])
                return

    async def _perform(self, step: Step) -> bool:
        match step:
            case Expect():
                return await self._expect(step)
            case ExpectClose():
                return await self._expect_close()
            case Wait():
                await asyncio.sleep(step.seconds)
            case Answer():
                return await self._answer(step)
            case Write():
                (await self._connection()).write(step.data)
            case Close() | Reset():
                link = await self._connection()
                link.close() if isinstance(step, Close) else link.reset()
                self._link = None
        return True

    async def _expect(self, step: Expect) -> bool:
        while not isinstance((event := await self._events.get()).what, RemotingCommand):
            pass
        self._link = event.link
        self._origins.append(event.link)
        self.requests.append(event.what)
        found = differences(step, event.what)
        if found:
            self._fail(found)
        return not found

    async def _expect_close(self) -> bool:
        link = await self._connection()
        while not link.lost.done():
            event = await self._events.get()
            if isinstance(event.what, RemotingCommand):
                self._fail(["- the client closes the connection", f"+ {name_of(event.what.code)}"])
                return False
        self._link = None
        return True

    async def _answer(self, step: Answer) -> bool:
        try:
            request, link = self.requests[step.to], self._origins[step.to]
        except IndexError:
            self._fail([f"there is no request {step.to}, {len(self.requests)} have arrived; correct Answer(to={step.to})"])
            return False
        for number, part in enumerate(step.parts(step.frame(request))):
            if number:
                await asyncio.sleep(step.pause)
            if link.closing:
                self._fail([f"the connection of {name_of(request.code)} was closed before the whole response was written"])
                return False
            link.write(part)
        return True

    async def _connection(self) -> _Link:
        """Return the connection of the last request. If there is no such connection, or a step has ended it, wait for the next
        connection.
        """
        while self._link is None:
            event = await self._events.get()
            if event.what == "made":
                self._link = event.link
        return self._link

    def _fail(self, found: list[str]) -> None:
        if self._failure is not None:
            return
        lines = [
            f"{'ok' if number < self._played else '->' if number == self._played else '  '} {number + 1:3} {step}"
            for number, step in enumerate(self._steps)
        ]
        at = max(0, self._played - 5)
        self._failure = TranscriptError(
            "\n".join(
                [
                    f"transcript of {len(self._steps)} steps, {self._played} played, {self._made} connections made",
                    *lines[at : at + 12],
                    *found,
                ]
            )
        )
        self._end.set()
        for link in list(self._links):
            link.reset()

    # -- called by the connections

    def made(self, link: _Link) -> None:
        self._made += 1
        self._links.add(link)
        if self._failure is not None or self._server is None or len(self._links) > MAX_CONNECTIONS:
            link.reset()
        else:
            self._events.put_nowait(_Event(link, "made"))

    def received(self, link: _Link, command: RemotingCommand) -> None:
        if not command.is_response and (aside := self._aside.get(command.code)) is not None:
            self.answered_aside[command.code] += 1
            if not command.is_oneway:
                link.write(aside.frame(command))
        elif self._events.qsize() >= MAX_WAITING:
            self._fail([f"{MAX_WAITING} requests were received that no step has expected yet"])
        else:
            self._events.put_nowait(_Event(link, command))

    def broken(self, link: _Link, error: ProtocolError) -> None:
        self._fail([f"+ received bytes that are not a frame: {error}"])

    def lost(self, link: _Link) -> None:
        self._links.discard(link)
        self._events.put_nowait(_Event(link, "lost"))


class _Link(Link):
    """One connection of the client."""

    def __init__(self, peer: ScriptedPeer) -> None:
        super().__init__()
        self._peer = peer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._peer.made(self)

    def take(self, command: RemotingCommand) -> None:
        self._peer.received(self, command)

    def broken(self, error: ProtocolError) -> None:
        self._peer.broken(self, error)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._peer.lost(self)
