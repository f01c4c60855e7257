"""A man in the middle: stands between a client and an embedded server and does to frames what a rule says.

    async with Relay(server, rule) as relay:
        ...  # a client at relay.namesrv

``rule(command, frame)`` is asked for each request and returns what becomes of it. Answers of the name server have the brokers'
addresses replaced by the relay's, so that nothing goes around it.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Self

from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.command import RemotingCommand, decode_command, encode_command, make_response
from rmq_protocol.frame import Frame, FrameDecoder
from rmq_protocol.properties import decode_properties


class Fate(NamedTuple):
    """``forward``: what the server gets to see, in this order. ``answer``: what the relay itself sends to the client."""

    forward: tuple[Frame, ...] = ()
    answer: RemotingCommand | None = None


Rule = Callable[[RemotingCommand, Frame], Fate | None]
"""None: the request passes as it is."""


class Relay:
    def __init__(self, server: EmbeddedRocketMQ, rule: Rule) -> None:
        self.server = server
        self.rule = rule
        self.listeners: list[asyncio.Server] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.addresses: dict[bytes, bytes] = {}
        self.namesrv = ""

    async def __aenter__(self) -> Self:
        for address in self.server.brokers.values():
            self.addresses[address.encode()] = (await self.listen(address, True)).encode()
        self.namesrv = await self.listen(self.server.namesrv, False)
        return self

    async def __aexit__(self, *_: object) -> None:
        for listener in self.listeners:
            listener.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def listen(self, upstream: str, broker: bool) -> str:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self.tasks.add(task)
            with suppress(ConnectionError, asyncio.CancelledError):
                await self.between(reader, writer, upstream, broker)
            self.tasks.discard(task)

        listener = await asyncio.start_server(serve, "127.0.0.1", 0)
        self.listeners.append(listener)
        return f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"

    async def between(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, upstream: str, broker: bool) -> None:
        host, _, port = upstream.rpartition(":")
        server_reader, server_writer = await asyncio.open_connection(host, int(port))

        async def requests() -> None:
            decoder = FrameDecoder()
            while data := await reader.read(65536):
                for frame in decoder.feed(data):
                    command = decode_command(frame)
                    fate = self.rule(command, frame) or Fate((frame,))
                    for forwarded in fate.forward:
                        server_writer.write(encoded(forwarded))
                    if fate.answer is not None:
                        writer.write(b"".join(encode_command(fate.answer)))
            server_writer.close()

        async def answers() -> None:
            decoder = FrameDecoder()
            while data := await server_reader.read(65536):
                for frame in decoder.feed(data):
                    body = frame.body
                    if not broker:
                        for own, ours in self.addresses.items():
                            body = body.replace(own, ours)
                    writer.write(encoded(Frame(frame.serialize_type, frame.header, body)))
            writer.close()

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(requests())
                group.create_task(answers())
        finally:
            for each in (writer, server_writer):
                each.close()
                with suppress(ConnectionError):
                    await each.wait_closed()


def encoded(frame: Frame) -> bytes:
    header, body = bytes(frame.header), bytes(frame.body)
    return struct.pack(">II", 4 + len(header) + len(body), frame.serialize_type << 24 | len(header)) + header + body


def acknowledged(request: RemotingCommand, messages: int = 1) -> RemotingCommand:
    """The answer of a broker that stored the request's messages; no broker did."""
    assert request.ext_fields is not None
    ids = ",".join([f"7F0000010000{4660:04X}{number:016X}" for number in range(messages)])
    return make_response(request, 0, None, {"msgId": ids, "queueId": request.ext_fields["e"], "queueOffset": "999999"})


def properties_of(request: RemotingCommand) -> dict[str, str]:
    assert request.ext_fields is not None
    return decode_properties(request.ext_fields["i"] or "")
